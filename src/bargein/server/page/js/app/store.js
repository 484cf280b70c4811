// The one state of the page. All changes are made here. Views are called once a frame, however
// often the state changed.

import { unsent } from "./outbox.js";
import { unfinished } from "./stops.js";

export function createStore(initial) {
  let state = initial;
  let due = false;
  const listeners = new Set();

  const announce = () => {
    due = false;
    for (const listener of listeners) listener(state);
  };

  return {
    get: () => state,
    /** `change` gets the state and returns what differs. */
    set(change) {
      const changes = typeof change === "function" ? change(state) : change;
      state = { ...state, ...changes };
      if (due) return;
      due = true;
      // A page in the background gets no frames, and must still keep up.
      if (document.hidden) setTimeout(announce, 100);
      else requestAnimationFrame(announce);
    },
    /** Shows the state now, not with the next frame. */
    flush: announce,
    subscribe(listener) {
      listeners.add(listener);
      listener(state);
    },
  };
}

/** The state of the page before it has asked anything. */
export function initialState() {
  return {
    me: null,
    sessions: [],
    invitations: [],
    sessionsLimit: 50,
    moreSessions: false,
    listProblem: null,
    filter: "",
    hits: null,
    current: null,
    session: null,
    connection: { state: "none", problem: null },
    clockOffset: 0,
    outbox: unsent(),
    stops: unfinished(),
    shown: 120,
    place: null,
    mode: "steer",
  };
}
