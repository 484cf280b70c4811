// Searching while somebody types: names at once, what was said a moment after the last letter.

import { api } from "../wire/api.js";

const WAIT_MS = 200;
const CHARACTERS = 200;

/** Call it with what stands in the field. */
export function createSearch(store) {
  let timer = null;

  const look = async (words) => {
    let hits;
    try {
      hits = { words, found: (await api.search(words)).found, problem: null };
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      hits = { words, found: [], problem };
    }
    // The field may have gone on meanwhile; then another answer is on its way.
    if (wordsOf(store.get().filter) === words) store.set({ hits });
  };

  return (text) => {
    clearTimeout(timer);
    const words = wordsOf(text);
    store.set({ filter: text });
    if (isEnough(words)) timer = setTimeout(look, WAIT_MS, words);
    else store.set({ hits: null });
  };
}

function wordsOf(text) {
  return text.trim().slice(0, CHARACTERS).trim();
}

// One letter is in nearly everything; one character of Chinese is a word.
function isEnough(words) {
  return words.length > 1 || words > "\u0e00";
}
