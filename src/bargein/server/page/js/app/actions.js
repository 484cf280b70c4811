// What a person can do, each as one function: ask the server, and say in words if it did not work.
// What comes of it is shown when the events tell, not before.

import { api } from "../wire/api.js";
import { receiptLine } from "../state/receipt.js";
import { createOutbox } from "./outbox.js";
import { announce, toast } from "./tell.js";

const AGAIN_MS = 2_000;

export function createActions(store, watcher, door) {
  const id = () => store.get().current;
  const onTheWay = new Set();
  const changeOutbox = createOutbox(store);

  const attempt = async (request) => {
    try {
      const answer = await request();
      if (answer?.status === "too_late")
        toast("Too late: that is over already. Nothing was touched.");
      else if (answer?.scope === "call") announce(receiptLine(answer));
      return answer;
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      toast(problem.message);
      return null;
    }
  };

  const listSessions = async () => {
    try {
      const { sessions, next } = await api.sessions(store.get().sessionsLimit);
      store.set({ sessions, moreSessions: next !== null, listProblem: null });
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      store.set({ listProblem: problem });
    }
  };

  const discard = (entry) =>
    changeOutbox((outbox) => outbox.filter((each) => each.clientId !== entry.clientId));

  const deliver = async (entry) => {
    const change = (changes) =>
      changeOutbox((outbox) =>
        outbox.map((each) => (each.clientId === entry.clientId ? { ...each, ...changes } : each)),
      );
    change({ state: "sending" });
    try {
      const sent = await api.send(entry.session, entry);
      discard(entry);
      if (sent.reply) toast(sent.reply);
      if (sent.receipt) announce(receiptLine(sent.receipt));
      return sent;
    } catch (problem) {
      // The same words go out again under the same id, so they cannot arrive twice.
      change({ state: problem.passes ? "later" : "refused", problem: problem.message });
      if (problem.passes) setTimeout(() => redeliver(entry.clientId), AGAIN_MS);
      return null;
    }
  };

  const redeliver = (clientId) => {
    const entry = store.get().outbox.find((each) => each.clientId === clientId);
    if (entry?.state === "later") deliver(entry);
  };

  return {
    listSessions,
    moreSessions() {
      store.set(({ sessionsLimit }) => ({ sessionsLimit: sessionsLimit + 50 }));
      return listSessions();
    },
    async create() {
      const made = await attempt(() => api.create());
      if (made === null) return;
      location.hash = `#/s/${encodeURIComponent(made.session.id)}`;
      listSessions();
    },
    async rename(session, title) {
      await attempt(() => api.rename(session, title));
      listSessions();
    },
    async remove(session) {
      await attempt(() => api.remove(session));
      if (session === id()) location.hash = "#/";
      listSessions();
    },
    send(text, mode) {
      const clientId = newId();
      const entry = { kind: "outgoing", key: `o-${clientId}`, session: id(), text, mode, clientId };
      changeOutbox((outbox) => [...outbox, entry]);
      const going = deliver(entry).finally(() => onTheWay.delete(going));
      onTheWay.add(going);
    },
    resend: deliver,
    /** After the connection came back: what could not be handed over then is now. */
    resendAll() {
      for (const entry of store.get().outbox) redeliver(entry.clientId);
    },
    discard,
    /** Also what has been said just now and has no turn yet: it is stopped as soon as it has. */
    async stop() {
      const { session, current } = store.get();
      const sent = session?.turn ? [session] : await Promise.all(onTheWay);
      const turn = sent.findLast((each) => each?.turn)?.turn;
      if (turn !== undefined) attempt(() => api.stop(current, turn));
    },
    stopCall: (call) => attempt(() => api.stopCall(id(), call)),
    stopChild: (child) => attempt(() => api.stopChild(id(), child)),
    detach: (call) => attempt(() => api.detach(id(), call)),
    async pause() {
      const asked = id();
      const done = await attempt(() => api.pause(asked));
      if (done?.status === "done") watcher.setPhase(asked, "paused");
    },
    async resume() {
      const asked = id();
      const done = await attempt(() => api.resume(asked));
      if (done?.status === "done") watcher.setPhase(asked, "running");
    },
    goOn: () => attempt(() => api.goOn(id())),
    answer: (question, text) => attempt(() => api.answer(id(), question, text)),
    edit: (message, text) => attempt(() => api.edit(id(), message, text)),
    move: (message, before) => attempt(() => api.move(id(), message, before)),
    withdraw: (message) => attempt(() => api.withdraw(id(), message)),
    showEarlier() {
      const { session, shown } = store.get();
      if (shown < session.items.length) store.set({ shown: shown + 120 });
      else if (session.since > 1) watcher.readEarlier();
    },
    async login(token) {
      await api.login(token);
      store.set({ me: await api.me() });
    },
    async signOut() {
      const unsent = store.get().outbox.length;
      if (unsent && !confirm("What has not gone out yet would be lost. Sign out?")) return;
      try {
        await api.logout();
        door.leave();
      } catch (problem) {
        toast(`You are still signed in. ${problem.message}`);
      }
    },
  };
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
