// The events of one session, for as long as they are wanted. It connects again by itself, from the
// last event that was seen, so that nothing is missed and nothing comes twice. By `fetch` and not
// by EventSource, which hides why a server refused.

import { api } from "./api.js";
import { ApiProblem, offline, problemOf } from "./problem.js";
import { sseReader } from "./sse.js";

const SILENCE_MS = 45_000;
const FIRST_DELAY_MS = 250;
const LAST_DELAY_MS = 5_000;

/**
 * `seq()` is the last event that is known; `take(entries)` gets what came, a batch at a time;
 * `tell(connection)` hears `connecting`, `open`, `waiting` (with `until` and the `problem`) and
 * `refused`, after which it is over. The function that is returned closes it.
 */
export function openStream(id, { seq, take, tell, delayMs = FIRST_DELAY_MS }) {
  let closed = false;
  let abort = new AbortController();
  let wake = () => {};

  const hurry = () => wake();
  window.addEventListener("online", hurry);
  const close = () => {
    closed = true;
    abort.abort();
    wake();
    window.removeEventListener("online", hurry);
  };

  const pause = (ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const run = async () => {
    let failures = 0;
    let last = null;
    while (!closed) {
      tell({ state: last === null ? "connecting" : "waiting", problem: last });
      abort = new AbortController();
      let problem = offline();
      try {
        await readOnce(id, seq(), abort, take, (date) => {
          failures = 0;
          last = null;
          tell({ state: "open", problem: null, date });
        });
      } catch (error) {
        if (error instanceof ApiProblem) problem = error;
      }
      if (closed) return;
      if (!problem.passes) {
        tell({ state: "refused", problem });
        return;
      }
      last = problem;
      const wait = Math.min(delayMs * 2 ** failures, LAST_DELAY_MS) * (0.75 + Math.random() / 2);
      failures += 1;
      tell({ state: "waiting", problem, until: Date.now() + wait });
      await pause(wait);
    }
  };
  run();
  return { close, hurry };
}

async function readOnce(id, after, abort, take, opened) {
  const response = await fetch(api.eventsPath(id, after), {
    headers: { accept: "text/event-stream" },
    credentials: "same-origin",
    cache: "no-store",
    signal: abort.signal,
  });
  if (!response.ok) throw await problemOf(response);
  opened(response.headers.get("date"));
  let batch = [];
  let cut = null;
  const feed = sseReader((data) => {
    const entry = JSON.parse(data);
    if (entry.type === "cut_off") cut = entry;
    else batch.push(entry);
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  while (cut === null) {
    const { done, value } = await within(reader.read(), SILENCE_MS, abort);
    if (done) return;
    feed(value);
    if (batch.length) handOver(batch, take);
    batch = [];
  }
  abort.abort();
  if (cut.reason === "revoked") throw new ApiProblem(401, "unauthenticated", cut.detail);
  if (cut.reason === "session_gone") throw new ApiProblem(404, "not_found", cut.detail);
}

// A fault of our own is not the network's: it is told, and not tried again.
function handOver(batch, take) {
  try {
    take(batch);
  } catch (fault) {
    reportError(fault);
    throw new ApiProblem(0, "page_fault", "The page cannot show what has happened. Reload it.");
  }
}

// A server that says nothing for long, not even that it is alive, is taken for gone.
async function within(promise, ms, abort) {
  const timer = setTimeout(() => abort.abort(), ms);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}
