// The model's plan as a list: what is done, what it is at, and what is still open.

import { h } from "../dom.js";

const MARKS = { done: "✓", doing: "▸", open: "○" };
const WORDS = { done: "done", doing: "being done", open: "open" };

/** Returns a list of `{text, state}`. */
export function planNode(items) {
  return h(
    "ol",
    { class: "plan" },
    items.map(({ text, state }) =>
      h(
        "li",
        { class: state },
        h("span", { class: "mark", role: "img", "aria-label": WORDS[state] }, MARKS[state]),
        h("span", {}, text),
      ),
    ),
  );
}
