// Sub-agents, in the conversation and in the panel: the task of each, what it is doing, how it
// ended; with a link to its own conversation, a button to stop it, and its own sub-agents below.

import { h, keyedList, setText, stopButton } from "../dom.js";
import { duration } from "../format.js";
import { ticking } from "./ticking.js";

/** Returns a list of sub-agents as `{node, update(children)}`. */
export function agentsView(store, actions) {
  const node = h("ul", { class: "agents" });
  const draw = keyedList(node, () => agentRow(store, actions));
  return { node, update: (children) => draw(children, (each) => each.id) };
}

function agentRow(store, actions) {
  const dot = h("span", { class: "dot" });
  const link = h("a", {});
  const stop = stopButton({ does: () => actions.stopChild(child.id) });
  const elapsed = h("span", { class: "elapsed" });
  const came = h("span", { class: "came" });
  const row = h("div", { class: "agent" }, dot, link, h("span", {}, elapsed, " ", stop), came);
  const node = h("li", {}, row);
  let below = null;
  let child = null;
  ticking(elapsed, () => {
    if (!child.startedAt) return "";
    const until = child.endedAt ?? Date.now() + store.get().clockOffset;
    return duration(Math.max(0, until - child.startedAt));
  });
  const update = (next) => {
    child = next;
    const running = next.state === "running";
    const direct = next.id.lastIndexOf("/") === store.get().session?.id.length;
    dot.className = `dot ${running ? "running" : (next.outcome ?? "finished")}`;
    setText(link, next.task ?? next.id);
    link.title = next.task ?? "";
    link.href = `#/s/${encodeURIComponent(next.id)}`;
    stop.hidden = !running || !direct || store.get().session?.access === "read";
    stop.setAttribute("aria-label", `Stop ${next.task}`);
    const words = running ? (next.doing ?? "") : (next.summary ?? "");
    setText(came, words);
    came.hidden = !words;
    if (!next.below?.length && below === null) return;
    if (below === null) {
      below = agentsView(store, actions);
      below.node.className = "";
      node.append(below.node);
    }
    below.update(next.below ?? []);
  };
  return { node, update };
}
