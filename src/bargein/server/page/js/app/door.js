// Signing in and out. A tab that is opened by hand asks the other tabs of this origin for the
// token, so that nobody has to type it again. After signing out, nothing is left in any tab.

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
    // Otherwise an answer that is still on its way would store it again.
    store.set({ outbox: [], stops: [] });
    sessionStorage.clear();
    // A new document, so that neither views nor the history show anything of this one.
    location.replace("/");
  };

  // A tab in the background may answer after the sign-in screen is shown.
  const take = (given) => {
    asked(given);
    asked = null;
    if (isShown) onLateToken(given);
  };

  // Only while the server that knows the token is connected: another program may have the port by
  // now, and its pages could ask as well.
  const maySpeak = () => {
    const { me, connection, listProblem } = store.get();
    return me !== null && listProblem === null && connection.problem === null;
  };

  // A tab that is still connecting answers a moment later.
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
  // Going back could show the old document with its content.
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());

  return {
    /** Returns the token of another tab, or null. */
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
    /** Somebody has signed in here: lets other waiting tabs in. */
    arrived: () => tabs.postMessage({ arrived: true }),
    leave() {
      tabs.postMessage({ left: true });
      forget();
    },
  };
}
