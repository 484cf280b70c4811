// What a person can do, each as one function: ask the server, and say in words if it did not work.
// What comes of it is shown when the events tell, not before.

import { api } from "../wire/api.js";
import { receiptLine } from "../state/receipt.js";
import { isNew } from "../state/pending.js";
import { isBusy, turnToStop } from "../state/turns.js";
import { token } from "../wire/token.js";
import { hasDrafts } from "./drafts.js";
import { createOutbox } from "./outbox.js";
import { createStops } from "./stops.js";
import { announce, toast } from "./tell.js";

/** `go(id)` shows a session, or with null the place where a new one begins. */
export function createActions(store, watcher, door, go) {
  const id = () => store.get().current;
  let listing = null;

  const attempt = async (request) => {
    try {
      const answer = await request();
      if (answer?.status === "too_late")
        toast("Too late: that is over already. Nothing was touched.");
      return answer;
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      toast(problem.message);
      return null;
    }
  };

  // One at a time: a server that does not answer must not be asked again and again.
  const listSessions = () => {
    listing ??= listOnce().finally(() => (listing = null));
    return listing;
  };
  const listOnce = async () => {
    try {
      const { sessions, next } = await api.sessions(store.get().sessionsLimit);
      store.set({ sessions, moreSessions: next !== null, listProblem: null });
      const { sessions: invitations } = await api.invitations();
      store.set({ invitations });
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      store.set({ listProblem: problem });
    }
  };

  const outbox = createOutbox(store, {
    made: (from, to) => {
      if (id() === from) go(to, { replace: true });
      listSessions();
    },
    sent: ({ reply, receipt }) => {
      if (reply) toast(reply);
      if (receipt) announce(receiptLine(receipt));
    },
  });
  const stops = createStops(store);
  let readers = [];
  store.subscribe((state) => {
    readers = readers.filter((reader) => !reader(state));
    stops.follow(state);
    if (state.session === null) return;
    // Its author had stopped it before it was known to have arrived.
    const turn = outbox.arrived(state.session);
    if (turn !== null) stops.ask({ session: state.session.id, scope: "turn", turn });
  });

  // Of a session that has just been opened: what runs there, once the server has said so.
  const untilRead = (asked) =>
    new Promise((resolve) => {
      readers.push((state) => {
        if (state.current === asked && isUnread(state)) return false;
        const { session } = state;
        const turn = session?.id === asked ? turnToStop(session) : null;
        resolve(turn === null ? null : { session: asked, turn });
        return true;
      });
    });

  return {
    listSessions,
    moreSessions() {
      store.set(({ sessionsLimit }) => ({ sessionsLimit: sessionsLimit + 50 }));
      return listSessions();
    },
    /** To the place where a new session begins: it is made when something is said there. */
    create: () => go(null, { focus: true }),
    async rename(session, title) {
      await attempt(() => api.rename(session, title));
      listSessions();
    },
    async remove(session) {
      await attempt(() => api.remove(session));
      if (session === id()) location.hash = "#/";
      listSessions();
    },
    /** Answer an invitation: take a shared session into the list, or out of sight. */
    async invited(session, answer) {
      if ((await attempt(() => api[answer](session))) === null) return;
      store.set(({ invitations }) => ({
        invitations: invitations.filter((each) => each.id !== session),
      }));
      if (answer === "accept") go(session);
      listSessions();
    },
    /** `session` is the one that the words were written for; null for a new one. */
    send(session, text, mode) {
      const into = outbox.send(session, text, mode);
      if (session === null) go(into, { replace: true });
    },
    resend: outbox.deliver,
    /** After the connection came back: what could not be handed over then is now. */
    resendAll() {
      outbox.resendAll();
      stops.retryAll();
    },
    discard: outbox.discard,
    /** Whether there is anything that a stop would reach. */
    canStop() {
      const { session, current } = store.get();
      const runs = session !== null && (isBusy(session) || turnToStop(session) !== null);
      return runs || outbox.hasGoing(current) || isUnread(store.get());
    },
    /** Also what has been said just now and has no turn yet: it is stopped as soon as it has. */
    stop() {
      const { session, current } = store.get();
      const turn = session === null ? null : turnToStop(session);
      if (turn !== null) stops.ask({ session: current, scope: "turn", turn });
      else if (outbox.hasGoing(current)) stops.expect(current, outbox.holdBack(current));
      else if (isUnread(store.get())) stops.expect(current, untilRead(current));
    },
    /** The turn, if one runs, and everything in the background. */
    stopAll: () => stops.ask({ session: id(), scope: "session" }),
    stopCall: (call) => stops.ask({ session: id(), scope: "call", target: call }),
    stopChild: (child) => stops.ask({ session: id(), scope: "child", target: child }),
    retryStop: stops.retry,
    giveUpStop: stops.giveUp,
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
    setMode: (mode) => attempt(() => api.setMode(id(), mode)),
    revoke: ({ id: grant, scope }) => attempt(() => api.revoke(id(), grant, scope)),
    edit: (message, text) => attempt(() => api.edit(id(), message, text)),
    move: (message, before) => attempt(() => api.move(id(), message, before)),
    withdraw: (message) => attempt(() => api.withdraw(id(), message)),
    showEarlier() {
      const { session, shown } = store.get();
      if (shown < session.items.length) store.set({ shown: shown + 120 });
      else if (session.since > 1) watcher.readEarlier();
    },
    async login(shown) {
      const me = await api.me(shown);
      if (token.keep(shown, me.principal)) location.replace("/");
      store.set({ me, listProblem: null });
    },
    signOut() {
      const unsent = store.get().outbox.length > 0 || hasDrafts();
      if (!unsent || confirm("What has not been sent yet would be lost. Sign out?")) door.leave();
    },
  };
}

// Whether the server has yet to say what goes on in the session on the screen.
function isUnread({ current, session, connection }) {
  if (current === null || isNew(current) || connection.state === "refused") return false;
  return session === null || session.access === undefined;
}
