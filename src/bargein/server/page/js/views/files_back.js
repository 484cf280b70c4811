// What became of the files of a turn that a message rolled back: which were put back, and which
// were kept because somebody else changed them.

import { fillWith, h, setText } from "../dom.js";
import { count } from "../format.js";
import { FILE_MARKS } from "../state/receipt.js";

export function filesBackView() {
  const line = h("span");
  const list = h("ul", { class: "undo-files" });
  const fold = h("details", { class: "cut files-back" }, h("summary", {}, line), list);
  const node = h("li", {}, fold);
  const update = ({ turn, files, error }) => {
    fold.dataset.turn = turn;
    const all = files?.files ?? [];
    setText(line, error ? `files not put back: ${error}` : lineOf(all));
    fillWith(
      list,
      all.map(fileNode),
      files?.more ? h("li", {}, `and ${count(files.more, "more file")}`) : null,
    );
  };
  return { node, update };
}

function lineOf(files) {
  const kept = files.filter((each) => each.fate === "kept").length;
  const back = files.length - kept;
  const words = [];
  if (back) words.push(`${count(back, "file")} put back`);
  if (kept) words.push(`${count(kept, "file")} kept`);
  return words.join(" · ");
}

function fileNode({ path, fate, why }) {
  return h(
    "li",
    { class: fate === "kept" ? "kept" : "" },
    h("span", { class: "fate", "aria-hidden": "true" }, FILE_MARKS[fate] ?? "·"),
    " ",
    h("code", {}, path),
    h("span", { class: "sub" }, ` ${fate}${why ? `: ${why}` : ""}`),
  );
}
