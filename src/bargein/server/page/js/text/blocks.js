// Parses Markdown into a tree, block by block. Plain data: nothing here touches the document.
//
// Each top-level block carries its `source`, so that while an answer streams only the blocks that
// changed are drawn again. HTML in the text is text. Nesting has a bound.

import { inlines } from "./inlines.js";

const DEPTH_MAX = 8;
const MARKED_LINE_MAX = 2_000; // a longer line is a paragraph, whatever it begins with
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})(?:([-*+])|(\d{1,9})[.)])(?:( +)(.*))?$/;
const TASK = /^\[([ xX])\] +/;
const DIVIDER = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Returns the blocks of a Markdown text. */
export function blocks(text) {
  return parse(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}

function parse(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    found.push(block);
    at = next;
  }
  return found;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  if (line.length > MARKED_LINE_MAX) return readParagraph(lines, at);
  const fence = FENCE.exec(line);
  if (fence) return readFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const block = { kind: "heading", level: heading[1].length, inlines: inlines(heading[2] ?? "") };
    return [block, at + 1];
  }
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEPTH_MAX) {
    if (QUOTE.test(line)) return readQuote(lines, at, depth);
    if (ITEM.test(line)) return readList(lines, at, depth);
  }
  if (isTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at);
}

function readFence(lines, at, [, indent, mark, language]) {
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
  const body = [];
  let next = at + 1;
  while (next < lines.length && !close.test(lines[next])) {
    body.push(lines[next].startsWith(indent) ? lines[next].slice(indent.length) : lines[next]);
    next += 1;
  }
  const closed = next < lines.length;
  return [{ kind: "code", language, text: body.join("\n"), closed }, closed ? next + 1 : next];
}

function readQuote(lines, at, depth) {
  let next = at;
  const inner = [];
  while (next < lines.length && QUOTE.test(lines[next])) {
    inner.push(lines[next].replace(QUOTE, ""));
    next += 1;
  }
  return [{ kind: "quote", blocks: parse(inner, depth + 1) }, next];
}

function readList(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = first[3] !== undefined;
  const list = { kind: "list", ordered, start: ordered ? Number(first[3]) : 1, items: [] };
  let next = at;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    const same = item && (item[3] !== undefined) === ordered && (ordered || item[2] === first[2]);
    if (!same || RULE.test(lines[next])) break;
    const marker = item[1].length + (item[2] ?? `${item[3]}.`).length;
    const spaces = item[4]?.length ?? 1;
    const inset = marker + (spaces > 4 ? 1 : spaces);
    const [body, after] = readItem(lines, next, inset);
    const task = TASK.exec(body[0]);
    if (task) body[0] = body[0].slice(task[0].length);
    list.items.push({
      blocks: parse(body, depth + 1),
      checked: task ? task[1] !== " " : null,
    });
    next = after;
  }
  return [list, next];
}

// Takes the lines of one item, without their indent, up to a line that is neither indented enough
// nor continues the item's own paragraph.
function readItem(lines, at, inset) {
  const body = [lines[at].slice(inset)];
  const pad = " ".repeat(inset);
  let next = at + 1;
  while (next < lines.length) {
    const line = lines[next];
    if (!line.trim()) {
      const follows = nextWords(lines, next);
      if (follows === undefined || !(follows.startsWith(pad) || ITEM.test(follows))) break;
      if (!follows.startsWith(pad)) {
        next += 1;
        continue;
      }
      body.push("");
    } else if (line.startsWith(pad)) {
      body.push(line.slice(inset));
    } else if (startsBlock(line) || !body[body.length - 1].trim()) {
      break;
    } else {
      body.push(line.trimStart());
    }
    next += 1;
  }
  return [body, next];
}

function nextWords(lines, from) {
  for (let at = from; at < lines.length; at += 1) if (lines[at].trim()) return lines[at];
  return undefined;
}

function startsBlock(line) {
  if (line.length > MARKED_LINE_MAX) return false;
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

function isTable(lines, at) {
  const divider = lines[at + 1];
  if (
    divider === undefined ||
    divider.length > MARKED_LINE_MAX ||
    !lines[at].includes("|") ||
    !DIVIDER.test(divider)
  )
    return false;
  return cells(lines[at]).length === cells(divider).length;
}

function readTable(lines, at) {
  const aligns = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : "";
  });
  const row = (line) => {
    const texts = cells(line);
    return aligns.map((_, column) => inlines(texts[column] ?? ""));
  };
  const rows = [];
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|") && !startsBlock(lines[next])) {
    rows.push(row(lines[next]));
    next += 1;
  }
  return [{ kind: "table", aligns, head: row(lines[at]), rows }, next];
}

function cells(line) {
  const found = [""];
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (text[at] === "|") {
      found.push("");
    } else {
      found[found.length - 1] += text[at];
    }
  }
  return found.map((cell) => cell.trim());
}

function readParagraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !startsBlock(lines[next])) {
    if (isTable(lines, next)) break;
    next += 1;
  }
  const text = lines
    .slice(at, next)
    .map((line) => line.trimStart())
    .join("\n");
  return [{ kind: "paragraph", inlines: inlines(text.trimEnd()) }, next];
}
