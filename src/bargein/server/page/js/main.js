// Where the page is put together: one store, what a person can do, and the views over them.

import { createActions } from "./app/actions.js";
import { createDoor } from "./app/door.js";
import { createDrawers } from "./app/drawers.js";
import { createKeys } from "./app/keys.js";
import { watchOffspring } from "./app/offspring.js";
import { createSearch } from "./app/search.js";
import { createSpoken } from "./app/spoken.js";
import { createStore, initialState } from "./app/store.js";
import { createTheme } from "./app/theme.js";
import { createWatcher } from "./app/watcher.js";
import { fillWith, h } from "./dom.js";
import { isBusy } from "./state/turns.js";
import { barView } from "./views/bar.js";
import { composerView } from "./views/composer.js";
import { gateView, refusalWords } from "./views/gate.js";
import { inboxView } from "./views/inbox.js";
import { nowView } from "./views/now.js";
import { sessionsView } from "./views/sessions.js";
import { talkView } from "./views/talk.js";
import { ApiProblem } from "./wire/problem.js";
import { api } from "./wire/api.js";

const LIST_MS = 4_000;
const AGAIN_MS = 1_500;

const byId = (id) => document.getElementById(id);
const store = createStore(initialState());
const watcher = createWatcher(store, () => actions.resendAll());
const actions = createActions(store, watcher, createDoor(store, watcher));
const drawers = createDrawers(byId("app"));
const composer = composerView(store, actions);
const inbox = inboxView(store, actions);
const gate = gateView(byId("gate"), actions);
const spoken = createSpoken();
fillWith(byId("foot"), h("div", {}, inbox.node, composer.node));
createKeys(store, actions, composer);
watchOffspring(store);

const views = [
  sessionsView(byId("sessions"), actions, createSearch(store), createTheme()),
  barView(byId("bar"), byId("banner"), store, actions, watcher, drawers),
  talkView(byId("talk"), store, actions),
  (state) => inbox.update(state.session),
  (state) => composer.update(state),
  nowView(byId("now"), store, actions),
  (state) => spoken(state.session),
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
  const id = found === null ? null : decodeURIComponent(found[1]);
  const at = found?.[2] ? Number(found[2]) : null;
  if (id === store.get().current && store.get().connection.state !== "refused") {
    if (at !== null) watcher.goTo(at);
    return;
  }
  watcher.open(id, at);
  if (id !== null && at === null) composer.focus();
}
window.addEventListener("hashchange", () => store.get().me !== null && follow());

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

// The server took no token from the address that led here.
const refused = location.search === "?refused";
if (refused) history.replaceState(null, "", `/${location.hash}`);

async function begin() {
  try {
    const me = await api.me();
    known = true;
    store.set({ me });
    await actions.listSessions();
  } catch (problem) {
    if (!(problem instanceof ApiProblem)) throw problem;
    known = !problem.passes;
    store.set({ me: null });
    if (known) gate.tell(refusalWords(problem, refused && letIn === null));
    if (problem.passes) setTimeout(begin, AGAIN_MS);
  }
}
begin();
