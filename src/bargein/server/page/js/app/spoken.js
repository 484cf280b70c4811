// Text for screen readers: whole items of the conversation, not each letter. And a note for
// everybody when something in the background has ended.

import { firstLine } from "../format.js";
import { receiptLine } from "../state/receipt.js";
import { announce, toast } from "./tell.js";

const CHARACTERS = 300;

/** Call it with each new state of the session. */
export function createSpoken() {
  let id = null;
  let last = 0;
  let background = [];
  return (session) => {
    if (session === null) return;
    const before = background;
    background = beside(session);
    if (session.id !== id || session.items.length < last) {
      id = session.id;
      last = session.items.length;
      return;
    }
    const going = new Set(background.map((each) => each.id));
    for (const each of before.filter(({ id: known }) => !going.has(known))) {
      const now = session.calls[each.id] ?? session.children[each.id];
      if (now === undefined) continue;
      const words = endedInBackground(now);
      announce(words);
      toast(words);
    }
    for (const item of session.items.slice(last)) {
      const words = wordsOf(item, session);
      if (words) announce(words);
    }
    last = session.items.length;
  };
}

// Returns what runs without a turn: calls, and detached sub-agents.
function beside({ calls, children }) {
  return [
    ...Object.values(calls).filter((call) => call.status === "background"),
    ...Object.values(children).filter((child) => child.detached && child.state === "running"),
  ];
}

function endedInBackground({ title, name, task, status, outcome, summary }) {
  const what = firstLine(title || name || task, CHARACTERS);
  const came = summary && summary.startsWith(what) ? summary.slice(what.length).trim() : summary;
  return `In the background: ${what}: ${came || status || outcome}`;
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
