// Views for the items of a conversation, by kind. A view is `{node, update(item)}`.

import { button, fillWith, h, setText } from "../dom.js";
import { clock, duration, firstLine } from "../format.js";
import { markdownView } from "../text/markdown.js";
import { callView } from "./call.js";
import { questionView } from "./question.js";
import { settledView } from "./settled.js";

const VIEWS = {
  message: messageView,
  outgoing: outgoingView,
  answer: answerView,
  live: answerView,
  call: callView,
  question: questionView,
  settled: settledView,
  notice: noticeView,
  withdrawn: withdrawnView,
  earlier: (item) => ({ node: item.node, update() {} }),
};

export function itemView(item, store, actions) {
  return (VIEWS[item.kind] ?? noticeView)(item, store, actions);
}

const HOW = { steered: "↳ steered in", interrupt: "│ redirected", rollback: "│ rolled back" };

function messageView() {
  const words = h("div", { class: "words" });
  const about = h("div", { class: "about" });
  const node = h("li", {}, words, about);
  const update = (item) => {
    if (item.sender === "background") {
      node.className = "notice";
      fillWith(node, `In the background: ${firstLine(item.text)}`);
      return;
    }
    node.className = `message ${item.mode}${item.hidden ? " hidden-turn" : ""}`;
    setText(words, item.text);
    const stopped = item.disposition === "interrupting" ? HOW[item.mode] : null;
    const how = item.how === "steered" ? HOW.steered : stopped;
    const files = (item.attachments ?? []).map((name) => h("span", {}, name));
    const edited = item.editedBy ? h("span", {}, "edited") : null;
    const kind = stopped ? "how cutting" : "how";
    fillWith(
      about,
      files,
      edited,
      how ? h("span", { class: kind }, how) : null,
      h("time", {}, clock(item.at)),
    );
  };
  return { node, update };
}

function outgoingView(_, __, actions) {
  const words = h("div", { class: "words" });
  const about = h("div", { class: "about" });
  const node = h("li", { class: "message sending" }, words, about);
  const update = (entry) => {
    setText(words, entry.text);
    const again = button("Send again", { does: () => actions.resend(entry), kind: "quiet" });
    const drop = button("Discard", { does: () => actions.discard(entry), kind: "quiet" });
    const told = {
      sending: "sending …",
      later: "not sent yet: it goes out when the server is back",
      held: "not sent: you stopped before it went out",
      refused: `not sent: ${entry.problem}`,
    }[entry.state];
    const stays = entry.state === "refused" || entry.state === "held";
    fillWith(about, h("span", {}, told), stays ? [again, drop] : null);
  };
  return { node, update };
}

// The key is the same while streaming and afterwards, so the element stays.
function answerView() {
  const thought = h("div");
  const thoughts = h("details", { class: "thought" }, h("summary", {}, "Thoughts"), thought);
  const prose = markdownView();
  const retry = h("p", { class: "retry" });
  const about = h("div", { class: "about" });
  const unkept = h("div", { class: "unkept" });
  const node = h("li", {}, thoughts, prose.node, retry, about, unkept);
  const update = (item) => {
    const live = item.kind === "live";
    node.className = `answer${live ? " live" : ""}${item.hidden ? " hidden-turn" : ""}`;
    thoughts.hidden = !item.reasoning;
    setText(thought, item.reasoning ?? "");
    prose.update(item.text);
    retry.hidden = !item.retry;
    if (item.retry) {
      const { cause, delayS, model } = item.retry;
      setText(
        retry,
        `${cause}. Asking ${model} again${delayS ? ` in ${duration(delayS * 1000)}` : ""}.`,
      );
    }
    about.hidden = live || !item.partial;
    if (item.partial) fillWith(about, h("span", { class: "cut-off" }, cutWords(item)));
    unkept.hidden = !item.unkept;
    if (!item.unkept) return;
    const lost = markdownView();
    lost.update(item.unkept);
    fillWith(unkept, lost.node);
  };
  return { node, update };
}

function cutWords({ text, unkept }) {
  if (!unkept) return "cut off here; what was said is kept";
  return text
    ? "kept up to here; what follows was shown, and is not kept"
    : "what follows was shown, and nothing of it is kept";
}

function noticeView() {
  const node = h("li", { class: "notice" });
  return { node, update: (item) => setText(node, item.text ?? "") };
}

function withdrawnView() {
  const node = h("li", { class: "notice withdrawn" });
  const update = (item) => fillWith(node, "Taken back: ", h("s", {}, firstLine(item.text)));
  return { node, update };
}
