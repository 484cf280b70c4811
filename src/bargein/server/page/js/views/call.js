// A tool call: what it does, for how long, its arguments, its sub-agents and its output; with
// buttons to stop it and to move it to the background.

import { button, fillWith, h, setText, stopButton } from "../dom.js";
import { duration } from "../format.js";
import { agentsView } from "./agents.js";
import { argumentNodes, isShownUnasked } from "./arguments.js";
import { ticking } from "./ticking.js";

const WORDS = {
  not_started: "not started",
  finished: "",
  failed: "failed",
  stopped: "stopped",
  abandoned: "did not stop, abandoned",
  unknown: "outcome unknown",
  background: "in the background",
};

export function callView(_, store, actions) {
  const dot = h("span", { class: "dot" });
  const tool = h("span", { class: "tool" });
  const what = h("span", { class: "what" });
  const came = h("span", { class: "came" });
  const open = h("button", { type: "button", class: "call-open" }, tool, what, came);
  const elapsed = h("span", { class: "elapsed" });
  const toBackground = button("Background", {
    does: () => actions.detach(call.id),
    kind: "quiet",
    title: "Let it go on when the turn is stopped (Alt+B)",
  });
  const stop = stopButton({
    does: () => actions.stopCall(call.id),
    title: "Stop this call, and let the turn go on",
  });
  const output = h("pre", { tabindex: "0" });
  const skipped = h("div", { class: "skipped" });
  const given = h("div", { class: "call-given" });
  const agents = agentsView(store, actions);
  const head = h("div", { class: "call-head" }, dot, open, elapsed, toBackground, stop);
  const node = h("li", { class: "call" }, head, given, agents.node, skipped, output);
  let call = null;
  let expanded = null;
  let drawn = null;

  open.addEventListener("click", () => {
    expanded = open.getAttribute("aria-expanded") !== "true";
    show();
  });
  ticking(elapsed, () => {
    const { startedAt, endedAt } = call;
    if (!startedAt) return "";
    const until = endedAt ?? Date.now() + store.get().clockOffset;
    return duration(Math.max(0, until - startedAt));
  });

  // Returns whether there is anything to show. The arguments are drawn when they are first wanted.
  const showGiven = (wanted) => {
    const key = `${call.title} ${call.arguments ?? ""}`;
    if (wanted && drawn !== key) {
      drawn = key;
      fillWith(given, argumentNodes(call));
    }
    given.hidden = !wanted || !given.childNodes.length;
    return !given.hidden;
  };

  const show = () => {
    const running = isRunning(call);
    const text = running ? call.output : shownResult(call);
    const visible = Boolean(text) && (expanded ?? (running && Boolean(call.output)));
    const shown = showGiven(expanded ?? isShownUnasked(call));
    const stick = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
    setText(output, visible ? text : "");
    output.hidden = !visible;
    open.setAttribute("aria-expanded", String(visible || shown));
    skipped.hidden = !visible || !running || !call.skipped;
    const toEnd = () => (output.scrollTop = output.scrollHeight);
    if (stick && output.isConnected) toEnd();
    else if (stick) requestAnimationFrame(toEnd);
  };

  const update = (next) => {
    call = next;
    const running = isRunning(next);
    const title = next.title || next.name || "";
    const words = cameWords(next);
    node.className = `call ${next.status}${next.hidden ? " hidden-turn" : ""}`;
    node.dataset.call = next.id;
    dot.className = `dot ${next.asking && running ? "asking" : next.status}`;
    setText(tool, next.name ?? "");
    setText(what, title);
    what.title = title;
    setText(came, words);
    open.setAttribute("aria-label", `${next.name}: ${title}, ${words || next.status}. Details`);
    const mayStop = running && store.get().session?.access !== "read";
    stop.hidden = !mayStop;
    stop.setAttribute("aria-label", `Stop ${title}`);
    toBackground.hidden = !mayStop || next.status === "background";
    toBackground.setAttribute("aria-label", `Move ${title} to the background`);
    agents.update(next.children ?? []);
    agents.node.hidden = !next.children?.length;
    setText(skipped, `The first ${next.skipped} characters are not shown`);
    show();
  };
  return { node, update };
}

function shownResult({ status, result, output }) {
  if (status !== "unknown" || !output) return result || output;
  return `${output}\n[the output above was shown, but not stored]\n${result}`;
}

function cameWords({ status, summary, title, asking }) {
  if (status === "running") return asking ? "needs your answer" : "";
  if (status === "background" || !summary) return WORDS[status] ?? "";
  return title && summary.startsWith(title) ? summary.slice(title.length).trim() : summary;
}

function isRunning({ status }) {
  return status === "running" || status === "background";
}
