// What was typed and not sent: it stays with its session, also over a reload of the tab. What is
// typed before there is a session is a draft of its own.

const KEY = "bargein.draft.";

const keyOf = (session) => `${KEY}${session ?? "new"}`;

export function draftOf(session) {
  return sessionStorage.getItem(keyOf(session)) ?? "";
}

export function keepDraft(session, text) {
  if (text) sessionStorage.setItem(keyOf(session), text);
  else sessionStorage.removeItem(keyOf(session));
}

/** The session has another id from now on. */
export function moveDraft(from, to) {
  const text = draftOf(from);
  keepDraft(from, "");
  if (text) keepDraft(to, text);
}

export function hasDrafts() {
  return Object.keys(sessionStorage).some((key) => key.startsWith(KEY));
}
