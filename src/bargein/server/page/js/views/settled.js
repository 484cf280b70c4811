// The line across the conversation where a turn ended early: what was stopped, how fast, and what
// may be half done. It opens to show all details.

import { fillWith, h } from "../dom.js";
import { count, duration } from "../format.js";
import {
  causeDetail,
  isUncertain,
  receiptLine,
  stepName,
  stepWords,
  stopWords,
} from "../state/receipt.js";
import { magnified } from "./magnified.js";

export function settledView(_, store) {
  const line = h("span");
  const details = h("div", { class: "details" });
  const fold = h("details", {}, h("summary", {}, line), details);
  const node = h("li", {}, fold);
  // It is often the last item, and would open below the visible part.
  fold.addEventListener("toggle", () => fold.open && fold.scrollIntoView({ block: "nearest" }));
  const update = (item) => {
    node.className = item.hidden ? "hidden-turn" : "";
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
    return error || "the program ended in the middle of this; send again what was not answered";
  return outcome;
}

function detailsOf({ turn, receipt, error, interrupts }, session) {
  if (!receipt) return h("p", {}, error || `Turn ${turn} did not come to its end.`);
  const by = receipt.by || interrupts[0]?.by;
  const who = by ? `, stopped by ${by}` : "";
  const took = duration(receipt.elapsed_ms);
  const head = `Turn ${turn}${who}. From the stop until all was over: ${took}.`;
  return [
    h("p", {}, head, " ", causeDetail(receipt)),
    magnified(receipt, session),
    h(
      "ul",
      {},
      (receipt.steps ?? []).map((step) => stepNode(step, session)),
    ),
    waits(receipt),
  ];
}

function stepNode(step, session) {
  const processes = step.detail?.processes ?? [];
  return h(
    "li",
    { class: isUncertain(step) ? "half" : "" },
    step.kind === "child" ? `${stepName(step, session)}: ` : "",
    `${stepWords(step)} · ${duration(step.elapsed_ms)}`,
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

function waits({ held, queued, stored }) {
  const words = [];
  if (held?.length) words.push(`${count(held.length, "message")} held until you continue`);
  if (queued?.length) words.push(`${count(queued.length, "message")} queued`);
  if (stored === false) words.push("not stored: the disk did not take it");
  return words.length ? h("p", { class: "sub" }, words.join("; ")) : null;
}
