// Puts the page together: one store, the actions of a person, and the views.

import { createActions } from "./app/actions.js";
import { createDoor } from "./app/door.js";
import { createDrawers } from "./app/drawers.js";
import { createKeys } from "./app/keys.js";
import { createNotices } from "./app/notices.js";
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
import { codeInAddress, token, tokenInAddress } from "./wire/token.js";

const LIST_MS = 4_000;
const PUT_OUT =
  "This chat is not shared with you any more. Ask for a new address: /share makes one in the " +
  "terminal.";
const AGAIN_MS = 1_500;

const byId = (id) => document.getElementById(id);
const store = createStore(initialState());
const watcher = createWatcher(store, () => actions.resendAll());
const door = createDoor(store, watcher, {
  onArrival() {
    // The server did not accept this tab's token.
    token.forget();
    begin();
  },
  onLateToken(given) {
    // The same as a token in the address, but from this origin.
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
const notices = createNotices((session) => go(session));
fillWith(byId("foot"), h("div", {}, stops.node, inbox.node, composer.node));
createKeys(store, actions, composer);
watchOffspring(store);

const views = [
  sessionsView(byId("sessions"), actions, createSearch(store), createTheme(), notices),
  barView(byId("bar"), byId("banner"), store, actions, watcher, drawers),
  talkView(byId("talk"), store, actions),
  (state) => stops.update(state),
  (state) => inbox.update(state.session),
  (state) => composer.update(state),
  nowView(byId("now"), store, actions),
  (state) => spoken(state.session),
  followPermits(store),
  notices.follow,
];

// `known`: the server has said who this is. `letIn`: whether that is somebody.
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
    // The answer to another request says why.
    if (shownOut) begin();
  }
  // At home nothing goes on that a panel could show.
  byId("app").classList.toggle("at-home", state.current === null);
  if (state.me !== null) for (const view of views) view(state);
});

// The address names the session and the place that is shown, so that it can be bookmarked and Back
// works.
function follow() {
  const found = /^#\/s\/([^?]+)(?:\?at=(\d+))?$/.exec(location.hash);
  const named = found === null ? null : decodeURIComponent(found[1]);
  const at = found?.[2] ? Number(found[2]) : null;
  const { current, connection, outbox } = store.get();
  // A session that is not made yet and has no unsent message does not exist.
  const known = !isNew(named) || outbox.some(({ session }) => session === named);
  const id = known ? named : null;
  if (id === current) {
    if (connection.state === "refused") watcher.resume();
    if (at !== null) watcher.goTo(at);
    return;
  }
  watcher.open(id, at);
  // One that was begun elsewhere since the list was read.
  const { sessions } = store.get();
  if (id !== null && !isNew(id) && !sessions.some((each) => id.split("/")[0] === each.id))
    actions.listSessions();
  if (at === null) takeFocus();
}

// On a phone the keyboard would cover the list.
function takeFocus() {
  if (store.get().current !== null || matchMedia("(pointer: fine)").matches) composer.focus();
}

function hashOf(id) {
  return id === null ? "#/" : `#/s/${encodeURIComponent(id)}`;
}

// Shows a session, or with null an empty new one.
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
  invited = codeInAddress() ?? invited;
  if (invited !== null) begin();
  else if (arrived !== null) {
    // A token came into an open tab: it stays where it was.
    const { current } = store.get();
    if (current !== null) history.replaceState(null, "", hashOf(current));
    begin();
  } else if (store.get().me !== null) {
    follow();
    // At once: with the next frame, words typed before it would go to the session shown until then.
    store.flush();
  }
});

function keepListFresh() {
  // Whoever asked for notifications wants to hear of sessions that are not on the screen.
  const isWanted = !document.hidden || notices.isOn();
  if (store.get().me !== null && isWanted) actions.listSessions();
}
setInterval(keepListFresh, LIST_MS);
document.addEventListener("visibilitychange", () => {
  keepListFresh();
  watcher.hurry();
});

// The bar counts seconds while a turn runs.
setInterval(() => {
  const { session } = store.get();
  if (session !== null && isBusy(session)) views[1](store.get());
}, 500);

// Reads the address: a token, or a note that it had one where it must not be.
let arrived = tokenInAddress();
let invited = codeInAddress();
let note = "";
if (location.hash === "#token-in-query") {
  history.replaceState(null, "", "/");
  note =
    "That address had its token behind a question mark, where proxies log it, so it was not " +
    "used. Put #token= in the place of ?token=, or enter the token here.";
}

// A new principal in this tab begins with an empty page.
function enter(shown, principal) {
  if (token.keep(shown, principal)) location.replace("/");
}

async function begin() {
  try {
    await takeInvitation();
    await takeArrived();
    if (token.get() === null) {
      const given = await door.fromOtherTab();
      if (given !== null) token.keepUnknown(given);
    }
    const me = token.get() === null ? null : await api.me();
    if (me !== null) enter(token.get(), me.principal);
    known = true;
    store.set({ me, listProblem: null });
    if (me === null) gate.tell(note || (token.isGuests() ? putOut() : ""));
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
    gate.tell(note || (token.isGuests() ? putOut() : problem.message));
    note = "";
  }
}

// The next invitation makes another guest, who gets none of this.
function putOut() {
  const unsent = store.get().outbox.map(({ text }) => text);
  return unsent.length ? `${PUT_OUT} Not sent: ${unsent.join(" · ")}` : PUT_OUT;
}

// Becomes a guest of a shared chat, and shows that chat. The code in the address works once.
async function takeInvitation() {
  const code = invited;
  if (code === null) return;
  try {
    const joined = await api.join(code);
    invited = null;
    token.keep(joined.token, joined.principal);
    token.noteGuest();
    history.replaceState(null, "", hashOf(joined.session));
  } catch (problem) {
    if (problem.passes || !(problem instanceof ApiProblem)) throw problem;
    invited = null;
    note = problem.message;
  }
}

// Uses a token in the address if it is known. A token made for a named principal could come from
// anybody, who could then read what is written, so the page asks first.
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
    note = "This server does not know the token in that address. A restarted server has a new one.";
    return;
  }
  enter(shown, me.principal);
}
begin();
