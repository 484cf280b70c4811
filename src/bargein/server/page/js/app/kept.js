// Lists of the page's state that stay with the tab over a reload: unsent messages, and stops that
// were not answered.

/** Returns what an earlier document of this tab left under this key. */
export function leftOver(key) {
  return JSON.parse(sessionStorage.getItem(key) ?? "[]");
}

/** Returns a function that changes the list `name` of the state with `change(list)`. */
export function createKept(store, name, key) {
  return (change) => {
    store.set((state) => ({ [name]: change(state[name]) }));
    try {
      sessionStorage.setItem(key, JSON.stringify(store.get()[name]));
    } catch {
      // The storage is full: it is still sent, as long as this document is open.
    }
  };
}
