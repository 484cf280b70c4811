// Reads what sub-agents do, and their own sub-agents. Both are in their own logs only, so the page
// asks for them regularly while any of them runs.

import { withOffspring } from "../state/children.js";
import { api } from "../wire/api.js";
import { ApiProblem } from "../wire/problem.js";

const EVERY_MS = 2_000;
const DEPTH_MAX = 4;
const ASKED_MAX = 20;

export function watchOffspring(store) {
  let asking = false;
  const look = async () => {
    const { session } = store.get();
    const running = Object.values(session?.children ?? {}).filter(hasRunning);
    if (asking || document.hidden || !running.length) return;
    asking = true;
    try {
      for (const child of running.slice(-ASKED_MAX)) {
        const [doing, below] = await seenOf(child.id, 1);
        store.set(({ session: now }) =>
          now?.id === session.id ? { session: withOffspring(now, child.id, doing, below) } : {},
        );
      }
    } catch (problem) {
      if (!(problem instanceof ApiProblem)) throw problem;
    } finally {
      asking = false;
    }
  };
  setInterval(look, EVERY_MS);
}

// Returns what a sub-agent is doing, in words, and the sub-agents below it.
async function seenOf(id, depth) {
  const { calls = [], children = [] } = await api.session(id);
  const found = [];
  for (const child of children.slice(-ASKED_MAX)) {
    const goesOn = depth < DEPTH_MAX && isRunning(child);
    const [doing, below] = goesOn ? await seenOf(child.id, depth + 1) : ["", []];
    found.push({ ...child, doing, below });
  }
  return [calls.map(({ title, name }) => title || name).join(", "), found];
}

function isRunning({ state }) {
  return state === "running";
}

// One that has ended is asked about once more, for the end of the sub-agents below it.
function hasRunning(child) {
  return isRunning(child) || (child.below ?? []).some(hasRunning);
}
