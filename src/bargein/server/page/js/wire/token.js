// The token of this tab. It stays in the tab's session storage, which belongs to this scheme, host
// and port alone, and is sent in a header: a cookie would be sent to every port of this machine.

const KEY = "bargein.token";
const WHOSE = "bargein.principal";
const GUEST = "bargein.guest";
const IN_ADDRESS = /^#token=([^&]+)$/;
const INVITED = /^#join=([^&]+)$/;

export const token = {
  get: () => sessionStorage.getItem(KEY),
  forget: () => sessionStorage.removeItem(KEY),
  /** Takes the token of another tab. The server says whose it is. */
  keepUnknown: (text) => sessionStorage.setItem(KEY, text),
  /** Notes that this tab came in by an invitation to a shared chat. */
  noteGuest: () => sessionStorage.setItem(GUEST, "yes"),
  isGuests: () => sessionStorage.getItem(GUEST) !== null,
  /** Drops what another principal left in this tab, so that it is not sent for this one. */
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
 * Returns the token in the fragment of the address, if there is one, and removes it from there.
 * Browsers send the fragment to no server.
 */
export function tokenInAddress() {
  return fromAddress(IN_ADDRESS);
}

/** The same for the code of an invitation to a shared chat. */
export function codeInAddress() {
  return fromAddress(INVITED);
}

function fromAddress(form) {
  const found = form.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", "/");
  return decodeURIComponent(found[1]);
}
