// The message field, which is always open. While a turn runs, it offers the ways to send.

import { draftOf, keepDraft } from "../app/drafts.js";
import { joined } from "../app/files.js";
import { fillWith, h, setText } from "../dom.js";
import { pendingStop } from "../state/pending.js";
import { isGuest } from "../state/permission.js";
import { isBusy } from "../state/turns.js";
import { attachedView } from "./attached.js";
import { modeView } from "./permits.js";

export const MODES = [
  { mode: "steer", name: "Steer", about: "joins at its next step" },
  { mode: "interrupt", name: "Redirect", about: "stops it, then answers this" },
  { mode: "queue", name: "Queue", about: "a turn of its own, later" },
  {
    mode: "rollback",
    name: "Roll back",
    about: "stops it, hides it from the model and puts its files back",
  },
];

const STOP_WORDS = { undelivered: "Not stopped yet" };

export function composerView(store, actions) {
  const words = h("textarea", {
    id: "words",
    rows: 1,
    "aria-label": "Your message",
    "aria-describedby": "hints",
  });
  const chips = MODES.map(({ mode, name, about }) =>
    h(
      "button",
      {
        type: "button",
        class: `mode ${mode}`,
        role: "radio",
        title: about,
        on: { click: () => pick(mode) },
      },
      name,
    ),
  );
  const modes = h(
    "div",
    { class: "modes", role: "radiogroup", "aria-label": "How to send it while a turn runs" },
    chips,
  );
  const stopWord = h("span", {}, "Stop");
  const stop = h(
    "button",
    {
      type: "button",
      class: "button stop",
      "aria-keyshortcuts": "Escape",
      on: { click: () => actions.stop() },
    },
    h("span", { class: "square", "aria-hidden": "true" }),
    stopWord,
  );
  const send = h("button", { type: "submit", class: "button primary" }, "Send");
  const hints = h("div", { class: "hints", id: "hints" });
  const permission = modeView(store, actions);
  const gap = h("span", { class: "grow" });
  const attached = attachedView(store, words);
  const { add, list } = attached;
  const row = h("div", { class: "composer-row" }, add, modes, permission.node, gap, stop, send);
  const form = h("form", { class: "composer" }, list, words, row);
  const node = h("div", {}, form, hints);

  const pick = (mode) => {
    store.set({ mode });
    words.focus();
  };
  const busy = () => store.get().session !== null && isBusy(store.get().session);
  const submit = (mode) => {
    const text = words.value.trim();
    if ((!text && !attached.has()) || words.disabled) return;
    const session = saved.shown();
    const message = joined(text, attached.taken());
    words.value = "";
    saved.keep();
    grow(words);
    actions.send(session, message, busy() ? (mode ?? store.get().mode) : "steer");
    store.set({ mode: "steer" });
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  words.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit(event.ctrlKey || event.metaKey ? "interrupt" : undefined);
    } else if (event.key === "Tab" && !event.shiftKey && busy() && words.value.trim()) {
      event.preventDefault();
      const open = MODES.filter((_, place) => !chips[place].hidden);
      const place = open.findIndex((each) => each.mode === store.get().mode);
      store.set({ mode: open[(place + 1) % open.length].mode });
    } else if (event.key === "ArrowUp" && event.altKey) {
      event.preventDefault();
      takeBack();
    }
  });
  arrowKeys(modes, chips, pick);

  // Takes the last waiting message out of the inbox and back into the field.
  const takeBack = async () => {
    const { session } = store.get();
    const last = session?.messages[session.inbox.at(-1)];
    if (last === undefined || last.images?.length || words.value.trim()) return;
    const done = await actions.withdraw(last.id);
    if (done?.status !== "done") return;
    words.value = last.text;
    saved.keep();
    grow(words);
  };

  const saved = drafts(words);
  words.addEventListener("input", () => {
    saved.keep();
    grow(words);
  });

  const update = (state) => {
    const { session, current } = state;
    const working = session !== null && isBusy(session);
    // Open from the first moment, even while the session is still being read.
    const refused = state.connection.state === "refused";
    const mayOnlyRead = current === null ? state.me?.read_only : session?.access === "read";
    const closed = refused || session?.ended || mayOnlyRead;
    saved.follow(current);
    attached.follow(current, Boolean(closed));
    permission.update(state);
    words.disabled = Boolean(closed);
    words.placeholder = placeholder(state, working, mayOnlyRead);
    const pending = pendingStop(state);
    const stopping = session?.phase === "stopping" || pending !== undefined;
    modes.hidden = stop.hidden = !working || closed;
    stop.disabled = stopping;
    setText(stopWord, stopping ? (STOP_WORDS[pending?.state] ?? "Stopping …") : "Stop");
    MODES.forEach(({ mode }, place) => {
      const chosen = mode === state.mode;
      chips[place].setAttribute("aria-checked", String(chosen));
      chips[place].tabIndex = chosen ? 0 : -1;
      chips[place].hidden = mode === "rollback" && isGuest(session?.permits.may);
    });
    send.disabled = words.disabled;
    setText(send, working ? MODES.find((each) => each.mode === state.mode).name : "Send");
    showHints(hints, working && !closed ? `busy ${state.mode}` : "idle", state.mode);
  };
  return { node, update, focus: () => words.focus() };
}

function placeholder({ session, current }, working, mayOnlyRead) {
  if (session?.ended) return "This session has ended.";
  if (mayOnlyRead) return "You can read this session, but not write in it.";
  if (current === null) return "Say something to begin …";
  return working ? "Say something while it works …" : "Say something …";
}

function showHints(node, key, mode) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const hint = (keys, text) =>
    h(
      "span",
      {},
      keys.map((each) => [h("kbd", {}, each), " "]),
      text,
    );
  const chosen = MODES.find((each) => each.mode === mode);
  fillWith(
    node,
    key === "idle"
      ? [hint(["Enter"], "send"), hint(["Shift", "Enter"], "new line"), hint(["?"], "all keys")]
      : [
          hint(["Enter"], `${chosen.name.toLowerCase()}: ${chosen.about}`),
          hint(["Ctrl", "Enter"], "redirect"),
          hint(["Tab"], "another way"),
          hint(["Esc"], "stop"),
        ],
  );
}

function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function arrowKeys(group, chips, pick) {
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const open = chips.filter((chip) => !chip.hidden);
    const place = open.indexOf(document.activeElement);
    if (step === undefined || place === -1) return;
    event.preventDefault();
    const next = open[(place + step + open.length) % open.length];
    pick(MODES[chips.indexOf(next)].mode);
    next.focus();
  });
}

// The field shows the draft of one session. What is typed belongs to that session, even in the
// moment when the page changes to another.
function drafts(field) {
  let shown;
  return {
    shown: () => shown,
    keep: () => keepDraft(shown, field.value),
    follow(id) {
      if (id === shown) return;
      shown = id;
      const draft = draftOf(id);
      // Leave the same words alone, so that the caret stays.
      if (field.value !== draft) field.value = draft;
      grow(field);
    },
  };
}
