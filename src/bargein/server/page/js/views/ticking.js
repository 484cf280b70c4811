// Running times: one timer for all of them on the screen.

import { setText } from "../dom.js";

const TICK_MS = 200;
const shown = new Map();

/** Keeps the text of `node` equal to `words()` for as long as it is in the document. */
export function ticking(node, words) {
  shown.set(node, words);
}

setInterval(() => {
  for (const [node, words] of shown) {
    if (node.isConnected) {
      setText(node, words());
      node.dataset.seen = "yes";
    } else if (node.dataset.seen) {
      shown.delete(node);
    }
  }
}, TICK_MS);
