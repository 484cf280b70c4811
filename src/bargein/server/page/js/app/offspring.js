// Reads the sub-agents of sub-agents. Each is in the log of its own parent only, so the page asks
// for the deeper ones regularly while any of them runs.

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
        const below = await childrenOf(child.id, 1);
        store.set(({ session: now }) =>
          now?.id === session.id ? { session: withOffspring(now, child.id, below) } : {},
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

async function childrenOf(id, depth) {
  const { children = [] } = await api.session(id);
  const found = [];
  for (const child of children.slice(-ASKED_MAX)) {
    const deeper =
      depth < DEPTH_MAX && isRunning(child) ? await childrenOf(child.id, depth + 1) : [];
    found.push({ ...child, below: deeper });
  }
  return found;
}

function isRunning({ state }) {
  return state === "running";
}

// One that has ended is asked about once more, for the end of the sub-agents below it.
function hasRunning(child) {
  return isRunning(child) || (child.below ?? []).some(hasRunning);
}
