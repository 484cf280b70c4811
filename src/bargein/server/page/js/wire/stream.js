// Reads the events of one session until it is closed. It reconnects by itself, after the last event
// it has seen, so that nothing is missed and nothing comes twice.

import { api, setLine } from "./api.js";
import { look } from "./looking.js";
import { ApiProblem, offline } from "./problem.js";
import { connect, pageFault } from "./socket.js";

const FIRST_DELAY_MS = 250;
const LAST_DELAY_MS = 5_000;
const LOOK_EVERY_MS = 3_000;
// With a ticket no socket opened: something in between lets none through.
const UNOPENED_MAX = 2;
const LOOKS_BEFORE_RETRY = 20;

/**
 * `seq()` returns the last known event. It calls `take(entry)` with each entry, `clock(at)` with
 * the server's time, and `tell(connection)` with `connecting`, `open` (`limited` without a
 * WebSocket), `waiting` (with `until` and the `problem`) and `refused`, which is the last.
 */
export function openStream(id, { seq, take, clock, tell }) {
  let closed = false;
  let socket = null;
  let wake = () => {};
  let unopened = 0;
  let looks = 0;

  const hurry = () => {
    socket?.ping();
    wake();
  };
  /** Tries a WebSocket again, because a person asked for it. */
  const again = () => {
    looks = LOOKS_BEFORE_RETRY;
    hurry();
  };
  window.addEventListener("online", hurry);
  const close = () => {
    closed = true;
    socket?.close();
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

  const talk = async (opened) => {
    const { ticket } = await api.ticket(id, seq());
    if (closed) return null;
    return new Promise((resolve) => {
      socket = connect(id, api.socketPath(id, seq()), ticket, {
        opened() {
          setLine(socket);
          opened({ limited: false });
        },
        take,
        clock,
        ended(problem) {
          setLine(null);
          socket = null;
          resolve(problem);
        },
      });
    });
  };

  // Without a WebSocket: asks for events regularly while the page is visible.
  const glance = async (opened) => {
    looks += 1;
    if (!document.hidden) await look(id, seq(), { opened: () => opened({ limited: true }), take });
    await pause(LOOK_EVERY_MS);
    return null;
  };

  const run = async () => {
    let failures = 0;
    let last = null;
    const opened = ({ limited }) => {
      failures = 0;
      last = null;
      if (!limited) unopened = 0;
      tell({ state: "open", problem: null, limited });
    };
    while (!closed) {
      const limited = unopened >= UNOPENED_MAX && looks < LOOKS_BEFORE_RETRY;
      if (!limited) looks = 0;
      if (unopened < UNOPENED_MAX)
        tell({ state: last === null ? "connecting" : "waiting", problem: last });
      const problem = await (limited ? glance : talk)(opened).catch(problemOfFault);
      if (closed) return;
      if (problem?.code === "unopened") unopened += 1;
      else if (!limited) unopened = 0;
      if (unopened >= UNOPENED_MAX && (problem === null || problem.code === "unopened")) continue;
      last = problem?.code === "unopened" ? offline(problem.message) : (problem ?? offline());
      if (!last.passes) {
        tell({ state: "refused", problem: last });
        return;
      }
      const wait =
        Math.min(FIRST_DELAY_MS * 2 ** failures, LAST_DELAY_MS) * (0.75 + Math.random() / 2);
      failures += 1;
      tell({ state: "waiting", problem: last, until: Date.now() + wait });
      await pause(wait);
    }
  };
  run();
  return { close, hurry, again };
}

function problemOfFault(error) {
  return error instanceof ApiProblem ? error : pageFault(error);
}
