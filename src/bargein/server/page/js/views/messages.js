// A person's message in the conversation: the words, who wrote them, and what can be done with
// them. And a message that has not reached the server yet.

import { copyButton } from "../app/copying.js";
import { button, fillWith, h } from "../dom.js";
import { clock, firstLine, size } from "../format.js";
import { splitFiles } from "../state/content.js";
import { wordsOfTurn } from "../state/inbox.js";

const HOW = { steered: "↳ steered in", interrupt: "│ redirected", rollback: "│ rolled back" };

export function messageView(_, store, actions) {
  const words = h("div", { class: "words" });
  const about = h("div", { class: "about" });
  const copy = copyButton(() => item.text, { name: "Copy this message" });
  const edit = button("Edit", {
    does: () => editIn(),
    kind: "quiet writes",
    title: "Go back to before this message, and ask something else",
  });
  const retry = button("Try again", {
    does: () => actions.askAgain(item.turn),
    kind: "quiet writes",
    title: "Go back to before this message, and ask the same again",
  });
  const undo = button("Undo", {
    does: () => actions.undo(item.turn),
    kind: "quiet writes",
    title: "Go back to before this message",
  });
  const acts = h("div", { class: "acts" }, copy, edit, retry, undo);
  const node = h("li", { tabindex: "-1" }, words, about, acts);
  let item = null;

  const editIn = () => {
    const field = editor(wordsOfTurn(store.get().session, item.turn), {
      save(text) {
        show();
        if (text !== null) actions.askAgain(item.turn, text);
        else edit.focus();
      },
    });
    fillWith(node, field.node);
    field.focus();
  };
  const show = () => fillWith(node, words, about, acts);

  const update = (next) => {
    item = next;
    if (item.sender === "background") {
      node.className = "notice";
      fillWith(node, `In the background: ${firstLine(item.text)}`);
      return;
    }
    node.className = `message ${item.mode}${item.hidden ? " hidden-turn" : ""}`;
    showWords(words, item);
    fillWith(about, aboutOf(item, store.get().me));
    const isSubAgents = store.get().current?.includes("/");
    undo.hidden = !item.leads || item.hidden || isSubAgents;
    // The page does not have the pictures any more.
    edit.hidden = retry.hidden = undo.hidden || item.images?.length > 0;
  };
  return { node, update };
}

// Files are shown by their names, and open to show their text.
function showWords(node, { text, images = [] }) {
  const { words, files } = splitFiles(text);
  const spoken = images.length ? words.replace(/(\n?\[image\])+$/, "") : words;
  fillWith(
    node,
    spoken,
    files.map(({ name, text: body }) =>
      h("details", { class: "file" }, h("summary", {}, name), h("pre", { tabindex: "0" }, body)),
    ),
    images.map((each) => h("span", { class: "file" }, imageWords(each))),
  );
}

function imageWords({ kind, media_type: type = "", size: bytes }) {
  const what = kind ?? type.replace("image/", "");
  return `picture · ${what}${bytes ? ` · ${size(bytes)}` : ""}`;
}

function aboutOf(item, me) {
  const stopped = item.disposition === "interrupting" ? HOW[item.mode] : null;
  const how = item.how === "steered" ? HOW.steered : stopped;
  const files = (item.attachments ?? []).map((name) => h("span", {}, name));
  return [
    h("span", { class: "who" }, nameOf(item.sender, me)),
    files,
    item.editedBy ? h("span", {}, "edited") : null,
    how ? h("span", { class: stopped ? "how cutting" : "how" }, how) : null,
    h("time", {}, clock(item.at)),
  ];
}

/** Returns how somebody is called on the page: by name, or `You`. */
export function nameOf(sender, me) {
  return sender === me?.principal ? "You" : sender;
}

// The field in which a message is changed. Calls `save(text)`, with null if nothing is to change.
function editor(text, { save }) {
  const field = h("textarea", { rows: 3, "aria-label": "Change the message" });
  field.value = text;
  const done = () => field.value.trim() && save(field.value.trim());
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) done();
    else if (event.key === "Escape") save(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const node = h(
    "div",
    { class: "editor" },
    field,
    h(
      "div",
      { class: "row" },
      button("Cancel", { does: () => save(null), kind: "quiet" }),
      button("Send", { does: done, name: "Send the changed message", kind: "primary" }),
    ),
  );
  const focus = () => {
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  };
  return { node, focus };
}

const TOLD = {
  sending: () => "sending …",
  later: () => "not sent yet: it goes out when the server is back",
  held: () => "not sent: you stopped before it went out",
  refused: ({ problem }) => `not sent: ${problem}`,
};

export function outgoingView(_, __, actions) {
  const words = h("div", { class: "words" });
  const about = h("div", { class: "about" });
  const node = h("li", { class: "message sending" }, words, about);
  const update = (entry) => {
    showWords(words, { text: entry.text, images: entry.pictures });
    const again = button("Send again", { does: () => actions.resend(entry), kind: "quiet" });
    const drop = button("Discard", { does: () => actions.discard(entry), kind: "quiet" });
    const stays = entry.state === "refused" || entry.state === "held";
    fillWith(about, h("span", {}, TOLD[entry.state](entry)), stays ? [again, drop] : null);
  };
  return { node, update };
}
