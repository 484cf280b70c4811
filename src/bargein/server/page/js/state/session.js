// One session as the page knows it: a value that one pure function makes from the events of its log
// and from the live parts between them. Nothing here touches the document, the network or the
// clock: `now` comes in, in milliseconds of the server's clock.
//
//   history    what was said elsewhere, before the session began
//   items      what the conversation shows, in order; calls and questions by their ids
//   live       answers that are still streaming, oldest first
//   inbox      ids of the waiting messages, in order; `held` if they wait for the user
//   turns      by id, each with its bars for the timeline
//   seq        the last event that was applied; a smaller one is ignored
//   since      the first event that was applied; above 1 if older ones were not read
//   restored   how many undos of files can be taken back
//   toldTurn   the turn that the server said was running; the log may not be read as far yet

import { callOver, modelOver } from "./bars.js";
import { callHandlers, toolStepBegan, withRunningCall } from "./calls.js";
import { outcomeOf } from "./change.js";
import { childHandlers } from "./children.js";
import { historyHandlers } from "./history.js";
import { inboxHandlers } from "./inbox.js";
import { NOTHING_PERMITTED, permissionHandlers, withPermits } from "./permission.js";
import { modelStepBegan, talkHandlers } from "./talk.js";
import { newTurn, turnHandlers } from "./turns.js";
import { NOTHING_USED, usedHandlers } from "./used.js";

const HANDLERS = {
  ...talkHandlers,
  ...turnHandlers,
  ...inboxHandlers,
  ...historyHandlers,
  ...callHandlers,
  ...childHandlers,
  ...usedHandlers,
  ...permissionHandlers,
  step_began: stepBegan,
  step_over: stepOver,
};

function stepBegan(state, event, when) {
  if (event.kind === "model") return modelStepBegan(state, event, when);
  return event.kind === "tool" && event.call_id ? toolStepBegan(state, event, when) : state;
}

function stepOver(state, event, { at }) {
  const { turn, kind, status, call_id: id } = event;
  if (kind === "model") return { ...state, turns: modelOver(state.turns, turn, at, status) };
  if (kind !== "tool") return state;
  return { ...state, turns: callOver(state.turns, turn, id, at, outcomeOf(event)) };
}

/** Makes a session of which nothing is known yet. The log is read from the event `after`. */
export function emptySession(id, after = 0) {
  return {
    id,
    title: null,
    seq: after,
    since: after + 1,
    phase: "idle",
    turn: null,
    held: false,
    history: [],
    items: [],
    live: [],
    inbox: [],
    messages: {},
    turns: {},
    calls: {},
    questions: {},
    children: {},
    used: NOTHING_USED,
    permits: NOTHING_PERMITTED,
    restored: 0,
    toldTurn: null,
    ended: false,
  };
}

/** Returns the session after one entry of its stream: a recorded event or a live part. */
export function reduce(state, entry, now) {
  if (entry.event === undefined) return apply(state, entry, { at: now, seq: null });
  if (entry.seq <= state.seq) return state;
  const next = apply(state, entry.event, { at: entry.at * 1000, seq: entry.seq });
  return { ...next, items: placed(next.items, state.items.length, entry.seq), seq: entry.seq };
}

// Notes which event brought the new items of the conversation.
function placed(items, known, place) {
  if (items.length <= known) return items;
  return [...items.slice(0, known), ...items.slice(known).map((item) => ({ ...item, place }))];
}

/** Returns the place of this event's text among the items, or -1. */
export function itemAt({ items }, seq) {
  const said = ({ kind, place }) => (kind === "message" || kind === "answer") && place <= seq;
  return items.findLastIndex(said);
}

/** Takes what is not in the log from the server's detail: see `SessionDetail` of the API. */
export function withDetail(state, detail, now) {
  const { session, calls = [], questions = [], children = [], members = {} } = detail;
  const { title, access, owner } = session;
  let next = { ...withPermits(state, detail), title, access, owner, members };
  next.toldTurn = session.turn;
  const when = { at: session.updated_at * 1000, seq: null };
  if (session.turn !== null && state.since > 1 && state.turns[session.turn] === undefined) {
    // It began before the part of the log that was read.
    next.turn = session.turn;
    next.turns = { ...state.turns, [session.turn]: newTurn(session.turn, when.at) };
  }
  if (session.turn !== null && next.turn === session.turn) next.phase = session.phase;
  for (const each of state.since > 1 ? calls : []) next = withRunningCall(next, each, now);
  for (const each of questions) next = apply(next, { type: "question_asked", ...each }, when);
  for (const each of children) {
    if (next.children[each.id] === undefined) {
      next = {
        ...next,
        children: { ...next.children, [each.id]: { ...each, startedAt: when.at } },
      };
    }
  }
  return next;
}

/** Marks streaming text as stale when the stream starts again: the server sends it again. */
export function reconnected(state) {
  return { ...state, live: state.live.map((each) => ({ ...each, stale: true })) };
}

/** Takes the waiting messages from the server's list, for a log not read from its beginning. */
export function withInbox(state, { held, messages }) {
  const known = { ...state.messages };
  for (const { message, lane } of messages) {
    known[message.id] = { ...messageOf(message), fate: "waiting", lane, ...known[message.id] };
  }
  return { ...state, held, messages: known, inbox: messages.map((each) => each.message.id) };
}

function messageOf(message) {
  const text = message.content.map((part) => part.text ?? "[image]").join("\n");
  return { id: message.id, text, mode: message.mode, sender: message.sender };
}

function apply(state, event, when) {
  const handler = HANDLERS[event.type];
  return handler === undefined ? state : handler(state, event, when);
}
