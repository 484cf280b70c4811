// Stops that are not finished yet. A stop is shown from the moment the key is pressed. It is sent
// until it is answered, until its target is over, or until its author gives up. It names its
// target, so that a late one affects nothing else. A stop of the whole session names no turn, so it
// is sent once: sent again later, it could end what was begun after it.
//
//   asked        on its way
//   unanswered   it is slow: a turn's stop is sent once more, past the socket
//   undelivered  the server could not be reached: it is sent again by itself
//   answered     the receipt is here; the events of the end come at the same moment
//   late         the target was over already, perhaps by an earlier try of this stop

import { runningCalls } from "../state/calls.js";
import { receiptLine } from "../state/receipt.js";
import { isBusy } from "../state/turns.js";
import { api } from "../wire/api.js";
import { createKept, leftOver } from "./kept.js";
import { announce, toast } from "./tell.js";

const KEY = "bargein.stops";
const SLOW_MS = 2_500;
const FIRST_DELAY_MS = 500;
const LAST_DELAY_MS = 5_000;
// The events of the end come a moment before or after the receipt.
const MOMENT_MS = 300;
const LATE_MS = 5_000;
const STOPS_MAX = 50;

/** Stops that an earlier document of this tab left unfinished. */
export function unfinished() {
  return leftOver(KEY)
    .filter(({ scope, turn }) => scope !== "session" && (scope !== "turn" || turn !== null))
    .map((each) => ({ ...each, state: "undelivered", problem: "The page was loaded again." }));
}

export function createStops(store) {
  const change = createKept(store, "stops", KEY);
  const waiting = new Map();
  const timers = new Map();

  const find = (key) => store.get().stops.find((each) => each.key === key);
  const patch = (key, changes) =>
    change((stops) => stops.map((each) => (each.key === key ? { ...each, ...changes } : each)));
  const remove = (key) => {
    clearTimeout(timers.get(key));
    timers.delete(key);
    if (find(key) === undefined) return;
    change((stops) => stops.filter((each) => each.key !== key));
    waiting.get(key)?.resolve();
    waiting.delete(key);
  };

  const request = ({ session, scope, target, turn }) => {
    if (scope === "call") return api.stopCall(session, target);
    if (scope === "session") return api.stopAll(session);
    return scope === "child" ? api.stopChild(session, target) : api.stop(session, turn);
  };

  const answered = (key, receipt) => {
    const stop = find(key);
    if (isDone(stop)) return;
    const { connection } = store.get();
    if (receipt.status === "too_late" && stop.tries > 1) {
      // An earlier try may have done it: the log says so.
      patch(key, { state: "late" });
      setTimeout(late, LATE_MS, key);
      return;
    }
    if (receipt.status === "too_late") {
      toast("Too late: it had already ended. Nothing was changed.");
    } else if (connection.state !== "open" || receipt.stored === false) {
      // A stop that the store could not write has no event.
      toast(receiptLine(receipt));
    } else if (stop.scope !== "turn") announce(receiptLine(receipt));
    patch(key, { state: "answered" });
    setTimeout(remove, connection.state === "open" ? MOMENT_MS : 0, key);
  };

  const late = (key) => {
    if (find(key)?.state === "late") toast("That had already ended when your stop arrived.");
    remove(key);
  };

  const failed = (key, problem) => {
    const stop = find(key);
    if (isDone(stop)) return;
    if (problem.passes && stop.scope !== "session") {
      patch(key, { state: "undelivered", problem: problem.message });
      const wait = Math.min(FIRST_DELAY_MS * 2 ** stop.tries, LAST_DELAY_MS);
      clearTimeout(timers.get(key));
      timers.set(key, setTimeout(deliver, wait * (0.75 + Math.random() / 2), key));
      return;
    }
    if (problem.code === "unauthenticated") {
      // It is sent when its author is back; for anybody else it is dropped.
      patch(key, { state: "undelivered", problem: problem.message });
      store.set({ me: null });
      return;
    }
    toast(`Not stopped. ${problem.message}`);
    remove(key);
  };

  const isLanded = ({ session: id, scope }) => {
    const { session } = store.get();
    return scope === "turn" && session?.id === id && session.phase === "stopping";
  };

  const deliver = async (key) => {
    const stop = find(key);
    if (stop === undefined) return;
    clearTimeout(timers.get(key));
    patch(key, { tries: stop.tries + 1 });
    const done = (receipt) => answered(key, receipt);
    const slow = setTimeout(() => {
      const now = find(key);
      if (isDone(now) || isLanded(now)) return;
      patch(key, { state: "unanswered", tries: now.tries + 1 });
      if (stop.scope === "turn") api.stopByHttp(stop.session, stop.turn).then(done, () => {});
    }, SLOW_MS);
    await request(stop).then(done, (problem) => failed(key, problem));
    clearTimeout(slow);
  };

  // Resolves when the stop is over, in any way.
  const add = (stop) => {
    const key = [stop.session, stop.scope, stop.target ?? stop.turn ?? "?"].join(" ");
    if (find(key) === undefined) {
      const pending = { ...stop, key, state: "asked", since: Date.now(), tries: 0 };
      change((stops) => [...stops, pending].slice(-STOPS_MAX));
      const entry = {};
      entry.promise = new Promise((resolve) => (entry.resolve = resolve));
      waiting.set(key, entry);
      announce("Stopping");
    }
    return key;
  };

  const ask = (stop) => {
    const key = add(stop);
    deliver(key);
    return waiting.get(key)?.promise;
  };

  return {
    ask,
    /** Stops a turn that is not known yet: `turn` resolves to it, or to null. */
    async expect(session, found) {
      const key = add({ session, scope: "turn", turn: null });
      const aim = await found;
      remove(key);
      if (aim !== null) await ask({ session: aim.session, scope: "turn", turn: aim.turn });
    },
    retry: deliver,
    retryAll() {
      for (const { key, state } of store.get().stops) if (state === "undelivered") deliver(key);
    },
    giveUp: remove,
    /** Call it with each state. Drops the stops whose targets are over. */
    follow({ stops, session, connection }) {
      if (!stops.length || session === null || connection.state !== "open") return;
      for (const stop of stops) {
        if (stop.session !== session.id || !isOver(stop, session)) continue;
        const came = session.turns[stop.turn]?.outcome;
        if (stop.tries > 1 && stop.state !== "answered" && came === "completed")
          toast("The turn ended before your stop reached the server.");
        remove(stop.key);
      }
    },
  };
}

function isDone(stop) {
  return stop === undefined || stop.state === "answered" || stop.state === "late";
}

function isOver({ scope, target, turn }, session) {
  const { calls, children, turns } = session;
  if (scope === "call") return Boolean(calls[target]?.endedAt);
  if (scope === "session") return !isBusy(session) && !runningCalls(session).length;
  if (scope === "child") return (children[target]?.state ?? "running") !== "running";
  return Boolean(turns[turn]?.settledAt);
}
