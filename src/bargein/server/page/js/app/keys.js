// Keys that work everywhere on the page, and the list of all of them.

import { button, h } from "../dom.js";
import { runningCalls } from "../state/calls.js";

const KEYS = [
  ["Enter", "send; while it works, in the way that is chosen"],
  ["Ctrl Enter", "redirect: stop, and answer this instead"],
  ["Tab", "while it works, with words in the field: choose another way"],
  ["Esc", "stop the turn"],
  ["Shift Enter", "a new line"],
  ["Alt ↑", "take the last waiting message back into the field"],
  ["Alt B", "move the newest running call to the background"],
  ["Alt N", "a new session"],
  ["Ctrl K", "search names, and what was said"],
  ["/", "to the message field"],
  ["?", "this list"],
];

export function createKeys(store, actions, composer) {
  const dialog = shortcuts();
  document.body.append(dialog);

  document.addEventListener("keydown", (event) => {
    const { session } = store.get();
    const typing = event.target.matches("input, textarea");
    if (event.key === "Escape" && !event.defaultPrevented && !dialog.open) {
      if (actions.canStop()) actions.stop();
    } else if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      document.getElementById("find").focus();
    } else if (event.altKey && event.key.toLowerCase() === "n") {
      event.preventDefault();
      actions.create();
    } else if (event.altKey && event.key.toLowerCase() === "b" && session !== null) {
      event.preventDefault();
      const newest = runningCalls(session).findLast((call) => call.status === "running");
      if (newest !== undefined) actions.detach(newest.id);
    } else if (!typing && event.key === "/") {
      event.preventDefault();
      composer.focus();
    } else if (!typing && event.key === "?") {
      dialog.showModal();
    } else if (event.key === "?" && typing && event.target.id === "words" && !event.target.value) {
      event.preventDefault();
      dialog.showModal();
    }
  });
}

function shortcuts() {
  const rows = KEYS.flatMap(([keys, does]) => [
    h(
      "dt",
      {},
      keys.split(" ").map((key) => [h("kbd", {}, key), " "]),
    ),
    h("dd", {}, does),
  ]);
  const dialog = h(
    "dialog",
    { class: "shortcuts", "aria-label": "Keys" },
    h("h2", {}, "Keys"),
    h("dl", {}, rows),
  );
  dialog.append(button("Close", { does: () => dialog.close(), kind: "primary" }));
  return dialog;
}
