// The conversation. Only its last part is in the document; older parts are added on demand. It
// stays at its end while the reader is there, and never moves once the reader has scrolled up.

import { button, fillWith, h, keyedList, setText } from "../dom.js";
import { itemAt } from "../state/session.js";
import { homeView } from "./home.js";
import { itemView } from "./items.js";

const NEAR_END = 80;
const ITEMS_BEFORE = 20;

export function talkView(node, store, actions) {
  const items = h("ol", { class: "items" });
  const earlier = button("Show earlier", { does: () => actions.showEarlier(), kind: "earlier" });
  const head = h("li", { class: "earlier" }, earlier);
  const empty = h("div", { class: "empty" });
  const showHome = homeView(empty);
  const below = button("", { does: () => toEnd(), kind: "below" });
  const list = h("div", {}, items);
  fillWith(node, empty, list, below);
  const draw = keyedList(items, (item) => itemView(item, store, actions));

  let follow = true;
  let hasNews = false;
  let sending = 0;
  let session = null;
  const atEnd = () => node.scrollHeight - node.scrollTop - node.clientHeight < NEAR_END;
  const toEnd = () => {
    follow = true;
    node.scrollTop = node.scrollHeight;
    showBelow();
  };
  const showBelow = () => {
    const isEnd = follow || atEnd();
    if (isEnd) hasNews = false;
    below.hidden = isEnd;
    below.classList.toggle("news", hasNews);
    setText(below, hasNews ? "↓ New below" : "↓ Latest");
  };
  node.addEventListener("scroll", () => {
    follow = atEnd();
    showBelow();
  });
  // A reader who opens something looks at it: it must not slide away.
  node.addEventListener("click", (event) => {
    if (event.target.closest("summary, .call-open")) follow = false;
  });
  const resized = new ResizeObserver(() => follow && toEnd());
  resized.observe(list);
  resized.observe(node);

  // Returns whether it scrolled there. It does so only when the log has been read far enough,
  // because items that come later would move the place away again.
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
    showHome(state, shown.length);
    node.dataset.access = session?.ended ? "read" : (session?.access ?? "read");
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
    if (fresh) hasNews = false;
    else if (grew && !follow) hasNews = true;
    showBelow();
  };
}

function point(node) {
  node.scrollIntoView({ block: "center" });
  node.classList.add("found");
  node.addEventListener("animationend", () => node.classList.remove("found"), { once: true });
  // Keyboards and screen readers go on from here.
  node.tabIndex = -1;
  node.focus({ preventScroll: true });
}

// Returns the last items, then the streaming answers, then messages on their way to the server.
function shownItems(session, { current, shown, outbox }) {
  const going = outbox.filter((each) => each.session === current);
  if (session === null) return going;
  const unheard = going.length ? notInLog(going, session) : going;
  const items = session.items.slice(-shown).map((item) => {
    if (item.kind === "call") return withChildren(session.calls[item.id], session);
    if (item.kind === "question") return asked(session.questions[item.id], session.permits.may);
    return item;
  });
  const live = session.live.filter((each) => each.text || each.reasoning || each.retry);
  const before = session.items.length <= shown ? session.history : [];
  return [...before, ...items, ...live, ...unheard];
}

// Returns the call with the sub-agents that it started; the same value if nothing has changed.
const joined = new Map();
function withChildren(call, { id, children }) {
  const own = Object.values(children).filter((each) => each.callId === call.id);
  if (!own.length) return call;
  const key = `${id} ${call.id}`;
  const last = joined.get(key);
  const same = last?.call === call && last.own.length === own.length;
  if (same && own.every((each, place) => each === last.own[place])) return last.value;
  const value = { ...call, children: own };
  joined.set(key, { call, own, value });
  return value;
}

// The server's list of possible answers comes a moment after the question.
function asked(question, may) {
  return question.open ? { ...question, may } : question;
}

// The log may have a message before the answer to its request is here: show it once.
function notInLog(going, { messages }) {
  const told = new Set(Object.values(messages).map((each) => each.clientId));
  return going.filter((each) => !told.has(each.clientId));
}
