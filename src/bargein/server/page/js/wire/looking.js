// If no WebSocket gets through: reads a session's events by short requests, so that no HTTP
// connection is held for long.

import { api, authorization } from "./api.js";
import { offline, problemOf } from "./problem.js";
import { pageFault } from "./socket.js";
import { sseReader } from "./sse.js";

const LOOK_MS = 1_000;
const ANSWER_MS = 10_000;

/** Reads the events after `after` and the answer so far, then returns. */
export async function look(id, after, { opened, take }) {
  const abort = new AbortController();
  let timer = setTimeout(() => abort.abort(), ANSWER_MS);
  try {
    const response = await fetch(api.eventsPath(id, after), {
      headers: { accept: "text/event-stream", ...authorization() },
      credentials: "omit",
      cache: "no-store",
      signal: abort.signal,
    }).catch(() => {
      throw offline();
    });
    if (!response.ok) throw await problemOf(response);
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(), LOOK_MS);
    opened();
    await readAll(response, take);
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

async function readAll(response, take) {
  const feed = sseReader((data) => {
    const entry = JSON.parse(data);
    try {
      if (entry.type !== "cut_off") take(entry);
    } catch (fault) {
      throw pageFault(fault);
    }
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) return;
    feed(value);
  }
}
