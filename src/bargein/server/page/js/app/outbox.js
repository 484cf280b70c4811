// Messages that have not been sent yet. Each is sent under an id of its own, so it cannot arrive
// twice. A message for a new session makes the session first, and never makes two.
//
//   sending    on its way
//   later      the server could not be reached, or wants a new token: it is sent when it can be
//   held       a stop came before it was sent: it stays here until its author sends it
//   refused    the server did not take it

import { isNew, NEW } from "../state/pending.js";
import { api } from "../wire/api.js";
import { moveDraft } from "./drafts.js";
import { createKept, leftOver } from "./kept.js";

const KEY = "bargein.outbox";
const AGAIN_MS = 2_000;

/** Messages that an earlier document of this tab could not send. */
export function unsent() {
  const again = (each) => (each.state === "sending" ? { ...each, state: "later" } : each);
  return leftOver(KEY).map(again);
}

/** Calls `made(from, to)` when a session has got its id, and `sent` with each answer. */
export function createOutbox(store, { made, sent }) {
  const change = createKept(store, "outbox", KEY);
  const making = new Map();
  const onTheWay = new Map();

  const find = (clientId) => store.get().outbox.find((each) => each.clientId === clientId);
  const patch = (clientId, changes) =>
    change((outbox) =>
      outbox.map((each) => (each.clientId === clientId ? { ...each, ...changes } : each)),
    );
  const discard = ({ clientId }) =>
    change((outbox) => outbox.filter((each) => each.clientId !== clientId));

  // With the same key, repeated requests make one session.
  const makeSession = (from) => {
    if (!making.has(from)) {
      const asking = api.create(from).finally(() => making.delete(from));
      making.set(
        from,
        asking.then(({ session: { id } }) => {
          moveDraft(from, id);
          change((outbox) =>
            outbox.map((each) => (each.session === from ? { ...each, session: id } : each)),
          );
          made(from, id);
        }),
      );
    }
    return making.get(from);
  };

  const handOver = async (clientId) => {
    patch(clientId, { state: "sending" });
    try {
      const { session } = find(clientId);
      if (isNew(session)) await makeSession(session);
      const entry = find(clientId);
      const answer = await api.send(entry.session, entry);
      discard(entry);
      sent(answer);
      return { ...answer, session: entry.session };
    } catch (problem) {
      const shownOut = problem.code === "unauthenticated";
      const state = problem.passes || shownOut ? "later" : "refused";
      patch(clientId, { state, problem: problem.message });
      if (shownOut) store.set({ me: null });
      if (problem.passes) setTimeout(resend, AGAIN_MS, clientId);
      return null;
    }
  };

  const deliver = ({ clientId }) => {
    if (!onTheWay.has(clientId)) {
      const going = handOver(clientId).finally(() => onTheWay.delete(clientId));
      onTheWay.set(clientId, going);
    }
    return onTheWay.get(clientId);
  };
  const resend = (clientId) => {
    if (find(clientId)?.state === "later") deliver({ clientId });
  };

  return {
    deliver,
    discard,
    /** Sends this in a session, or in a new one if null. Returns the session's id, if known. */
    send(session, { text, pictures }, mode) {
      const clientId = newId();
      const into = session ?? `${NEW}${clientId}`;
      const what = { session: into, text, pictures, mode, clientId };
      const entry = { kind: "outgoing", key: `o-${clientId}`, ...what };
      change((outbox) => [...outbox, { ...entry, state: "sending" }]);
      deliver(entry);
      return into;
    },
    /** Sends what could not be sent before. */
    resendAll() {
      for (const { clientId } of store.get().outbox) resend(clientId);
    },
    /** Returns whether this session has unsent messages. */
    hasGoing: (session) =>
      store.get().outbox.some((each) => each.session === session && isGoing(each)),
    /**
     * Stops messages that have no turn yet. Waits for those on their way, and holds the unsent
     * ones. Returns the session and the turn of the last one that arrived.
     */
    async holdBack(session) {
      const going = store.get().outbox.filter((each) => each.session === session);
      const answers = await Promise.all(going.map(({ clientId }) => onTheWay.get(clientId)));
      for (const { clientId } of going)
        if (find(clientId)?.state === "later") patch(clientId, { state: "held" });
      return answers.findLast((each) => each?.turn) ?? null;
    },
    /** Drops messages that the log has. Returns the running turn if it took a held one. */
    arrived({ messages, turn }) {
      const { outbox } = store.get();
      if (!outbox.length) return null;
      const known = new Map(Object.values(messages).map((each) => [each.clientId, each]));
      let runs = null;
      for (const entry of outbox) {
        const message = known.get(entry.clientId);
        if (message === undefined || entry.state === "sending") continue;
        if (entry.state === "held" && message.turn === turn) runs = turn;
        discard(entry);
      }
      return runs;
    },
  };
}

function isGoing({ state }) {
  return state === "sending" || state === "later";
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
