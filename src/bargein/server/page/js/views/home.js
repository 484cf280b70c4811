// What the conversation shows while there is none: at home the sessions of late; in a new session
// an invitation to write; while one is read, that it is being read; and why one cannot be shown.

import { fillWith, h, keyedList, setText } from "../dom.js";
import { ago, count, shownPhase, titleOf } from "../format.js";

const RECENT_MAX = 6;
const STATES = {
  asking: "needs your answer",
  running: "working",
  stopping: "stopping",
  held: "held",
};

export function homeView(node) {
  const title = h("h2");
  const words = h("p");
  const list = h("ul", { class: "recent-list" });
  const name = h("h3", { class: "label", id: "recent-name" }, "Recent");
  const recent = h("section", { class: "recent", "aria-labelledby": "recent-name" }, name, list);
  const draw = keyedList(list, recentRow);
  fillWith(node, title, words, recent);

  /** `length` is how much the conversation has to show. */
  return (state, length) => {
    const shown = length > 0 ? null : shownFor(state);
    node.hidden = shown === null;
    node.classList.toggle("reading", shown === READING);
    if (shown === null) return;
    setText(title, shown.title);
    setText(words, shown.words);
    const sessions = state.current === null ? state.sessions.slice(0, RECENT_MAX) : [];
    recent.hidden = !sessions.length;
    draw(sessions, (each) => each.id);
  };
}

const READING = { title: "Reading the conversation …", words: "" };

function shownFor({ current, session, connection, me }) {
  if (connection.state === "refused")
    return { title: "Nothing to show", words: connection.problem.message };
  if (current === null) return { title: "Barge in any time.", words: BEGIN };
  // It has events that are not here yet.
  if (session === null || (session.access === undefined && session.seq === 0)) return READING;
  const listens = me?.model ? `; ${me.model} listens while it works` : "";
  return { title: "What shall we do?", words: `${WRITE}${listens}.` };
}

const BEGIN =
  "Write below to begin a session. You can speak while it works: stop it, steer it, send it " +
  "elsewhere. Nothing you say is lost.";
const WRITE = "Write below. You need not wait for an answer to say the next thing";

function recentRow() {
  const dot = h("span", { class: "dot" });
  const title = h("span", { class: "title" });
  const about = h("span", { class: "about" });
  const link = h("a", {}, dot, title, about);
  const node = h("li", {}, link);
  const update = (session) => {
    const phase = shownPhase(session);
    link.href = `#/s/${encodeURIComponent(session.id)}`;
    dot.className = `dot ${phase}`;
    setText(title, titleOf(session));
    const waiting = session.waiting ? `${count(session.waiting, "message")} waiting` : "";
    const when = ago(session.updated_at * 1000, Date.now());
    setText(about, [STATES[phase], waiting, when].filter(Boolean).join(" · "));
  };
  return { node, update };
}
