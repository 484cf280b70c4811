// What was said and has not gone out yet. It stays with the tab, also over a reload: it goes out
// under the id that it has, so it cannot arrive twice.

const KEY = "bargein.outbox";

/** What an earlier document of this tab could not hand over. */
export function leftOver() {
  const entries = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
  return entries.map((each) => (each.state === "refused" ? each : { ...each, state: "later" }));
}

/** A way to change it: `change` makes the new list of the old one. */
export function createOutbox(store) {
  return (change) => {
    store.set(({ outbox }) => ({ outbox: change(outbox) }));
    try {
      sessionStorage.setItem(KEY, JSON.stringify(store.get().outbox));
    } catch {
      // No room: it goes out all the same, as long as this document is there.
    }
  };
}
