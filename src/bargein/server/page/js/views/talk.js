// The conversation. Only its last part is in the document; older parts come on demand. It stays at
// its end while the reader is there, and never moves under one who has scrolled up.

import { button, fillWith, h, keyedList } from "../dom.js";
import { itemAt } from "../state/session.js";
import { itemView } from "./items.js";

const NEAR_END = 80;
const ITEMS_BEFORE = 20;

export function talkView(node, store, actions) {
  const items = h("ol", { class: "items" });
  const earlier = button("Show earlier", { does: () => actions.showEarlier(), kind: "earlier" });
  const head = h("li", { class: "earlier" }, earlier);
  const empty = h("div", { class: "empty" });
  const below = button("↓ New below", { does: () => toEnd(), kind: "below" });
  const list = h("div", {}, items);
  fillWith(node, empty, list, below);
  const draw = keyedList(items, (item) => itemView(item, store, actions));

  let follow = true;
  let sending = 0;
  let session = null;
  const atEnd = () => node.scrollHeight - node.scrollTop - node.clientHeight < NEAR_END;
  const toEnd = () => {
    follow = true;
    node.scrollTop = node.scrollHeight;
    below.hidden = true;
  };
  node.addEventListener("scroll", () => {
    follow = atEnd();
    if (follow) below.hidden = true;
  });
  // Whoever opens something looks at it: it must not slide away.
  node.addEventListener("click", (event) => {
    if (event.target.closest("summary, .call-open")) follow = false;
  });
  const resized = new ResizeObserver(() => follow && toEnd());
  resized.observe(list);
  resized.observe(node);

  // Whether it went there. Only when the log has been read as far as it went: what comes in between
  // would move it away again.
  const goTo = ({ place, shown }, views) => {
    if (session === null || session.seq < place.until) return false;
    const index = itemAt(session, place.seq);
    const wanted = session.items.length - index + ITEMS_BEFORE;
    if (index !== -1 && shown < wanted) {
      store.set({ shown: wanted });
      return false;
    }
    store.set({ place: null });
    if (index === -1) return false;
    items.querySelector(":scope > .found")?.classList.remove("found");
    point(views.get(session.items[index].key).node);
    return true;
  };

  return (state) => {
    const fresh = state.session?.id !== session?.id;
    if (fresh || state.outbox.length > sending) follow = true;
    sending = state.outbox.length;
    const grew = state.session !== session;
    session = state.session;
    const shown = shownItems(session, state);
    showEmpty(empty, state, shown.length);
    list.hidden = !shown.length;
    const before = { top: node.scrollTop, height: node.scrollHeight, first: items.children[1] };
    const hasMore = session !== null && (session.items.length > state.shown || session.since > 1);
    const views = draw(
      hasMore ? [{ key: "earlier", kind: "earlier", node: head }, ...shown] : shown,
      (each) => each.key,
    );
    if (state.place !== null && goTo(state, views)) follow = false;
    else if (follow) toEnd();
    else if (before.first?.isConnected && before.first !== items.children[1]) {
      node.scrollTop = before.top + node.scrollHeight - before.height;
    }
    below.hidden = follow || !grew || atEnd();
  };
}

function point(node) {
  node.scrollIntoView({ block: "center" });
  node.classList.add("found");
  node.addEventListener("animationend", () => node.classList.remove("found"), { once: true });
  // Whoever uses the keys, or has it read out, goes on from here.
  node.tabIndex = -1;
  node.focus({ preventScroll: true });
}

// The last items as they stand, then what is being said, then what is on its way to the server.
function shownItems(session, { current, shown, outbox }) {
  const going = outbox.filter((each) => each.session === current);
  if (session === null) return going;
  const unheard = going.length ? notInLog(going, session) : going;
  const items = session.items.slice(-shown).map((item) => {
    if (item.kind === "call") return session.calls[item.id];
    if (item.kind === "question") return asked(session.questions[item.id], session.permits.may);
    return item;
  });
  const live = session.live.filter((each) => each.text || each.reasoning || each.retry);
  return [...items, ...live, ...unheard];
}

// What may be answered here is known a moment after the question.
function asked(question, may) {
  return question.open ? { ...question, may } : question;
}

// The log may tell of a message before the answer to its sending is here: it is shown once.
function notInLog(going, { messages }) {
  const told = new Set(Object.values(messages).map((each) => each.clientId));
  return going.filter((each) => !told.has(each.clientId));
}

function showEmpty(node, { current, session, connection, me }, length) {
  const refused = connection.state === "refused";
  node.hidden = length > 0 || (current !== null && session === null && !refused);
  if (node.hidden || node.dataset.for === `${current}${refused}`) return;
  node.dataset.for = `${current}${refused}`;
  if (refused) {
    fillWith(node, h("h2", {}, "Nothing to show"), h("p", {}, connection.problem.message));
  } else if (current === null) {
    fillWith(
      node,
      h("h2", {}, "Barge in any time."),
      h(
        "p",
        {},
        "Write below to begin a session, or open one from the list. You can speak while it " +
          "works: stop it, steer it, send it elsewhere. Nothing you say is lost.",
      ),
    );
  } else {
    fillWith(
      node,
      h("h2", {}, "What shall we do?"),
      h(
        "p",
        {},
        `Write below. You need not wait for an answer to say the next thing${listens(me)}.`,
      ),
    );
  }
}

function listens(me) {
  return me?.model ? `; ${me.model} listens while it works` : "";
}
