// Sub-agents: each is a session of its own, under the call that started it.

import { patched } from "./change.js";
import { callOver, childBegan } from "./bars.js";

function started(state, { turn, call_id: callId, child, task, detached }, { at }) {
  const known = {
    id: child,
    turn,
    callId,
    task,
    detached: detached ?? false,
    state: "running",
    startedAt: at,
  };
  return {
    ...state,
    children: { ...state.children, [child]: known },
    turns: childBegan(state.turns, turn, child, task, at),
  };
}

function ended(state, { child, outcome, summary }, { at }) {
  const turn = state.children[child]?.turn;
  const changes = { id: child, state: "ended", outcome, summary: summary ?? "", endedAt: at };
  return {
    ...state,
    children: patched(state.children, child, changes),
    turns: callOver(state.turns, turn, child, at, outcome === "completed" ? "finished" : outcome),
  };
}

export const childHandlers = { child_started: started, child_ended: ended };

/** Returns the session with the sub-agents below one of its own. */
export function withOffspring(state, child, below) {
  const same = JSON.stringify(state.children[child]?.below ?? []) === JSON.stringify(below);
  if (same || state.children[child] === undefined) return state;
  return { ...state, children: patched(state.children, child, { below }) };
}

/** Returns the running sub-agents, and those of the last turn. */
export function shownChildren(state, turn) {
  const children = Object.values(state.children);
  return children.filter((each) => each.state === "running" || each.turn === turn?.id);
}
