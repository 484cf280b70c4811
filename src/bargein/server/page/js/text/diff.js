// Differences between texts, line by line, in colours: what an edit replaces, and what `git diff`
// says of a turn. The signs stay, so that nobody needs the colours.

import { h } from "../dom.js";
import { count } from "../format.js";

const LINES_MAX = 3_000;
const CELLS_MAX = 400_000;
const SIGNS = { added: "+", removed: "-", same: " " };

/** Returns the lines of both texts in order: `{kind: added | removed | same, text}`. */
export function lineDiff(before, after) {
  const [old, now] = [linesOf(before), linesOf(after)];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (
    end < old.length - start &&
    end < now.length - start &&
    old[old.length - 1 - end] === now[now.length - 1 - end]
  )
    end += 1;
  const same = (lines) => lines.map((text) => ({ kind: "same", text }));
  return [
    ...same(old.slice(0, start)),
    ...middle(old.slice(start, old.length - end), now.slice(start, now.length - end)),
    ...same(old.slice(old.length - end)),
  ];
}

function linesOf(text) {
  return text === "" ? [] : text.replace(/\n$/, "").split("\n");
}

// The longest common sequence; of long texts only that one was replaced by the other.
function middle(old, now) {
  const removed = (text) => ({ kind: "removed", text });
  const added = (text) => ({ kind: "added", text });
  if (old.length * now.length > CELLS_MAX) return [...old.map(removed), ...now.map(added)];
  const width = now.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const [below, right] = [lengths[(i + 1) * width + j], lengths[i * width + j + 1]];
      lengths[i * width + j] =
        old[i] === now[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(below, right);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ kind: "same", text: old[i] });
      i += 1;
      j += 1;
    } else if (
      j === now.length ||
      (i < old.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])
    ) {
      found.push(removed(old[i]));
      i += 1;
    } else {
      found.push(added(now[j]));
      j += 1;
    }
  }
  return found;
}

/** Reads what `git diff` says: a list of files, `{path, lines}`. */
export function parseDiff(text) {
  const files = [];
  let inHunk = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("diff --git ")) {
      files.push({ path: pathOf(line), lines: [] });
      inHunk = false;
    } else if (!files.length) {
      if (line) files.push({ path: "", lines: [{ kind: "about", text: line }] });
    } else {
      if (line.startsWith("@@")) inHunk = true;
      const kind = inHunk ? kindOf(line) : aboutKind(line);
      if (kind !== null) files.at(-1).lines.push(lineOf(kind, line));
    }
  }
  return files;
}

function pathOf(line) {
  const found = / b\/(.*)$/.exec(line);
  return found === null ? line.slice("diff --git ".length) : found[1];
}

function kindOf(line) {
  const found = { "+": "added", "-": "removed", " ": "same", "@": "place", "\\": "about" }[line[0]];
  return found ?? null;
}

// The names are in the head already. Modes, renames and binary files are worth a line.
function aboutKind(line) {
  return !line || /^(index|---|\+\+\+) /.test(line) ? null : "about";
}

function lineOf(kind, line) {
  return { kind, text: kind in SIGNS ? line.slice(1) : line };
}

/** Shows lines of a difference. */
export function diffLines(lines) {
  const shown = lines.slice(0, LINES_MAX).map(({ kind, text }) => {
    const sign = SIGNS[kind] ?? "";
    return h("span", { class: `diff-line ${kind}` }, `${sign}${text}\n`);
  });
  const left = lines.length - shown.length;
  const more = left > 0 ? h("span", { class: "diff-line about" }, `${left} more lines`) : null;
  return h("pre", { class: "diff", tabindex: "0" }, shown, more);
}

/** Shows what `git diff` says, file by file. */
export function diffView(text) {
  const files = parseDiff(text);
  return h(
    "div",
    { class: "diffs" },
    files.map(({ path, lines }) =>
      h(
        "details",
        { class: "diff-file", open: files.length < 12 },
        h("summary", {}, h("code", {}, path || "all"), " ", countWords(lines)),
        diffLines(lines),
      ),
    ),
  );
}

function countWords(lines) {
  const many = (kind) => lines.filter((each) => each.kind === kind).length;
  const [added, removed] = [many("added"), many("removed")];
  return h(
    "span",
    { class: "diff-count" },
    h("span", { class: "added" }, `+${added}`),
    " ",
    h("span", { class: "removed" }, `−${removed}`),
    h("span", { class: "unseen" }, ` ${count(added, "line")} added, ${removed} removed`),
  );
}

/** Returns nodes for a block of code that says it is a difference. */
export function diffNodes(text) {
  return text.split("\n").map((line, place, all) => {
    const kind = /^@@/.test(line) ? "place" : (kindOf(line) ?? "same");
    return h("span", { class: `diff-line ${kind}` }, line + (place < all.length - 1 ? "\n" : ""));
  });
}
