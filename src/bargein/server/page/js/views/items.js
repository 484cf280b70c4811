// Views for the items of a conversation, by kind. A view is `{node, update(item)}`.

import { copyButton } from "../app/copying.js";
import { button, fillWith, h, setText } from "../dom.js";
import { duration, firstLine } from "../format.js";
import { markdownView } from "../text/markdown.js";
import { callView } from "./call.js";
import { filesBackView } from "./files_back.js";
import { messageView, outgoingView } from "./messages.js";
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
  files_back: filesBackView,
  notice: noticeView,
  withdrawn: withdrawnView,
  history: historyView,
  earlier: (item) => ({ node: item.node, update() {} }),
};

export function itemView(item, store, actions) {
  return (VIEWS[item.kind] ?? noticeView)(item, store, actions);
}

// The key is the same while streaming and afterwards, so the element stays.
function answerView(_, store, actions) {
  const thought = h("div");
  const thoughts = h("details", { class: "thought" }, h("summary", {}, "Thoughts"), thought);
  const prose = markdownView();
  const retry = h("p", { class: "retry" });
  const about = h("div", { class: "about" });
  const unkept = h("div", { class: "unkept" });
  const model = h("span", { class: "who" });
  const copy = copyButton(() => said, { name: "Copy this answer" });
  const fork = button("Fork", {
    does: () => actions.fork(turn),
    kind: "quiet",
    title: "Go on from here in a new session; this one stays as it is",
  });
  const acts = h("div", { class: "acts" }, model, copy, fork);
  const node = h("li", { tabindex: "-1" }, thoughts, prose.node, retry, about, unkept, acts);
  let said = "";
  let turn = null;
  const update = (item) => {
    said = item.text;
    turn = item.turn;
    fork.hidden = store.get().current?.includes("/") ?? true;
    acts.hidden = item.kind === "live" || !item.text;
    setText(model, item.model ?? "");
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
  if (!unkept) return "cut off here; the text so far is kept";
  return text
    ? "stored up to here; the rest was shown, but not stored"
    : "this was shown, but not stored";
}

function historyView({ role }) {
  const isUser = role === "user";
  const words = isUser ? h("div", { class: "words" }) : markdownView();
  const kind = isUser ? "message history" : "answer history";
  const node = h("li", { class: kind }, isUser ? words : words.node);
  const update = ({ text }) => (isUser ? setText(words, text) : words.update(text));
  return { node, update };
}

function noticeView() {
  const node = h("li", { class: "notice" });
  return { node, update: (item) => setText(node, item.text ?? "") };
}

function withdrawnView() {
  const node = h("li", { class: "notice withdrawn" });
  const update = (item) => fillWith(node, "Withdrawn: ", h("s", {}, firstLine(item.text)));
  return { node, update };
}
