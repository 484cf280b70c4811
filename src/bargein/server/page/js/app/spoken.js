// What a screen reader is told of a conversation: whole things as they are said, not each letter.

import { firstLine } from "../format.js";
import { receiptLine } from "../state/receipt.js";
import { announce } from "./tell.js";

const CHARACTERS = 300;

/** Call it with each new state of the session. */
export function createSpoken() {
  let id = null;
  let last = 0;
  return (session) => {
    if (session === null) return;
    if (session.id !== id || session.items.length < last) {
      id = session.id;
      last = session.items.length;
      return;
    }
    for (const item of session.items.slice(last)) {
      const words = wordsOf(item, session);
      if (words) announce(words);
    }
    last = session.items.length;
  };
}

function wordsOf(item, session) {
  switch (item.kind) {
    case "answer":
      return `Answer: ${firstLine(item.text, CHARACTERS)}`;
    case "settled":
      return item.receipt ? receiptLine(item.receipt) : `The turn ${item.outcome}`;
    case "question":
      return `Question: ${session.questions[item.id].text}`;
    case "call":
      return `Runs ${session.calls[item.id].title}`;
    default:
      return "";
  }
}
