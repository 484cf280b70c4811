// Out of the door: of whoever signs out nothing stays in this browser, in no tab. The token is in a
// cookie, which the server has taken back by then.

export function createDoor(store, watcher) {
  const tabs = new BroadcastChannel("bargein.door");
  const forget = () => {
    watcher.close();
    // Else an answer that is still on its way would have it kept again.
    store.set({ outbox: [] });
    sessionStorage.clear();
    // A new document: no view, and no history of this one, has anything left to show.
    location.replace("/");
  };
  tabs.addEventListener("message", forget);
  // Going back could bring the old document with all that was on it.
  window.addEventListener("pageshow", (event) => event.persisted && location.reload());
  return {
    leave() {
      tabs.postMessage("left");
      forget();
    },
  };
}
