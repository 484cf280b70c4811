// Everything a person can do, each as one function. It asks the server, and shows a message if that
// fails. The result is shown when its events come, not before.

import { api } from "../wire/api.js";
import { receiptLine } from "../state/receipt.js";
import { wordsOfTurn } from "../state/inbox.js";
import { isNew } from "../state/pending.js";
import { isBusy, turnToStop } from "../state/turns.js";
import { token } from "../wire/token.js";
import { doneWords, goingBackView } from "../views/going_back.js";
import { serverView } from "../views/server.js";
import { sharingView } from "../views/sharing.js";
import { hasDrafts } from "./drafts.js";
import { createOutbox } from "./outbox.js";
import { createStops } from "./stops.js";
import { announce, toast } from "./tell.js";

/** `go(id)` shows a session, or with null an empty new one. */
export function createActions(store, watcher, door, go) {
  const id = () => store.get().current;
  let listing = null;

  const attempt = async (request) => {
    try {
      const answer = await request();
      if (answer?.status === "too_late")
        toast("Too late: it had already ended. Nothing was changed.");
      return answer;
    } catch (problem) {
      if (problem.code === "unauthenticated") store.set({ me: null });
      toast(problem.message);
      return null;
    }
  };

  // One at a time: a server that does not answer must not get more and more requests.
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
  const goingBack = goingBackView(store, api, {
    send: (session, text) => outbox.send(session, { text, pictures: [] }, "steer"),
    tell: (words) => words && toast(words),
  });
  const stops = createStops(store);
  let readers = [];
  store.subscribe((state) => {
    readers = readers.filter((reader) => !reader(state));
    stops.follow(state);
    if (state.session === null) return;
    // Its author stopped it before the page knew that it had arrived.
    const turn = outbox.arrived(state.session);
    if (turn !== null) stops.ask({ session: state.session.id, scope: "turn", turn });
  });

  // For a session that was just opened: returns what runs, once the server has said so.
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
    /** Shows an empty new session, which is made with its first message. */
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
    /** Answers an invitation: adds a shared session to the list, or hides it. */
    async invited(session, answer) {
      if ((await attempt(() => api[answer](session))) === null) return;
      store.set(({ invitations }) => ({
        invitations: invitations.filter((each) => each.id !== session),
      }));
      if (answer === "accept") go(session);
      listSessions();
    },
    /** `session` is the one that the `{text, pictures}` are for; null for a new one. */
    send(session, message, mode) {
      const into = outbox.send(session, message, mode);
      if (session === null) go(into, { replace: true });
    },
    /** Goes back to before a turn and asks again: the same, or `text` instead. */
    askAgain: (turn, text = null) =>
      goingBack.askAgain(turn, text ?? wordsOfTurn(store.get().session, turn)),
    /** Goes back to before a turn, as far as the user then chooses. */
    undo: (turn) => goingBack.undo(turn),
    /** Shows what the calls of a turn changed in files. */
    showChanges: (turn) => goingBack.showChanges(turn),
    /** Takes back the last undo of files. */
    async redo() {
      const done = await attempt(() => api.redo(id()));
      if (done !== null) toast(doneWords(done) || "There was nothing to bring back.");
    },
    /** Shows a new session that begins with what was said until the end of this turn. */
    async fork(turn) {
      const made = await attempt(() => api.fork(id(), turn));
      if (made === null) return;
      go(made.session.id, { focus: true });
      listSessions();
    },
    share: sharingView(store, api),
    openServer: serverView(store, api, {
      stopAll: async (sessions) => {
        const all = "Stop the turns of everybody, and everything in the background?";
        if (sessions !== null || confirm(all)) await attempt(() => api.stopRunning(sessions));
      },
      revoke: async ({ id: token, principal }) => {
        if (confirm(`Revoke this token of ${principal}? Whoever uses it is signed out at once.`))
          await attempt(() => api.revokeToken(token));
      },
    }),
    resend: outbox.deliver,
    /** Sends, after a reconnect, what could not be sent before. */
    resendAll() {
      outbox.resendAll();
      stops.retryAll();
    },
    discard: outbox.discard,
    /** Returns whether a stop would stop anything. */
    canStop() {
      const { session, current } = store.get();
      const runs = session !== null && (isBusy(session) || turnToStop(session) !== null);
      return runs || outbox.hasGoing(current) || isUnread(store.get());
    },
    /** Also stops a message that has no turn yet, as soon as it has one. */
    stop() {
      const { session, current } = store.get();
      const turn = session === null ? null : turnToStop(session);
      if (turn !== null) stops.ask({ session: current, scope: "turn", turn });
      else if (outbox.hasGoing(current)) stops.expect(current, outbox.holdBack(current));
      else if (isUnread(store.get())) stops.expect(current, untilRead(current));
    },
    /** Stops the running turn and everything in the background. */
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

// Returns whether the server has not said yet what goes on in the session on the screen.
function isUnread({ current, session, connection }) {
  if (current === null || isNew(current) || connection.state === "refused") return false;
  return session === null || session.access === undefined;
}
