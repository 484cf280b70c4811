// Keeps the session on the screen in step with the server: reads its stream into the store, and
// begins again when another session is opened or more of the past is wanted.

import { emptySession, reconnected, reduce, withDetail, withInbox } from "../state/session.js";
import { api } from "../wire/api.js";
import { ApiProblem } from "../wire/problem.js";
import { openStream } from "../wire/stream.js";

const EVENTS_FIRST = 1_000;
const EVENTS_BEFORE = 100;

export function createWatcher(store, onOpen) {
  let stream = null;
  let wanted = null;

  const stop = () => {
    stream?.close();
    stream = null;
  };

  const take = (id) => (entries) => {
    if (wanted !== id) return;
    store.set(({ clockOffset, session }) => {
      const now = Date.now() + clockOffset;
      return { session: entries.reduce((known, entry) => reduce(known, entry, now), session) };
    });
  };

  const tell = (id) => (connection) => {
    if (wanted !== id) return;
    store.set({ connection });
    if (connection.problem?.code === "unauthenticated") store.set({ me: null });
    if (connection.state !== "open") return;
    store.set(({ session }) => ({
      session: reconnected(session),
      clockOffset: offsetOf(connection.date),
    }));
    onOpen();
    refresh(id);
  };

  // What the log does not tell: who may do what, whether it is paused; and if the log is not read
  // from its beginning, what waits.
  const refresh = async (id) => {
    try {
      const detail = await api.session(id);
      if (wanted !== id) return;
      store.set(({ session }) => ({ session: withDetail(session, detail) }));
      if (store.get().session.since === 1) return;
      const inbox = await api.inbox(id);
      if (wanted === id) store.set(({ session }) => ({ session: withInbox(session, inbox) }));
    } catch (problem) {
      if (!(problem instanceof ApiProblem)) throw problem;
    }
  };

  const begin = (id, after) => {
    stop();
    store.set({ session: emptySession(id, after) });
    stream = openStream(id, {
      seq: () => store.get().session.seq,
      take: take(id),
      tell: tell(id),
    });
  };

  return {
    /** At its end, or at the place of an event. */
    async open(id, at = null) {
      wanted = id;
      stop();
      const connection = { state: id === null ? "none" : "connecting", problem: null };
      const nothing = { session: null, shown: 120, place: null, mode: "steer" };
      store.set({ current: id, connection, ...nothing });
      if (id === null) return;
      let after = 0;
      try {
        const { session } = await api.session(id);
        after = Math.max(0, session.last_seq - EVENTS_FIRST);
        if (at !== null && at <= session.last_seq) {
          after = Math.min(after, Math.max(0, at - EVENTS_BEFORE));
          if (wanted === id) store.set({ place: { seq: at, until: session.last_seq } });
        }
      } catch (problem) {
        if (wanted !== id) return;
        if (!problem.passes) {
          if (problem.code === "unauthenticated") store.set({ me: null });
          store.set({ connection: { state: "refused", problem } });
          return;
        }
      }
      if (wanted === id) begin(id, after);
    },
    /** To a place in the session that is open. */
    goTo(at) {
      const { session, current } = store.get();
      if (session === null || session.since > at) this.open(current, at);
      else store.set({ place: { seq: at, until: at } });
    },
    readEarlier() {
      const { session } = store.get();
      store.set({ shown: session.items.length + 120 });
      begin(session.id, Math.max(0, session.since - 1 - EVENTS_FIRST));
    },
    /** The log does not tell of a pause. Its turn may be over before the answer is here. */
    setPhase(id, phase) {
      store.set(({ session }) => {
        const runs = session?.phase === "running" || session?.phase === "paused";
        return runs && session.id === id ? { session: { ...session, phase } } : {};
      });
    },
    hurry: () => stream?.hurry(),
    close: stop,
  };
}

// How far the server's clock is ahead of ours. Its date is in whole seconds: less is no difference.
function offsetOf(date) {
  const ahead = date ? Date.parse(date) - Date.now() : 0;
  return Math.abs(ahead) < 2_000 ? 0 : ahead;
}
