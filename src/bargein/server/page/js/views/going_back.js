// Goes back to before a turn, after a look at what that means: what the model does not see any
// more, which files are put back, which are kept because somebody else changed them, and what
// cannot be undone. The user chooses.

import { button, fillWith, h, setText } from "../dom.js";
import { count } from "../format.js";
import { FILE_MARKS } from "../state/receipt.js";
import { isBusy, turnsFrom, turnToStop } from "../state/turns.js";
import { diffView } from "../text/diff.js";
import { dialogView, failed, pending } from "./dialog.js";

const CHOICES = [
  { what: "both", name: "Conversation and files" },
  { what: "conversation", name: "Only the conversation" },
  { what: "files", name: "Only the files" },
];

/** Returns `{askAgain(turn, text), undo(turn)}`. `api` is the server's, `send(text)` sends. */
export function goingBackView(store, api, { send, tell }) {
  const dialog = dialogView("going-back");

  // Asks what going back would do. Without files, effects and later turns there is no choice.
  const begin = async (turn, { name, words, always }) => {
    const { current, session } = store.get();
    dialog.open(name, pending());
    if (isBusy(session) && !(await stopped(current, session))) return;
    const turns = turnsFrom(store.get().session, turn);
    let preview;
    try {
      preview = await api.previewUndo(current, turn);
    } catch (problem) {
      dialog.fill(failed(problem));
      return;
    }
    // Closed meanwhile: the user has thought better of it.
    if (!dialog.isOpen()) return;
    const files = preview.files?.files ?? [];
    const go = (wanted) => goBack(current, turn, wanted, words);
    if (!always && turns.length < 2 && !files.length && !preview.effects?.length) {
      await go({});
      return;
    }
    const does = words === null ? "Go back" : "Go back and ask";
    dialog.fill(choiceNodes({ turns, preview, does, words, go, diff: showDiff(current, turn) }));
  };

  // Going back needs rest. Returns whether nothing runs any more.
  const stopped = (current, session) =>
    new Promise((resolve) => {
      const stop = button("Stop it and go on", {
        kind: "stop",
        async does() {
          stop.disabled = true;
          try {
            await api.stop(current, turnToStop(session));
            resolve(true);
          } catch (problem) {
            dialog.fill(failed(problem));
            resolve(false);
          }
        },
      });
      dialog.fill(h("p", {}, "A turn is running. It has to be stopped first."), stop);
      dialog.node.addEventListener("close", () => resolve(false), { once: true });
    });

  const goBack = async (session, turn, wanted, words) => {
    try {
      const { calls, ...how } = wanted;
      const done = await api.rewind(session, turn, how);
      if (calls?.length) await api.undoCalls(session, calls);
      dialog.close();
      tell(doneWords(done.files));
      if (words !== null) send(session, words);
    } catch (problem) {
      dialog.fill(failed(problem));
    }
  };

  const showDiff = (session, turn) => async (place) => {
    fillWith(place, pending());
    try {
      const { diff } = await api.diff(session, turn);
      fillWith(place, diff ? diffView(diff) : h("p", {}, "This turn changed no files."));
    } catch (problem) {
      fillWith(place, failed(problem));
    }
  };

  return {
    askAgain: (turn, words) => begin(turn, { name: "Ask again", words, always: false }),
    undo: (turn) => begin(turn, { name: "Undo", words: null, always: true }),
    showChanges(turn) {
      const place = h("div");
      dialog.open("Changes of this turn", place);
      return showDiff(store.get().current, turn)(place);
    },
  };
}

