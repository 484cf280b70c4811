// The token of this tab. It stays in the tab's session storage, which belongs to this scheme, host
// and port alone, and goes out in a header: a cookie would be sent to every port of this machine.

const KEY = "bargein.token";
const WHOSE = "bargein.principal";
const IN_ADDRESS = /^#token=([^&]+)$/;

export const token = {
  get: () => sessionStorage.getItem(KEY),
  forget: () => sessionStorage.removeItem(KEY),
  /** Of another tab: whose it is, the server will say. */
  keepUnknown: (text) => sessionStorage.setItem(KEY, text),
  /** Nothing that somebody else left in this tab goes out in the name of this principal. */
  keep(text, principal) {
    const before = sessionStorage.getItem(WHOSE);
    const other = before !== null && before !== principal;
    if (other) sessionStorage.clear();
    sessionStorage.setItem(KEY, text);
    sessionStorage.setItem(WHOSE, principal);
    return other;
  },
};

/**
 * The token in the fragment of the address, if there is one. It leaves the address at once; no
 * server was sent it.
 */
export function tokenInAddress() {
  const found = IN_ADDRESS.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", "/");
  return decodeURIComponent(found[1]);
}
