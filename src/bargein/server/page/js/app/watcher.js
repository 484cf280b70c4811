// Keeps the session on the screen in step with the server: reads its stream into the store, and
// starts again when another session is opened or older events are wanted.

import { isNew } from "../state/pending.js";
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

  const take = (id) => (entry) => {
    if (wanted !== id) return;
    store.set(({ clockOffset, session }) => ({
      session: reduce(session, entry, Date.now() + clockOffset),
    }));
  };

  const tell = (id) => (connection) => {
    if (wanted !== id) return;
    store.set({ connection });
    if (connection.problem?.code === "unauthenticated") store.set({ me: null });
    if (connection.state !== "open") return;
    store.set(({ session }) => ({ session: reconnected(session) }));
    onOpen();
    refresh(id);
  };

  // Asks for what is not in the log: permissions and pauses; and, if the log is not read from its
  // beginning, the waiting messages.
  const refresh = async (id) => {
    try {
      const detail = await api.session(id);
      if (wanted !== id) return;
      store.set(({ clockOffset, session }) => ({
        session: withDetail(session, detail, Date.now() + clockOffset),
      }));
      if (store.get().session.since === 1) return;
      const inbox = await api.inbox(id);
      if (wanted === id) store.set(({ session }) => ({ session: withInbox(session, inbox) }));
    } catch (problem) {
      if (!(problem instanceof ApiProblem)) throw problem;
    }
  };

  const begin = (id, after) => {
    store.set({ session: emptySession(id, after) });
    listen(id);
  };

  const listen = (id) => {
    stop();
    stream = openStream(id, {
      seq: () => store.get().session.seq,
      take: take(id),
      clock: (at) => store.set({ clockOffset: offsetTo(at) }),
      tell: tell(id),
    });
  };

  return {
    /** Shows a session at its end, or at the place of an event. */
    async open(id, at = null) {
      wanted = id;
      stop();
      const connects = id !== null && !isNew(id);
      const connection = { state: connects ? "connecting" : "none", problem: null };
      const nothing = { session: null, shown: 120, place: null, mode: "steer" };
      store.set({ current: id, connection, ...nothing });
      if (!connects) return;
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
    /** Goes on with the session on the screen after its last known event. */
    resume() {
      const { session, current } = store.get();
      if (session === null) this.open(current);
      else listen(current);
    },
    /** Goes to a place in the open session. */
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
    /** Notes a pause, which is not in the log. The turn may be over before the answer is here. */
    setPhase(id, phase) {
      store.set(({ session }) => {
        const runs = session?.phase === "running" || session?.phase === "paused";
        return runs && session.id === id ? { session: { ...session, phase } } : {};
      });
    },
    hurry: () => stream?.hurry(),
    again: () => stream?.again(),
    close: stop,
  };
}

// Returns how far the server's clock is ahead of ours. Less than an answer's delay counts as zero.
function offsetTo(at) {
  const ahead = at - Date.now();
  return Math.abs(ahead) < 2_000 ? 0 : ahead;
}
