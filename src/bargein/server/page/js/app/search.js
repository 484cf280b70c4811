// Searches while somebody types: names at once, texts a moment after the last letter.

import { api } from "../wire/api.js";

const WAIT_MS = 200;
const CHARACTERS = 200;

/** Call it with the text of the field. */
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
    // The text may have changed meanwhile; then another answer is on its way.
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

// One letter matches nearly everything; one Chinese character is a word.
function isEnough(words) {
  return words.length > 1 || words > "\u0e00";
}
