// The files that go along with the message in the field: chosen, pasted or dropped. They belong to
// the session that the message is written for, and are gone after a reload.

import { drawn, FILES_MAX, NotTaken, readFile } from "../app/files.js";
import { toast } from "../app/tell.js";
import { button, fillWith, h } from "../dom.js";
import { size } from "../format.js";

const NONE = [];

export function attachedView(store, words) {
  const list = h("ul", { class: "attached", "aria-label": "Files to send" });
  const choose = h("input", { type: "file", multiple: "", hidden: true });
  const add = button("+", {
    does: () => choose.click(),
    name: "Add files",
    kind: "quiet attach",
    title: "Add pictures or text files; you can also paste or drop them",
  });
  const bySession = new Map();
  let shown;

  const draw = () => {
    const files = bySession.get(shown) ?? NONE;
    list.hidden = !files.length;
    fillWith(list, files.map(chip));
  };
  const chip = (file) => {
    const remove = button("×", {
      does() {
        bySession.set(
          shown,
          bySession.get(shown).filter((each) => each !== file),
        );
        draw();
        words.focus();
      },
      name: `Remove ${file.name}`,
      kind: "quiet",
    });
    const picture = file.bitmap ? drawn(file.bitmap, 64) : null;
    return h("li", {}, picture, h("span", {}, file.name), h("small", {}, size(file.size)), remove);
  };

  const take = async (given) => {
    const session = shown;
    for (const file of given) {
      const known = bySession.get(session) ?? [];
      if (known.length >= FILES_MAX) {
        toast(`At most ${FILES_MAX} files go along with a message.`);
        break;
      }
      try {
        bySession.set(session, [...known, await readFile(file)]);
      } catch (error) {
        if (!(error instanceof NotTaken)) throw error;
        toast(error.message);
      }
    }
    draw();
  };
  choose.addEventListener("change", async () => {
    await take([...choose.files]);
    choose.value = "";
    words.focus();
  });
  words.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || words.disabled) return;
    event.preventDefault();
    take(files);
  });
  droppable(document.getElementById("main"), (files) => {
    if (!words.disabled) take(files);
  });

  return {
    add: h("span", {}, add, choose),
    list,
    has: () => (bySession.get(shown) ?? NONE).length > 0,
    /** Returns the files of the message, which are gone from the field then. */
    taken() {
      const files = bySession.get(shown) ?? NONE;
      bySession.delete(shown);
      draw();
      return files;
    },
    follow(session, closed) {
      add.disabled = closed;
      if (session === shown) return;
      shown = session;
      draw();
    },
  };
}

// A file that is dropped beside the field must not replace the page.
function droppable(node, take) {
  const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  const mark = (isOver) => node.classList.toggle("dropping", isOver);
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(node.contains(event.target));
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    if (node.contains(event.target)) take([...event.dataTransfer.files]);
  });
}
