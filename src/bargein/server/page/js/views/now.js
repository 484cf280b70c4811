// The panel of what goes on: the timeline, running calls, and the tree of sub-agents.

import { button, fillWith, h, keyedList, setText, stopButton } from "../dom.js";
import { duration } from "../format.js";
import { runningCalls } from "../state/calls.js";
import { shownChildren } from "../state/children.js";
import { lastChanging, latestTurn } from "../state/turns.js";
import { planOf } from "../state/plan.js";
import { usedWords } from "../state/used.js";
import { nameOf } from "./messages.js";
import { agentsView } from "./agents.js";
import { grantsView } from "./permits.js";
import { planNode } from "./plan.js";
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
  const plan = panel("Plan", planNode([]));
  let planned = "";
  const agents = agentsView(store, actions);
  const tree = panel("Sub-agents", agents.node);
  const spent = h("p", { class: "nothing" });
  const usage = panel("Used", spent);
  const diff = button("Show the changes", { does: () => actions.showChanges(changing.id) });
  const undo = button("Undo", { does: () => actions.undo(changing.id) });
  const redo = button("Redo", {
    does: () => actions.redo(),
    title: "Put the files back as they were before the last undo",
  });
  const changes = panel("Files", h("div", { class: "row" }, diff, undo, redo));
  let changing = null;
  const people = h("p", { class: "nothing" });
  const share = button("Share", { does: () => actions.share(), name: "Share this session" });
  const shared = panel("People", people, h("div", { class: "row" }, share));
  const grants = grantsView(actions);
  const allowed = panel("Allowed until revoked", grants.node);
  fillWith(node, timeline.node, plan, panel("Running", running, none, stopAll), tree, changes);
  node.append(allowed, shared, usage);
  const drawRunning = keyedList(running, () => runningRow(store, actions));

  const showPeople = (session, me) => {
    shared.hidden = !session?.owner && !session?.members;
    if (shared.hidden) return;
    const names = [session.owner, ...Object.keys(session.members ?? {})].filter(Boolean);
    setText(people, names.map((name) => nameOf(name, me)).join(", "));
    share.hidden = session.access !== "own" || session.id.includes("/");
  };

  const showPlan = (items) => {
    plan.hidden = !items.length;
    const key = JSON.stringify(items);
    if (key === planned) return;
    planned = key;
    plan.lastChild.remove();
    plan.append(planNode(items));
  };

  return ({ session }) => {
    timeline.update(session);
    showPlan(session === null ? [] : planOf(session));
    const calls = session === null ? [] : runningCalls(session);
    drawRunning(calls, (each) => each.id);
    none.hidden = calls.length > 0;
    const beside = calls.some((call) => call.status === "background");
    stopAll.hidden = calls.length < 2 || !beside || session.access === "read";
    const children = session === null ? [] : shownChildren(session, latestTurn(session));
    tree.hidden = !children.length;
    agents.update(children);
    changing = session === null ? null : lastChanging(session);
    const mayChange = session !== null && session.access !== "read" && session.access !== undefined;
    changes.hidden = !mayChange || (changing === null && !session.restored);
    diff.hidden = changing === null;
    undo.hidden = changing === null || Boolean(changing.hidden);
    redo.hidden = !session?.restored;
    allowed.hidden = !grants.update(session);
    showPeople(session, store.get().me);
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
