// Where the page is put together: one store, what a person can do, and the views over them.

import { createActions } from "./app/actions.js";
import { createDoor } from "./app/door.js";
import { createDrawers } from "./app/drawers.js";
import { createKeys } from "./app/keys.js";
import { watchOffspring } from "./app/offspring.js";
import { followPermits } from "./app/permits.js";
import { createSearch } from "./app/search.js";
import { createSpoken } from "./app/spoken.js";
import { createStore, initialState } from "./app/store.js";
import { toast } from "./app/tell.js";
import { createTheme } from "./app/theme.js";
import { createWatcher } from "./app/watcher.js";
import { fillWith, h } from "./dom.js";
import { isNew } from "./state/pending.js";
import { isBusy } from "./state/turns.js";
import { barView } from "./views/bar.js";
import { composerView } from "./views/composer.js";
import { gateView } from "./views/gate.js";
import { inboxView } from "./views/inbox.js";
import { nowView } from "./views/now.js";
import { sessionsView } from "./views/sessions.js";
import { talkView } from "./views/talk.js";
import { stopsView } from "./views/stops.js";
import { api } from "./wire/api.js";
import { ApiProblem } from "./wire/problem.js";
import { token, tokenInAddress } from "./wire/token.js";

const LIST_MS = 4_000;
const AGAIN_MS = 1_500;

const byId = (id) => document.getElementById(id);
const store = createStore(initialState());
const watcher = createWatcher(store, () => actions.resendAll());
const door = createDoor(store, watcher, {
  onArrival() {
    // Whatever this tab has was not taken.
    token.forget();
    begin();
  },
  onLateToken(given) {
    // As if it had come in the address, but from this origin.
    token.keepUnknown(given);
    begin();
  },
});
const actions = createActions(store, watcher, door, go);
const drawers = createDrawers(byId("app"));
const composer = composerView(store, actions);
const inbox = inboxView(store, actions);
const stops = stopsView(actions);
const gate = gateView(byId("gate"), actions);
const spoken = createSpoken();
fillWith(byId("foot"), h("div", {}, stops.node, inbox.node, composer.node));
createKeys(store, actions, composer);
watchOffspring(store);

const views = [
  sessionsView(byId("sessions"), actions, createSearch(store), createTheme()),
  barView(byId("bar"), byId("banner"), store, actions, watcher, drawers),
  talkView(byId("talk"), store, actions),
  (state) => stops.update(state),
  (state) => inbox.update(state.session),
  (state) => composer.update(state),
  nowView(byId("now"), store, actions),
  (state) => spoken(state.session),
  followPermits(store),
];

// Whether the server has said who this is, and whether that is somebody.
let known = false;
let letIn = null;
store.subscribe((state) => {
  if (letIn !== (state.me !== null) && known) {
    const shownOut = letIn === true;
    letIn = state.me !== null;
    byId("app").hidden = !letIn;
    byId("gate").hidden = letIn;
    if (letIn) {
      follow();
      if (location.hash.length < 3) takeFocus();
      watcher.hurry();
      door.arrived();
      actions.resendAll();
    } else gate.focus();
    // Asked once more, the server says why.
    if (shownOut) begin();
  }
  if (state.me !== null) for (const view of views) view(state);
});

// The address says which session is shown, and where, so that it can be bookmarked, and Back goes
// back.
function follow() {
  const found = /^#\/s\/([^?]+)(?:\?at=(\d+))?$/.exec(location.hash);
  const named = found === null ? null : decodeURIComponent(found[1]);
  const at = found?.[2] ? Number(found[2]) : null;
  const { current, connection, outbox } = store.get();
  // A session that was to be made, and of which nothing is left to be said, is none.
  const known = !isNew(named) || outbox.some(({ session }) => session === named);
  const id = known ? named : null;
  if (id === current) {
    if (connection.state === "refused") watcher.resume();
    if (at !== null) watcher.goTo(at);
    return;
  }
  watcher.open(id, at);
  if (at === null) takeFocus();
}

// On a phone the keyboard would cover what there is to choose from.
function takeFocus() {
  if (store.get().current !== null || matchMedia("(pointer: fine)").matches) composer.focus();
}

function hashOf(id) {
  return id === null ? "#/" : `#/s/${encodeURIComponent(id)}`;
}

// To a session, or with null to the place where a new one begins.
function go(id, { replace = false, focus = false } = {}) {
  if (replace) history.replaceState(null, "", hashOf(id));
  else location.hash = hashOf(id);
  follow();
  if (!focus) return;
  drawers.close();
  store.flush();
  composer.focus();
}

window.addEventListener("hashchange", () => {
  arrived = tokenInAddress() ?? arrived;
  if (arrived !== null) {
    // Into a tab that is open already: it stays where it was.
    const { current } = store.get();
    if (current !== null) history.replaceState(null, "", hashOf(current));
    begin();
  } else if (store.get().me !== null) follow();
});

function keepListFresh() {
  if (store.get().me !== null && !document.hidden) actions.listSessions();
}
setInterval(keepListFresh, LIST_MS);
document.addEventListener("visibilitychange", () => {
  keepListFresh();
  watcher.hurry();
});

// The line of the bar counts seconds while a turn runs.
setInterval(() => {
  const { session } = store.get();
  if (session !== null && isBusy(session)) views[1](store.get());
}, 500);

// What the address brought: a token, or word that it had one where it must not be.
let arrived = tokenInAddress();
let note = "";
if (location.hash === "#token-in-query") {
  history.replaceState(null, "", "/");
  note =
    "That address had its token behind a question mark, where proxies log it, so it was not " +
    "used. Put #token= in the place of ?token=, or enter the token here.";
}

// Whoever comes after somebody else begins with an empty page.
function enter(shown, principal) {
  if (token.keep(shown, principal)) location.replace("/");
}

async function begin() {
  try {
    await takeArrived();
    if (token.get() === null) {
      const given = await door.fromOtherTab();
      if (given !== null) token.keepUnknown(given);
    }
    const me = token.get() === null ? null : await api.me();
    if (me !== null) enter(token.get(), me.principal);
    known = true;
    store.set({ me, listProblem: null });
    if (me === null) gate.tell(note);
    else if (note) toast(note);
    note = "";
    if (me !== null) await actions.listSessions();
  } catch (problem) {
    if (!(problem instanceof ApiProblem)) throw problem;
    if (problem.passes) {
      setTimeout(begin, AGAIN_MS);
      return;
    }
    known = true;
    store.set({ me: null });
    gate.tell(note || problem.message);
    note = "";
  }
}

// A token in the address of this page is taken if it is known. One that somebody was given by name
// could come from anybody, who would then read what is said: it is asked about.
async function takeArrived() {
  const shown = arrived;
  if (shown === null) return;
  let me;
  try {
    me = await api.me(shown);
    arrived = null;
    if (shown === token.get()) return;
    const question = `This address signs you in as “${me.principal}”. Is that you?`;
    if (me.token && !confirm(question)) return;
  } catch (problem) {
    if (problem.passes || !(problem instanceof ApiProblem)) throw problem;
    arrived = null;
    note = "The token of that address is not known here; a server that starts anew has another.";
    return;
  }
  enter(shown, me.principal);
}
begin();
