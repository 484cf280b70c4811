// The line across the conversation where a turn ended early: what was stopped, how fast, and what
// may be half done. It opens to show all details.

import { button, fillWith, h } from "../dom.js";
import { count, duration } from "../format.js";
import {
  causeDetail,
  isUncertain,
  receiptLine,
  stepName,
  stepWords,
  stopWords,
} from "../state/receipt.js";
import { spentShort, spentWords } from "../state/used.js";
import { magnified } from "./magnified.js";

const UNANSWERED = ["failed", "crashed"];

export function settledView(_, store, actions) {
  const line = h("span");
  const details = h("div", { class: "details" });
  const fold = h("details", {}, h("summary", {}, line), details);
  const again = button("Try again", { does: () => actions.askAgain(turn), kind: "writes again" });
  const node = h("li", {}, fold, again);
  let turn = null;
  // It is often the last item, and would open below the visible part.
  fold.addEventListener("toggle", () => fold.open && fold.scrollIntoView({ block: "nearest" }));
  const update = (item) => {
    turn = item.turn;
    node.className = item.hidden ? "hidden-turn" : "";
    again.hidden = item.hidden || !UNANSWERED.includes(item.outcome);
    fold.className = `cut ${item.outcome}`;
    fold.dataset.turn = item.turn;
    fillWith(line, lineOf(item));
    fillWith(details, detailsOf(item, store.get().session));
  };
  return { node, update };
}

function lineOf({ outcome, receipt, error }) {
  if (receipt) return receiptLine(receipt);
  if (outcome === "failed") return `failed · ${error}`;
  if (outcome === "crashed")
    return error || "the program ended during this turn; try again";
  return outcome;
}

function detailsOf({ turn, receipt, error, interrupts }, session) {
  if (!receipt) return h("p", {}, error || `Turn ${turn} did not finish.`);
  const by = receipt.by || interrupts[0]?.by;
  const who = by ? `, stopped by ${by}` : "";
  const took = duration(receipt.elapsed_ms);
  const head = `Turn ${turn}${who}. Everything had ended ${took} after the stop.`;
  return [
    h("p", {}, head, " ", causeDetail(receipt)),
    magnified(receipt, session),
    h(
      "ul",
      {},
      (receipt.steps ?? []).map((step) => stepNode(step, session)),
    ),
    used(receipt),
    waits(receipt),
  ];
}

function stepNode(step, session) {
  const processes = step.detail?.processes ?? [];
  return h(
    "li",
    { class: isUncertain(step) ? "half" : "" },
    step.kind === "child" ? `${stepName(step, session)}: ` : "",
    [stepWords(step), duration(step.elapsed_ms), step.usage ? spentShort(step.usage) : ""]
      .filter(Boolean)
      .join(" · "),
    step.detail ? h("div", { class: "sub" }, stopWords(step.detail)) : null,
    processes.map((each) =>
      h(
        "div",
        { class: "sub" },
        h("code", {}, `${each.pid} ${each.command}`),
        ` ${endWords(each)} after ${duration(each.elapsed_ms)}`,
      ),
    ),
  );
}

function endWords({ ended_by: by }) {
  return by === "ended" ? "ended by itself" : `ended by ${by}`;
}

// What the turn had used when it was stopped, if the server says so.
function used({ spent }) {
  const words = spent ? spentWords(spent) : "";
  return words ? h("p", { class: "sub" }, `Used until then: ${words}`) : null;
}

function waits({ held, queued, stored }) {
  const words = [];
  if (held?.length) words.push(`${count(held.length, "message")} held until you continue`);
  if (queued?.length) words.push(`${count(queued.length, "message")} queued`);
  if (stored === false) words.push("not stored: the disk did not take it");
  return words.length ? h("p", { class: "sub" }, words.join("; ")) : null;
}
