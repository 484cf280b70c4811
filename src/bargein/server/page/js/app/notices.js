// Notifications of the browser, for people who asked for them: when an answer is needed, and when a
// turn that took long has ended. Only while nobody looks at the page.

import { firstLine, titleOf } from "../format.js";
import { openQuestions } from "../state/calls.js";

const KEY = "bargein.notices";
const LONG_MS = 10_000;

/** Returns `{isOn(), turn(), follow(state)}`. `show(session)` shows a session of which it told. */
export function createNotices(show) {
  const known = new Map();

  const isOn = () =>
    "Notification" in window &&
    Notification.permission === "granted" &&
    localStorage.getItem(KEY) === "on";

  const tell = (session, title, body) => {
    if (!isOn() || (!document.hidden && document.hasFocus())) return;
    const notice = new Notification(title, { body, tag: session, icon: "/static/icon.svg" });
    notice.addEventListener("click", () => {
      window.focus();
      notice.close();
      show(session);
    });
  };

  const look = (now, at) => {
    const before = known.get(now.id);
    const since = now.working ? (before?.since ?? at) : null;
    known.set(now.id, { ...now, since });
    if (before === undefined) return;
    if (now.asking > before.asking) tell(now.id, `${now.title} needs an answer`, now.question);
    else if (before.working && !now.working && at - before.since >= LONG_MS)
      tell(now.id, `${now.title} is done`, now.last);
  };

  return {
    isOn,
    /** Turns it on, after asking the browser, or off. Returns a problem in words, or "". */
    async turn() {
      if (isOn()) {
        localStorage.removeItem(KEY);
        return "";
      }
      if (!("Notification" in window))
        return "Browsers show notifications only for pages of this machine or over HTTPS.";
      if ((await Notification.requestPermission()) !== "granted")
        return "The browser does not allow notifications for this page.";
      localStorage.setItem(KEY, "on");
      return "";
    },
    follow({ session, sessions }) {
      const at = Date.now();
      for (const each of sessions) if (each.id !== session?.id) look(listed(each), at);
      if (session !== null && session.access !== undefined) look(seen(session), at);
    },
  };
}

function isWorking(phase) {
  return phase === "running" || phase === "stopping" || phase === "paused";
}

function listed(session) {
  const { id, phase, asking } = session;
  const told = { question: "", last: "" };
  return { id, title: titleOf(session), working: isWorking(phase), asking, ...told };
}

function seen(session) {
  const open = openQuestions(session);
  const last = session.items.findLast((each) => each.kind === "answer");
  return {
    id: session.id,
    title: titleOf(session),
    working: isWorking(session.phase),
    asking: open.length,
    question: firstLine(open.at(-1)?.text ?? ""),
    last: firstLine(last?.text ?? ""),
  };
}
