// Copies text to the clipboard.

import { button, setText } from "../dom.js";

const TOLD_MS = 1_500;

/** Makes a button that copies the text that `text()` returns, and says so for a moment. */
export function copyButton(text, { name, kind = "quiet" }) {
  const node = button("Copy", { does: () => press(), name, kind });
  let timer = null;
  const press = async () => {
    const done = await copy(text());
    setText(node, done ? "Copied" : "Not copied");
    clearTimeout(timer);
    timer = setTimeout(() => setText(node, "Copy"), TOLD_MS);
  };
  return node;
}

// A page over plain HTTP from another machine has no clipboard of its own: it can only copy what is
// selected.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return done;
}
