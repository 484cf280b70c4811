// The door. A tab that is opened by hand asks the others of this origin for the token, so that
// nobody has to type it again. Of whoever signs out nothing stays in this browser, in no tab.

import { token } from "../wire/token.js";

const HAND_OVER_MS = 250;
const OWES_MS = 5_000;

export function createDoor(store, watcher, { onArrival, onLateToken }) {
  const tabs = new BroadcastChannel("bargein.door");
  let asked = null;
  let isShown = false;
  let owesUntil = 0;

  const forget = () => {
    watcher.close();
    // Else an answer that is still on its way would have it kept again.
    store.set({ outbox: [], stops: [] });
    sessionStorage.clear();
    // A new document: no view, and no history of this one, has anything left to show.
    location.replace("/");
  };

  // A tab in the background may answer when the door is shown already.
  const take = (given) => {
    asked(given);
    asked = null;
    if (isShown) onLateToken(given);
  };

  // Only while the server that knows the token was heard of last: the port may be another
  // program's by now, and its pages could ask as well.
  const maySpeak = () => {
    const { me, connection, listProblem } = store.get();
    return me !== null && listProblem === null && connection.problem === null;
  };

  // Asked while it is only connecting, a tab answers a moment later.
  const giveIfOwed = () => {
    if (Date.now() > owesUntil || !maySpeak()) return;
    owesUntil = 0;
    tabs.postMessage({ gives: token.get() });
  };
  store.subscribe(() => owesUntil && giveIfOwed());

  tabs.addEventListener("message", ({ data }) => {
    if (data.left) forget();
    else if (data.asks) {
      owesUntil = Date.now() + OWES_MS;
      giveIfOwed();
    } else if (store.get().me !== null) return;
    else if (data.arrived) onArrival();
    else if (data.gives && asked !== null) take(data.gives);
  });
  // Going back could bring the old document with all that was on it.
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());

  return {
    /** The token of another tab; null if none has one to give. */
    fromOtherTab: () =>
      new Promise((resolve) => {
        asked = resolve;
        isShown = false;
        const showDoor = () => {
          isShown = true;
          resolve(null);
        };
        setTimeout(showDoor, HAND_OVER_MS);
        tabs.postMessage({ asks: true });
      }),
    /** Somebody has signed in here: other tabs that wait at the door may come in. */
    arrived: () => tabs.postMessage({ arrived: true }),
    leave() {
      tabs.postMessage({ left: true });
      forget();
    },
  };
}
