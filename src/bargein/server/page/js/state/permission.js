// Permissions of a session, from its log and the server: the permission mode, what this principal
// may do about it, and the grants of approvals.
//
//   mode      as the log or the server said last; null until then
//   may       what the server lets this principal do; null until it has said so
//   grants    as the server lists them
//   changes   counts the events after which `may` and `grants` must be asked for again

import { visible } from "./visible.js";

export const NOTHING_PERMITTED = { mode: null, may: null, grants: [], changes: 0 };

export const MODES = [
  { mode: "plan", name: "Plan", about: "read only" },
  { mode: "ask", name: "Ask", about: "the rules decide what is asked" },
  { mode: "auto-edit", name: "Auto-edit", about: "edits run without asking" },
  { mode: "full", name: "Full", about: "nothing is asked" },
];

const changed = (state, also = {}) => ({
  ...state,
  permits: { ...state.permits, ...also, changes: state.permits.changes + 1 },
});

export const permissionHandlers = {
  permission_changed: (state, { mode }) => changed(state, { mode }),
  granted: (state) => changed(state),
  grant_revoked: (state) => changed(state),
};

/** Takes `mode` and `may` from the server's detail of the session. */
export function withPermits(state, { mode, may }) {
  return mode === undefined ? state : { ...state, permits: { ...state.permits, mode, may } };
}

export function withGrants(state, grants) {
  return { ...state, permits: { ...state.permits, grants } };
}

/**
 * Returns how an open question can be answered here. `mine`: whether this principal can answer it
 * at all; null while that is not known, and for those who only read. `choices`: the answers that it
 * can give to an approval.
 */
export function offered({ open, asks, choices, answerableBy, grant, may }) {
  if (!open || !may?.answers.length) return { mine: null, choices: [] };
  if (!may.answers.includes(answerableBy)) return { mine: false, choices: [] };
  const given = asks === "approval" && grant !== null ? choices : [];
  return { mine: true, choices: given.filter((choice) => may.choices.includes(choice)) };
}

/** Returns whether `may` is that of a guest, who talks, approves nothing and undoes nothing. */
export function isGuest(may) {
  const answers = may?.answers ?? [];
  return answers.length > 0 && !answers.includes("writer");
}

/** Describes what an answer for longer than one call allows, as the terminal and the log do. */
export function grantWords(grant) {
  if (grant === null) return "";
  const { tool, arguments: named = [] } = grant;
  if (named.length === 1) return visible(`${tool}: ${named[0][1]}`);
  const all = named.map(([name, text]) => `${name}: ${text}`).join(", ");
  return visible(all ? `${tool} (${all})` : tool);
}
