// Turns: started, interrupted, settled; and with them what the session is doing.

import { appended, patched } from "./change.js";
import { firstBars, lastBars } from "./bars.js";
import { taken } from "./inbox.js";
import { neverSaid } from "./talk.js";

/** Makes a running turn whose beginning was not read, because the log is read from its middle. */
export function newTurn(id, at, bars = []) {
  return { id, startedAt: at, settledAt: null, outcome: null, interrupts: [], bars };
}

function started(state, { turn, messages }, { at }) {
  const turns = { ...state.turns, [turn]: newTurn(turn, at, firstBars(at)) };
  const next = { ...state, phase: "running", turn, turns };
  return taken(next, turn, messages, "started", at);
}

function steered(state, { turn, messages }, { at }) {
  return taken(state, turn, messages, "steered", at);
}

function landed(state, { turn, reason, by }, { at }) {
  const known = state.turns[turn] ?? newTurn(turn, at);
  const interrupts = appended(known.interrupts, { at, reason, by });
  return { ...stopping(state, turn), turns: { ...state.turns, [turn]: { ...known, interrupts } } };
}

function paused(state, { turn, paused: isPaused }) {
  const goesOn = state.turn === turn && (state.phase === "running" || state.phase === "paused");
  return goesOn ? { ...state, phase: isPaused ? "paused" : "running" } : state;
}

function stopping(state, turn) {
  return state.turn === turn && state.phase !== "idle" ? { ...state, phase: "stopping" } : state;
}

function settled(state, event, { at }) {
  const { turn, outcome, receipt, error, hidden } = event;
  const known = state.turns[turn] ?? newTurn(turn, at);
  const stoppedAt = known.interrupts[0]?.at ?? (receipt ? at - receipt.elapsed_ms : null);
  const over = {
    ...known,
    settledAt: at,
    outcome,
    receipt: receipt ?? null,
    error: error ?? "",
    stoppedAt,
    bars: lastBars(known.bars, at, stoppedAt, receipt),
  };
  const item = { ...over, key: `t-${turn}`, kind: "settled", turn, at };
  const unsaid = neverSaid(
    state.live.filter((each) => each.turn === turn),
    at,
  );
  const next = {
    ...state,
    messages: steersToNext(state),
    calls: callsInLog(state.calls, turn),
    turns: { ...state.turns, [turn]: over },
    items: outcome === "completed" ? state.items : [...state.items, ...unsaid, item],
    live: state.live.filter((each) => each.turn !== turn),
  };
  const same = state.turn === turn ? { ...next, turn: null, phase: "idle" } : next;
  return hidden ? hide(same, turn) : same;
}

// Drops the calls of a turn that only live events had: the program died before the log did.
function callsInLog(calls, turn) {
  const isLost = (call) => call.turn === turn && !call.listed && call.status !== "background";
  const kept = Object.entries(calls).filter(([, call]) => !isLost(call));
  return kept.length === Object.keys(calls).length ? calls : Object.fromEntries(kept);
}

// A steer that no step took becomes the next message.
function steersToNext({ inbox, messages }) {
  const steers = inbox.filter((id) => messages[id]?.lane === "steer");
  return steers.reduce((known, id) => patched(known, id, { lane: "next" }), messages);
}

// A turn that was rolled back stays on the screen, marked as hidden from the model.
function hide(state, turn) {
  if (state.turns[turn] === undefined) return state;
  const mark = (each) => (each.turn === turn ? { ...each, hidden: true } : each);
  const calls = Object.values(state.calls).map((call) => [call.id, mark(call)]);
  return {
    ...state,
    items: state.items.map(mark),
    calls: Object.fromEntries(calls),
    turns: patched(state.turns, turn, { hidden: true }),
  };
}

// Calls of the turn changed files. The log may say so after the turn's end.
function filesChanged(state, turn) {
  const known = state.turns[turn];
  const next = { ...state, restored: 0 };
  if (known === undefined || known.changedFiles) return next;
  return { ...next, turns: patched(state.turns, turn, { changedFiles: true }) };
}

// Counts the undos of files that can be taken back: new work of calls ends all of them.
function filesRestored(state, { redo }) {
  return { ...state, restored: Math.max(0, state.restored + (redo ? -1 : 1)) };
}

// A message rolled a turn back: what became of its files stands in the conversation.
function filesRolledBack(state, { turn, files, error }, { at }) {
  const restored = state.restored + (files?.span ? 1 : 0);
  const item = { key: `b-${turn}`, kind: "files_back", turn, files, error: error ?? "", at };
  return { ...state, restored, items: appended(state.items, item) };
}

export const turnHandlers = {
  turn_started: started,
  messages_taken: steered,
  interrupt_landed: landed,
  stopping: (state, { turn }) => stopping(state, turn),
  paused,
  turn_settled: settled,
  turn_hidden: (state, { turn }) => hide(state, turn),
  files_changed: (state, { turn }) => filesChanged(state, turn),
  files_restored: filesRestored,
  files_rolled_back: filesRolledBack,
  session_ended: (state) => ({ ...state, phase: "ended", ended: true }),
};

/** Returns the running turn, or else the last one. */
export function latestTurn(state) {
  if (state.turn !== null) return state.turns[state.turn] ?? null;
  let latest = null;
  for (const turn of Object.values(state.turns)) {
    if (latest === null || turn.startedAt >= latest.startedAt) latest = turn;
  }
  return latest;
}

/** Returns the last turn whose calls changed files, or null. */
export function lastChanging({ turns }) {
  return Object.values(turns).findLast((each) => each.changedFiles) ?? null;
}

/** Returns this turn and those that began after it, unless the model does not see them. */
export function turnsFrom({ turns }, turn) {
  const from = turns[turn]?.startedAt ?? Infinity;
  return Object.values(turns).filter((each) => each.startedAt >= from && !each.hidden);
}

/** Returns the turn to stop. The server may know of one that is not in the log yet. */
export function turnToStop({ turn, toldTurn, turns }) {
  if (turn !== null) return turn;
  return toldTurn !== null && !turns[toldTurn]?.settledAt ? toldTurn : null;
}

/** Returns whether a turn runs that a message would affect. */
export function isBusy(state) {
  return state.phase === "running" || state.phase === "stopping" || state.phase === "paused";
}
