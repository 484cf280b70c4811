// A conversation from elsewhere that a session begins with, such as the one it was forked from. It
// is shown before everything else, and is not part of the session's own items.

import { textOf } from "./change.js";

const END = "The messages above are from another session. This one continues from there.";

function imported(state, { messages }) {
  const said = messages.flatMap((message, place) => shown(message, `h-${place}`));
  const end = { key: "h-end", kind: "notice", text: END };
  return { ...state, history: said.length ? [...said, end] : [] };
}

function shown({ type, content = [] }, key) {
  if (type === "tool") return [];
  const told = type === "user" ? notesIn(content) : 0;
  const notes = content
    .slice(0, told)
    .map(({ text }, place) => ({ key: `${key}-n${place}`, kind: "notice", text }));
  return [...notes, ...spoken({ type, content: content.slice(told) }, key)];
}

// Returns how many parts the engine put in front of the user's words, for the model to read.
function notesIn(content) {
  const isNote = ({ type, text = "" }) => type === "text" && /^\[[^]*\]$/.test(text);
  const first = content.findIndex((part) => !isNote(part));
  return first === -1 ? Math.max(0, content.length - 1) : first;
}

function spoken({ type, content }, key) {
  const text = textOf(content);
  const calls = content.filter((part) => part.type === "tool_call").map(({ name }) => name);
  const items = text ? [{ key, kind: "history", role: type, text }] : [];
  const used = { key: `${key}-c`, kind: "notice", text: `Used ${calls.join(", ")}` };
  return calls.length ? [...items, used] : items;
}

export const historyHandlers = { history_imported: imported };
