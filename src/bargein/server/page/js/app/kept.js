// Lists of the page's state that stay with the tab, also over a reload: what was said and has not
// gone out yet, and stops that have not been answered.

/** What an earlier document of this tab left under this key. */
export function leftOver(key) {
  return JSON.parse(sessionStorage.getItem(key) ?? "[]");
}

/** A way to change the list `name` of the state: `change` makes the new list of the old one. */
export function createKept(store, name, key) {
  return (change) => {
    store.set((state) => ({ [name]: change(state[name]) }));
    try {
      sessionStorage.setItem(key, JSON.stringify(store.get()[name]));
    } catch {
      // No room: it goes out all the same, as long as this document is there.
    }
  };
}
