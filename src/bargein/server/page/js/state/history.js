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
  const text = textOf(content);
  const calls = content.filter((part) => part.type === "tool_call").map(({ name }) => name);
  const items = text ? [{ key, kind: "history", role: type, text }] : [];
  const used = { key: `${key}-c`, kind: "notice", text: `Used ${calls.join(", ")}` };
  return calls.length ? [...items, used] : items;
}

export const historyHandlers = { history_imported: imported };
