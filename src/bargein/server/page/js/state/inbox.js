// Messages from their acceptance until a turn takes them: what waits, in which order, and why.

import { appended, patched, textOf } from "./change.js";
import { imagesOf } from "./content.js";

const LANES = { started: "next", steering: "steer", interrupting: "next" };

// Decides where a message waits. One that came too late to stop its turn is next; news from the
// background join a turn that goes on.
function laneOf({ turn, phase }, { mode }, disposition) {
  if (disposition !== "queued") return LANES[disposition] ?? "queue";
  if (mode === "queue") return "queue";
  const goesOn = turn !== null && phase !== "stopping";
  return mode === "steer" && goesOn ? "steer" : "next";
}

function accepted(state, { message, disposition, target }, { at, seq }) {
  const known = {
    id: message.id,
    key: `m-${message.id}`,
    kind: "message",
    text: textOf(message.content),
    images: imagesOf(message.content),
    attachments: (message.attachments ?? []).map((each) => each.name),
    mode: message.mode,
    sender: message.sender,
    clientId: message.client_id ?? null,
    disposition,
    target: target ?? null,
    lane: laneOf(state, message, disposition),
    fate: "waiting",
    at,
    seq,
  };
  return {
    ...state,
    messages: { ...state.messages, [message.id]: known },
    inbox: appended(state.inbox, message.id),
  };
}

function edited(state, { message, content, by }) {
  if (state.messages[message] === undefined) return state;
  const changes = { text: textOf(content), images: imagesOf(content), editedBy: by };
  return { ...state, messages: patched(state.messages, message, changes) };
}

function moved(state, { order }) {
  return { ...state, inbox: [...order] };
}

function withdrawn(state, { message, by }, { at }) {
  if (state.messages[message] === undefined) return state;
  const messages = patched(state.messages, message, { fate: "withdrawn", by, endedAt: at });
  const inbox = state.inbox.filter((each) => each !== message);
  const item = { key: `w-${message}`, kind: "withdrawn", text: messages[message].text, by, at };
  return {
    ...state,
    messages,
    inbox,
    held: state.held && inbox.length > 0,
    items: appended(state.items, item),
  };
}

export const inboxHandlers = {
  message_accepted: accepted,
  message_edited: edited,
  message_moved: moved,
  message_withdrawn: withdrawn,
  queue_held: (state) => ({ ...state, held: true }),
  queue_released: (state) => ({ ...state, held: false }),
};

/** Moves messages that a turn took from the inbox into the conversation. */
export function taken(state, turn, ids, how, at) {
  let { messages, items } = state;
  for (const [place, id] of ids.entries()) {
    const leads = how === "started" && place === 0;
    messages = patched(messages, id, { fate: "taken", turn, how, leads, takenAt: at });
    const message = { kind: "message", key: `m-${id}`, id, ...messages[id] };
    if (message.text !== undefined) items = appended(items, message);
  }
  const gone = new Set(ids);
  return { ...state, messages, items, inbox: state.inbox.filter((each) => !gone.has(each)) };
}

/** Returns all that people said in a turn. */
export function wordsOfTurn({ messages }, turn) {
  const said = Object.values(messages).filter((each) => each.turn === turn);
  return said
    .sort((one, other) => one.takenAt - other.takenAt)
    .map((each) => each.text)
    .join("\n");
}

/** Returns the waiting messages in the order in which they will be taken. */
export function waitingMessages({ inbox, messages }) {
  const waiting = inbox.map((id) => messages[id]).filter(Boolean);
  const queued = (message) => message.lane === "queue";
  return [...waiting.filter((each) => !queued(each)), ...waiting.filter(queued)];
}
