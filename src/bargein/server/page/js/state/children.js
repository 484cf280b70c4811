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

/** Returns the session with what one of its sub-agents is doing, and the sub-agents below it. */
export function withOffspring(state, child, doing, below) {
  const known = state.children[child];
  if (known === undefined) return state;
  const shown = (each, under) => JSON.stringify([each, under]);
  if (shown(known.doing ?? "", known.below ?? []) === shown(doing, below)) return state;
  return { ...state, children: patched(state.children, child, { doing, below }) };
}

/** Returns the running sub-agents, and those of the last turn. */
export function shownChildren(state, turn) {
  const children = Object.values(state.children);
  return children.filter((each) => each.state === "running" || each.turn === turn?.id);
}
