// One WebSocket to one session: receives its events, sends operations and matches replies by id.
// A browser has room for hundreds of these beside its six HTTP connections.

import { ApiProblem, offline, problemIn } from "./problem.js";

const OPEN_MS = 10_000;
const QUIET_MS = 15_000;
const PONG_MS = 10_000;
const TICK_MS = 5_000;
const PENDING_MAX = 24;
const UNSENT_BYTES_MAX = 1_000_000;

/**
 * Calls `opened()` when it is open, `take(entry)` with each event, `clock(at)` with the server's
 * time, and `ended(problem)` once at the end, with `unopened` if it never opened.
 */
export function connect(session, path, ticket, { opened, take, clock, ended }) {
  const address = new URL(path, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address, ["bargein.v1", `bargein.ticket.${ticket}`]);
  const pending = new Map();
  let number = 0;
  let isOpen = false;
  let heardAt = Date.now();
  let pingedAt = null;
  let over = false;

  const end = (problem) => {
    if (over) return;
    over = true;
    clearTimeout(patience);
    clearInterval(ticking);
    socket.close();
    const lost = offline("The connection was lost before the server answered.");
    for (const { reject } of pending.values()) reject(lost);
    pending.clear();
    ended(problem);
  };
  const unopened = () => new ApiProblem(0, "unopened", "No WebSocket could be opened.");
  const patience = setTimeout(() => isOpen || end(unopened()), OPEN_MS);

  const perform = (name, params, body) =>
    new Promise((resolve, reject) => {
      number += 1;
      const id = String(number);
      pending.set(id, { resolve, reject });
      socket.send(JSON.stringify({ id, do: name, params, body: body ?? {} }));
    });

  // Timers of a page in the background are late: only a ping without an answer counts.
  const ping = () => {
    if (pingedAt !== null || !isOpen) return;
    pingedAt = Date.now();
    perform("ping").then(
      ({ at }) => clock(at * 1000),
      () => {},
    );
  };
  const look = () => {
    const now = Date.now();
    if (pingedAt !== null && now - pingedAt > PONG_MS) {
      end(offline("The server has stopped answering."));
    } else if (now - heardAt > QUIET_MS) ping();
  };
  const ticking = setInterval(look, TICK_MS);

  socket.addEventListener("open", () => {
    isOpen = true;
    opened();
    ping();
  });
  socket.addEventListener("close", () => end(isOpen ? offline() : unopened()));
  socket.addEventListener("message", ({ data }) => {
    heardAt = Date.now();
    pingedAt = null;
    if (over) return;
    const entry = JSON.parse(data);
    if (entry.type === "reply") answered(pending, entry);
    else if (entry.type === "cut_off") end(problemOfCut(entry));
    else handOver(entry, take, end);
  });

  return {
    session,
    /** Whether it can send one more command, such as a stop, right now. */
    takes: () =>
      isOpen && !over && pending.size < PENDING_MAX && socket.bufferedAmount < UNSENT_BYTES_MAX,
    perform,
    ping,
    close: () => end(null),
  };
}

function answered(pending, { id, status, body }) {
  const waiting = pending.get(id);
  pending.delete(id);
  if (status < 400) waiting?.resolve(body);
  else waiting?.reject(problemIn(status, body));
}

function problemOfCut({ reason, detail }) {
  if (reason === "revoked") return new ApiProblem(401, "unauthenticated", detail);
  if (reason === "session_gone") return new ApiProblem(404, "not_found", detail);
  if (reason === "unreadable") return new ApiProblem(422, "unreadable", detail);
  if (reason === "unavailable") return new ApiProblem(503, "unavailable", detail);
  return offline();
}

// An error in our own code ends the stream for good: it is shown, and not tried again.
function handOver(entry, take, end) {
  try {
    take(entry);
  } catch (fault) {
    end(pageFault(fault));
  }
}

export function pageFault(fault) {
  reportError(fault);
  return new ApiProblem(0, "page_fault", "The page cannot show what has happened. Reload it.");
}
