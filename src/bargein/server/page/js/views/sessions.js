// The list of sessions: the name of each, what it is doing, and when it last did something.

import { toast } from "../app/tell.js";
import { button, fillWith, h, keyedList, setText } from "../dom.js";
import { ago, count, shownPhase, titleOf } from "../format.js";
import { openQuestions, runningCalls } from "../state/calls.js";
import { foundView } from "./found.js";
import { invitationsView } from "./invitations.js";

const NONE = [];
const BELL_OFF = "Tell me when an answer is needed, or a long turn ends, while I look elsewhere";
const BELL_ON = "You are told when an answer is needed or a long turn ends. Press to turn this off";

export function sessionsView(node, actions, search, theme, notices) {
  const find = h("input", {
    type: "search",
    class: "find",
    id: "find",
    placeholder: "Search",
    "aria-label": "Search sessions",
    "aria-keyshortcuts": "Control+K",
    on: { input: () => search(find.value), keydown: leaveSearch },
  });
  const list = h("ul", { class: "session-list" });
  const found = foundView();
  const invitations = invitationsView(actions);
  const rows = h("div", { class: "session-list" }, list);
  const more = button("Show more", { does: () => actions.moreSessions(), kind: "quiet" });
  const told = h("p", { class: "notice", role: "status" });
  const who = h("span", { class: "who" });
  const themeButton = button("", { does: () => theme.turn(), kind: "quiet" });
  const create = button("New", {
    does: () => actions.create(),
    name: "New session",
    kind: "primary",
    title: "New session (Alt+N)",
    key: "Alt+N",
  });
  const leave = button("Sign out", { does: () => actions.signOut(), kind: "quiet" });
  const serverButton = button("Server", { does: () => actions.openServer(), kind: "quiet" });
  const bell = button("Notify me", { does: () => turnBell(), kind: "quiet" });
  const showBell = () => {
    bell.setAttribute("aria-pressed", String(notices.isOn()));
    setText(bell, notices.isOn() ? "Notifies" : "Notify me");
    bell.title = notices.isOn() ? BELL_ON : BELL_OFF;
  };
  const turnBell = async () => {
    const problem = await notices.turn();
    if (problem) toast(problem);
    showBell();
  };
  showBell();
  rows.append(more, invitations.node, found.node, told);
  fillWith(
    node,
    h(
      "div",
      { class: "brand" },
      h("img", { src: "/static/icon.svg", alt: "" }),
      h("strong", {}, "Bargein"),
      create,
    ),
    find,
    rows,
    h("div", { class: "sessions-foot" }, who, leave, serverButton, bell, themeButton),
  );
  const draw = keyedList(list, () => sessionRow(actions));
  theme.onChange((name) => {
    setText(themeButton, name === "dark" ? "Light" : "Dark");
    themeButton.setAttribute("aria-label", `Use the ${name === "dark" ? "light" : "dark"} theme`);
  });

  return (state) => {
    const words = state.filter.trim().toLowerCase();
    const called = state.sessions.filter((each) => titleOf(each).toLowerCase().includes(words));
    const root = state.current?.split("/")[0];
    draw(
      called.map((each) => rowState(asShown(each, state.session), each.id === root)),
      (each) => each.id,
    );
    more.hidden = !state.moreSessions;
    found.update(state.hits);
    invitations.update(words ? NONE : state.invitations);
    setText(told, listWords(state, called));
    setText(more, words ? "Search more names" : "Show more");
    who.title = [state.me?.principal, state.me?.model].filter(Boolean).join(" · ");
    setText(who, who.title);
  };
}

// Escape only empties the field; here it is not a stop.
function leaveSearch(event) {
  if (event.key !== "Escape" || !event.target.value) return;
  event.preventDefault();
  event.target.value = "";
  event.target.dispatchEvent(new Event("input"));
}

function listWords({ listProblem, sessions, filter, hits }, called) {
  if (listProblem !== null && !sessions.length) return listProblem.message;
  if (!sessions.length) return "No sessions yet.";
  if (hits?.problem) return `What was said cannot be searched now: ${hits.problem.message}`;
  if (called.length || hits?.found.length) return "";
  const words = filter.trim();
  return hits?.words === words
    ? `No session is named “${words}”, and no message contains it.`
    : `No session is named “${words}”.`;
}

// Returns the same value again if nothing that is shown has changed, so that the row stays as it
// is.
const seen = new Map();
function rowState(session, current) {
  const state = shownPhase(session);
  const when = ago(session.updated_at * 1000, Date.now());
  const { title, waiting, background } = session;
  const key = [title, state, when, waiting, background, current].join("\u0000");
  const last = seen.get(session.id);
  if (last?.key === key) return last.row;
  const row = { ...session, current, dot: state, when };
  seen.set(session.id, { key, row });
  return row;
}

// The session on the screen is known better than from the list, which comes every few seconds.
function asShown(listed, session) {
  if (session?.id !== listed.id) return listed;
  const { phase, held, inbox, title } = session;
  const asking = openQuestions(session).length;
  const background = runningCalls(session).filter((call) => call.status === "background").length;
  const now = { phase, held, asking, background, waiting: inbox.length };
  return { ...listed, ...now, title: title ?? listed.title };
}

const STATE_WORDS = {
  idle: "",
  held: "held",
  asking: "needs your answer",
  running: "working",
  paused: "paused",
  stopping: "stopping",
  ended: "ended",
};

function sessionRow(actions) {
  const dot = h("span", { class: "dot" });
  const title = h("span", { class: "title" });
  const when = h("span", { class: "when" });
  const about = h("span", { class: "about" });
  const link = h("a", {}, dot, title, when, about);
  const more = h("button", { type: "button", class: "more" }, "✎");
  const node = h("li", { class: "session-row" }, link, more);
  let session = null;

  const rename = () => {
    const field = h("input", { value: session.title, maxlength: 200, "aria-label": "New name" });
    let open = true;
    const done = (save) => {
      // Removing the field blurs it, which would end the renaming once more.
      if (!open) return;
      open = false;
      fillWith(node, link, more);
      if (save && field.value.trim() && field.value !== session.title)
        actions.rename(session.id, field.value.trim());
      more.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      // The key ends here: it must neither press the button that gets the focus nor stop a turn.
      event.preventDefault();
      event.stopPropagation();
      done(event.key === "Enter");
    });
    field.addEventListener("blur", () => done(true));
    const remove = button("Delete", {
      does: () =>
        confirm(`Delete “${titleOf(session)}” and all that is in it?`) &&
        actions.remove(session.id),
      name: `Delete ${titleOf(session)}`,
      kind: "stop",
    });
    remove.addEventListener("pointerdown", (event) => event.preventDefault());
    fillWith(node, field, session.access === "own" ? remove : null);
    field.focus();
    field.select();
  };
  more.addEventListener("click", rename);

  const update = (next) => {
    session = next;
    node.classList.toggle("current", next.current);
    if (next.current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    link.href = `#/s/${encodeURIComponent(next.id)}`;
    dot.className = `dot ${next.dot}`;
    setText(title, titleOf(next));
    setText(when, next.when);
    const words = [
      STATE_WORDS[next.dot],
      next.waiting ? count(next.waiting, "message") + " waiting" : "",
      next.background ? `${next.background} in the background` : "",
    ];
    setText(about, words.filter(Boolean).join(" · "));
    about.hidden = !about.textContent;
    more.setAttribute("aria-label", `Rename or delete ${titleOf(next)}`);
    more.hidden = next.access === "read";
  };
  return { node, update };
}
