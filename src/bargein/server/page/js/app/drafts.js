// Drafts: text that was typed and not sent. A draft stays with its session, also over a reload. The
// text for a session that does not exist yet is a draft of its own.

const KEY = "bargein.draft.";

const keyOf = (session) => `${KEY}${session ?? "new"}`;

export function draftOf(session) {
  return sessionStorage.getItem(keyOf(session)) ?? "";
}

export function keepDraft(session, text) {
  if (text) sessionStorage.setItem(keyOf(session), text);
  else sessionStorage.removeItem(keyOf(session));
}

/** Moves the draft when the session gets another id. */
export function moveDraft(from, to) {
  const text = draftOf(from);
  keepDraft(from, "");
  if (text) keepDraft(to, text);
}

export function hasDrafts() {
  return Object.keys(sessionStorage).some((key) => key.startsWith(KEY));
}
