// The line above the conversation: the session and what it is doing. Below it: problems.

import { button, fillWith, h, setText } from "../dom.js";
import { duration, shownPhase } from "../format.js";
import { openQuestions, runningCalls } from "../state/calls.js";
import { isNew, pendingStop } from "../state/pending.js";
import { isBusy } from "../state/turns.js";

export function barView(node, banner, store, actions, watcher, drawers) {
  const title = h("h1");
  const crumb = h("a", { class: "crumb" }, "↑ parent");
  const dot = h("span", { class: "dot" });
  const words = h("span");
  const more = h("span", { class: "more" });
  const told = h("span", {}, words, more);
  const pause = button("Pause", {
    does: () => (isPaused() ? actions.resume() : actions.pause()),
    kind: "quiet",
  });
  const share = button("Share", { does: () => actions.share(), kind: "quiet share" });
  const isPaused = () => store.get().session?.phase === "paused";
  fillWith(
    node,
    button("☰", {
      does: () => drawers.toggle("sessions"),
      name: "Sessions",
      kind: "quiet drawer for-sessions",
    }),
    crumb,
    h("div", { class: "name" }, title, h("span", { class: "state" }, dot, told)),
    pause,
    share,
    button("Activity", {
      does: () => drawers.toggle("now"),
      name: "What is going on",
      kind: "quiet drawer for-now",
    }),
  );
  const problem = h("span");
  const again = button("Try now", { does: () => watcher.again() });
  fillWith(banner, problem, again);

  return (state) => {
    const { session, connection } = state;
        dot.hidden = session === null && pendingStop(state) === undefined;
    const listed = state.sessions.find((each) => each.id === state.current);
    const parent = state.current?.includes("/")
      ? state.current.slice(0, state.current.lastIndexOf("/"))
      : null;
    crumb.hidden = parent === null;
    if (parent !== null) crumb.href = `#/s/${encodeURIComponent(parent)}`;
    const unnamed = isNew(state.current) ? "New session" : "Untitled";
    const name = session?.title || listed?.title || (parent === null ? unnamed : "Sub-agent");
    title.className = state.current === null ? "at-home" : "";
    setText(title, state.current === null ? "Bargein" : name);
    document.title = state.current === null ? "Bargein" : `${marks(session)}${name} · Bargein`;
    const busy = session !== null && isBusy(session);
    const stopping = pendingStop(state) !== undefined;
    const mayPause = busy && !stopping && session.phase !== "stopping";
    pause.hidden = !mayPause || session.access === "read";
    share.hidden = session?.access !== "own" || state.current.includes("/");
    setText(pause, session?.phase === "paused" ? "Resume" : "Pause");
    const shown = stopping ? "stopping" : session === null ? "" : phaseOf(session);
    dot.className = `dot ${isAway(connection) ? "" : shown}`;
    const [said, besides] = stateWords(state);
    setText(words, said);
    setText(more, besides ?? "");
    showBanner(banner, problem, again, connection);
  };
}

function phaseOf(session) {
  return shownPhase({ ...session, asking: openQuestions(session).length });
}

function marks(session) {
  if (session === null) return "";
  if (openQuestions(session).length) return "? ";
  return isBusy(session) ? "● " : "";
}

const STOP_WORDS = { unanswered: ": no answer yet", undelivered: ": not delivered yet" };

// Returns what the session is doing in a word or two, and details for where there is room.
function stateWords(state) {
  const { session, connection, clockOffset } = state;
  const stop = pendingStop(state);
  if (isAway(connection)) return ["Not connected"];
  if (stop !== undefined) return ["Stopping", STOP_WORDS[stop.state]];
  if (session === null) return [""];
  const turn = session.turns[session.turn];
  const since = turn
    ? ` · ${duration(Math.max(0, Date.now() + clockOffset - turn.startedAt))}`
    : "";
  switch (phaseOf(session)) {
    case "asking":
      return ["Needs your answer"];
    case "running":
      return ["Working", since];
    case "stopping":
      return ["Stopping"];
    case "paused":
      return ["Paused", " at the next step"];
    case "ended":
      return ["Ended"];
    case "held":
      return ["Held", ": your messages wait"];
    default: {
      const beside = runningCalls(session).length;
      return ["Ready", beside ? ` · ${beside} in the background` : ""];
    }
  }
}

// Without a connection, the last known activity may be outdated, so it is not shown.
function isAway({ state, problem }) {
  return state === "waiting" && problem !== null;
}

const LIMITED =
  "WebSockets do not get through to the server, so this page updates only every few seconds. " +
  "Messages and stops are still sent at once. A proxy on the way has to let WebSockets through.";

function showBanner(banner, told, again, { state, problem, limited }) {
  const refused = state === "refused";
  const waiting = state === "waiting" && problem !== null;
  banner.hidden = !refused && !waiting && !limited;
  if (banner.hidden) return;
  banner.classList.toggle("refused", refused);
  again.hidden = refused;
  if (limited) setText(told, LIMITED);
  else if (refused) setText(told, problem.message);
  else setText(told, `${problem.message} This does not stop the turn. Reconnecting …`);
}
