// The waiting messages, in order. A person can reorder them (by dragging, or with the arrow keys),
// change them, take them back, and release them if a stop has held them.

import { button, fillWith, h, keyedList, setText } from "../dom.js";
import { count, firstLine } from "../format.js";
import { announce } from "../app/tell.js";
import { splitFiles } from "../state/content.js";
import { waitingMessages } from "../state/inbox.js";
import { nameOf } from "./messages.js";

const LANES = {
  steer: ["steer", "joins at the next step"],
  next: ["next", "the next to be answered, before the queue"],
  queue: ["queued", "has a turn of its own, later"],
};
const NEWS = ["news", "reports to the model how something in the background ended"];

export function inboxView(store, actions) {
  const words = h("span", { class: "grow" });
  const goOn = button("Continue", {
    does: () => actions.goOn(),
    kind: "primary",
    title: "Send the held messages",
  });
  const list = h("ol", { class: "inbox-list", "aria-label": "Waiting messages" });
  const node = h(
    "section",
    { class: "inbox", "aria-label": "Inbox" },
    h("div", { class: "inbox-head" }, words, goOn),
    list,
  );
  const draw = keyedList(list, () => waitingRow(store, actions, list));

  const update = (session) => {
    const waiting = session === null ? [] : waitingMessages(session);
    node.hidden = !waiting.length;
    node.classList.toggle("held", session?.held ?? false);
    const many = count(waiting.length, "message");
    setText(words, session?.held ? `${many} held by your stop` : `${many} waiting`);
    goOn.hidden = !session?.held || session.access === "read";
    draw(waiting, (each) => each.id);
  };
  return { node, update };
}

// Returns the first line of the words, and the names of the files that go along.
function shownWords({ text }) {
  const { words, files } = splitFiles(text);
  const names = files.map(({ name }) => name).join(", ");
  return [firstLine(words, 300), names].filter(Boolean).join(" · ");
}

function waitingRow(store, actions, list) {
  const handle = h("button", { type: "button", class: "handle" }, "⠿");
  const lane = h("span", { class: "lane" });
  const text = h("span", { class: "text" });
  const edit = button("Edit", { does: () => editIn(), kind: "quiet" });
  const remove = button("Remove", { does: () => actions.withdraw(message.id), kind: "quiet" });
  const who = h("span", { class: "who" });
  const parts = [handle, lane, text, who, edit, remove];
  const node = h("li", { class: "waiting" }, parts);
  let message = null;

  const editIn = () => {
    const field = h("textarea", { rows: 2, "aria-label": "Change the message" });
    field.value = message.text;
    const done = (save) => {
      if (!field.isConnected) return;
      fillWith(node, parts);
      if (save && field.value.trim() && field.value !== message.text)
        actions.edit(message.id, field.value);
      edit.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) done(true);
      else if (event.key === "Escape") done(false);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const save = button("Save", { does: () => done(true), kind: "primary" });
    fillWith(node, field, save, button("Cancel", { does: () => done(false), kind: "quiet" }));
    field.focus();
  };

  const moveBy = async (step) => {
    const inbox = waitingMessages(store.get().session).map((each) => each.id);
    const place = inbox.indexOf(message.id);
    const target = place + step;
    if (target < 0 || target >= inbox.length) return;
    const before = step < 0 ? inbox[target] : (inbox[target + 1] ?? null);
    await actions.move(message.id, before);
    announce(`Now number ${target + 1} of ${inbox.length}`);
    handle.focus();
  };
  handle.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    moveBy(event.key === "ArrowUp" ? -1 : 1);
  });
  draggable(handle, node, list, (before) => actions.move(message.id, before));

  const update = (next) => {
    message = next;
    node.dataset.message = next.id;
    // Nobody can change the message that reports the end of background work to the model.
    const news = next.sender === "background";
    const [name, title] = news ? NEWS : (LANES[next.lane] ?? LANES.queue);
    lane.className = `lane ${news ? "news" : next.lane}`;
    setText(lane, name);
    lane.title = title;
    setText(text, shownWords(next));
    setText(who, news ? "" : nameOf(next.sender, store.get().me));
    text.title = next.text;
    const readOnly = news || store.get().session?.access === "read";
    const about = firstLine(next.text, 40);
    handle.hidden = remove.hidden = readOnly;
    // The page does not have the pictures, so a change would drop them.
    edit.hidden = readOnly || next.images?.length > 0;
    handle.setAttribute("aria-label", `Move “${about}” with the up and down keys`);
    edit.setAttribute("aria-label", `Edit “${about}”`);
    remove.setAttribute("aria-label", `Remove “${about}”`);
  };
  return { node, update };
}

// Pointer events work for mouse, pen and finger alike.
function draggable(handle, node, list, drop) {
  handle.addEventListener("pointerdown", (down) => {
    if (down.button !== 0) return;
    handle.setPointerCapture(down.pointerId);
    node.classList.add("dragging");
    let over = undefined;
    const mark = (row) => {
      for (const each of list.children) each.classList.toggle("over", each === row);
    };
    const move = (event) => {
      const rows = [...list.children].filter((each) => each !== node);
      const next = rows.find((each) => {
        const box = each.getBoundingClientRect();
        return event.clientY < box.top + box.height / 2;
      });
      over = next ?? null;
      mark(next);
    };
    const end = (event) => {
      handle.removeEventListener("pointermove", move);
      node.classList.remove("dragging");
      mark(null);
      const same = over === undefined || (over ?? null) === node.nextElementSibling;
      if (event.type === "pointerup" && !same) drop(over?.dataset.message ?? null);
    };
    handle.addEventListener("pointermove", move);
    handle.addEventListener("pointerup", end, { once: true });
    handle.addEventListener("pointercancel", end, { once: true });
  });
}