function choiceNodes({ turns, preview, does, words, go, diff }) {
  const files = preview.files?.files ?? [];
  const choices = CHOICES.filter(({ what }) => what !== "files" || words === null);
  const what = files.length ? "both" : "conversation";
  const chosen = { what, overrule: new Set(), calls: new Set() };
  const list = h("ul", { class: "undo-files" });
  const shown = h("div", { class: "undo-diff" });
  const show = () => {
    list.hidden = chosen.what === "conversation";
  };
  const act = button(does, {
    kind: "primary",
    async does() {
      act.disabled = true;
      setText(act, "Going back …");
      const { what, overrule, calls } = chosen;
      await go({ what, overrule: [...overrule], calls: [...calls] });
    },
  });
  fillWith(
    list,
    files.map((file) => fileRow(file, chosen.overrule)),
    preview.files?.more ? h("li", {}, `and ${count(preview.files.more, "more file")}`) : null,
  );
  show();
  const radios = files.length ? choiceOf(choices, chosen, show) : null;
  return [
    h("p", {}, seenWords(turns)),
    radios,
    list,
    effectNodes(preview.effects ?? []),
    offerNodes(preview.offers ?? [], chosen.calls),
    shown,
    h(
      "div",
      { class: "row" },
      files.length ? button("Show the changes", { does: () => diff(shown), kind: "quiet" }) : null,
      h("span", { class: "grow" }),
      act,
    ),
  ];
}

function choiceOf(choices, chosen, show) {
  return h(
    "fieldset",
    { class: "choice" },
    h("legend", { class: "unseen" }, "What to take back"),
    choices.map(({ what, name }) => {
      const radio = h("input", {
        type: "radio",
        name: "what",
        value: what,
        checked: what === chosen.what,
        on: {
          change() {
            chosen.what = what;
            show();
          },
        },
      });
      return h("label", {}, radio, " ", name);
    }),
  );
}

function seenWords(turns) {
  if (turns.length < 2) return "The model will not see this turn any more. It stays in the log.";
  return `The model will not see ${count(turns.length, "turn")} any more. They stay in the log.`;
}

// A file that somebody else changed is kept, unless the user says otherwise.
function fileRow({ path, fate, why }, overrule) {
  const kept = fate === "kept";
  const box = h("input", {
    type: "checkbox",
    on: {
      change() {
        if (box.checked) overrule.add(path);
        else overrule.delete(path);
      },
    },
  });
  return h(
    "li",
    { class: kept ? "kept" : "" },
    h("span", { class: "fate", "aria-hidden": "true" }, FILE_MARKS[fate] ?? "·"),
    h("code", {}, path),
    h("span", { class: "sub" }, kept ? `kept: ${why}` : fate),
    kept ? h("label", {}, box, " put it back all the same") : null,
  );
}

function effectNodes(effects) {
  if (!effects.length) return null;
  return h(
    "div",
    { class: "effects" },
    h("p", {}, "Only files go back. Anything else that these calls did stays:"),
    h(
      "ul",
      {},
      effects.map((effect) => h("li", {}, h("code", {}, effect))),
    ),
  );
}

// Calls that other calls can undo. None is undone unless the user says so.
function offerNodes(offers, chosen) {
  if (!offers.length) return null;
  const rows = offers.map(({ call, effect, undo }) => {
    const box = h("input", {
      type: "checkbox",
      on: {
        change() {
          if (box.checked) chosen.add(call);
          else chosen.delete(call);
        },
      },
    });
    const by = h("code", {}, undo);
    return h("li", {}, h("label", {}, box, " ", h("code", {}, effect), " by ", by));
  });
  return h(
    "div",
    { class: "effects" },
    h("p", {}, "Other calls can undo these. They run after this, like calls of the agent:"),
    h("ul", { class: "undo-calls" }, rows),
  );
}

/** Describes what became of the files; empty without any. */
export function doneWords(undone) {
  const files = undone?.files ?? [];
  const kept = files.filter(({ fate }) => fate === "kept").length;
  const back = files.length - kept + (undone?.more ?? 0);
  const words = [];
  if (back) words.push(`${count(back, "file")} put back`);
  if (kept) words.push(`${count(kept, "file")} kept, because somebody else changed them`);
  return words.join("; ");
}
