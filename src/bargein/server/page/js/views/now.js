// What is going on: the timeline, what runs, and the sub-agents as a tree.

import { button, fillWith, h, keyedList, setText, stopButton } from "../dom.js";
import { duration } from "../format.js";
import { runningCalls } from "../state/calls.js";
import { shownChildren } from "../state/children.js";
import { latestTurn } from "../state/turns.js";
import { usedWords } from "../state/used.js";
import { grantsView } from "./permits.js";
import { ticking } from "./ticking.js";
import { timelineView } from "./timeline.js";

export function nowView(node, store, actions) {
  const timeline = timelineView(store);
  const running = h("ul", { class: "running-list" });
  const none = h("p", { class: "nothing" }, "Nothing runs.");
  const stopAll = button("Stop all", {
    does: () => actions.stopAll(),
    kind: "stop",
    title: "Stop the turn and everything in the background",
  });
  const agents = h("ul", { class: "agents" });
  const tree = panel("Sub-agents", agents);
  const spent = h("p", { class: "nothing" });
  const usage = panel("Used", spent);
  const grants = grantsView(actions);
  const allowed = panel("Allowed for longer", grants.node);
  fillWith(node, timeline.node, panel("Running", running, none, stopAll), tree, allowed, usage);
  const drawRunning = keyedList(running, () => runningRow(store, actions));
  const drawAgents = keyedList(agents, () => agentRow(store, actions));

  return ({ session }) => {
    timeline.update(session);
    const calls = session === null ? [] : runningCalls(session);
    drawRunning(calls, (each) => each.id);
    none.hidden = calls.length > 0;
    const beside = calls.some((call) => call.status === "background");
    stopAll.hidden = calls.length < 2 || !beside || session.access === "read";
    const children = session === null ? [] : shownChildren(session, latestTurn(session));
    tree.hidden = !children.length;
    drawAgents(children, (each) => each.id);
    allowed.hidden = !grants.update(session);
    const words = session === null ? "" : usedWords(session.used);
    usage.hidden = !words;
    setText(spent, words && session.since > 1 ? `${words}, in what is shown` : words);
  };
}

function panel(name, ...content) {
  const head = h("div", { class: "panel-head" }, h("h2", { class: "label" }, name));
  return h("section", { class: "panel" }, head, content);
}

function runningRow(store, actions) {
  const dot = h("span", { class: "dot" });
  const what = h("span", { class: "what" });
  const elapsed = h("span", { class: "elapsed" });
  const toBackground = button("Background", { does: () => actions.detach(call.id) });
  const stop = stopButton({ does: () => actions.stopCall(call.id) });
  const beside = h("span", { class: "came" }, "in the background");
  const row = h("div", { class: "row" }, stop, toBackground);
  const node = h("li", { class: "running-row" }, dot, what, elapsed, beside, row);
  let call = null;
  ticking(elapsed, () =>
    duration(Math.max(0, Date.now() + store.get().clockOffset - call.startedAt)),
  );
  const update = (next) => {
    call = next;
    const title = next.title || next.name;
    dot.className = `dot ${next.asking ? "asking" : next.status}`;
    setText(what, title);
    what.title = title;
    row.hidden = store.get().session?.access === "read";
    stop.setAttribute("aria-label", `Stop ${title}`);
    toBackground.hidden = next.status === "background";
    beside.hidden = !toBackground.hidden;
    toBackground.setAttribute("aria-label", `Move ${title} to the background`);
  };
  return { node, update };
}

// A sub-agent and, below it, its own.
function agentRow(store, actions) {
  const dot = h("span", { class: "dot" });
  const link = h("a", {});
  const stop = stopButton({ does: () => actions.stopChild(child.id) });
  const elapsed = h("span", { class: "elapsed" });
  const came = h("span", { class: "came" });
  const own = h("ul", {});
  const row = h("div", { class: "agent" }, dot, link, h("span", {}, elapsed, " ", stop), came);
  const node = h("li", {}, row, own);
  const drawOwn = keyedList(own, () => agentRow(store, actions));
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
    setText(came, next.summary ?? "");
    came.hidden = !next.summary;
    own.hidden = !next.below?.length;
    drawOwn(next.below ?? [], (each) => each.id);
  };
  return { node, update };
}
