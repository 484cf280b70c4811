// Colours code. One pass over the text, in which every step goes forward, so that no text takes
// long; a longer text than the bound is shown plain. It knows comments, strings, numbers and words
// of a language, and no grammar: a doubtful place is shown as plain text.

import { h } from "../dom.js";
import { languageOf } from "./languages.js";

const CHARACTERS_MAX = 40_000;
const SPANS_MAX = 6_000;
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?/iy;
const TAG = /<\/?[a-z][\w:.-]*|\/?>/iy;
const SPACE = /[^\S\n]*/y;

/** Returns nodes for code in this language: spans and texts, never markup. */
export function highlighted(text, name) {
  const language = languageOf(name);
  if (language === null || text.length > CHARACTERS_MAX) return [text];
  const nodes = [];
  for (const { kind, text: piece } of tokens(text, language)) {
    if (nodes.length > SPANS_MAX) return [text];
    nodes.push(kind === "plain" ? piece : h("span", { class: `hl-${kind}` }, piece));
  }
  return nodes;
}

/** Returns the pieces of a text, which together are the text: `{kind, text}`. */
export function tokens(text, language) {
  const found = [];
  // By each quote, the end of the line in which it is known not to be closed.
  const unclosed = new Map();
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const hit = tokenAt(text, at, language, unclosed);
    if (hit === null) {
      plain += text[at];
      at += 1;
    } else if (hit.kind === "plain") {
      plain += text.slice(at, hit.end);
      at = hit.end;
    } else {
      if (plain) found.push({ kind: "plain", text: plain });
      plain = "";
      found.push({ kind: hit.kind, text: text.slice(at, hit.end) });
      at = hit.end;
    }
  }
  if (plain) found.push({ kind: "plain", text: plain });
  return found;
}

function tokenAt(text, at, language, unclosed) {
  return (
    comment(text, at, language) ??
    string(text, at, language, unclosed) ??
    (language.tags ? tag(text, at) : word(text, at, language)) ??
    number(text, at)
  );
}

function comment(text, at, { line, block }) {
  const mark = line.find((each) => text.startsWith(each, at));
  // In a shell and in data, a sign in the middle of a word begins no comment.
  const begins = mark !== "#" || at === 0 || /\s/.test(text[at - 1]);
  if (mark !== undefined && begins) {
    const end = text.indexOf("\n", at);
    return { kind: "comment", end: end === -1 ? text.length : end };
  }
  const pair = block.find(([open]) => text.startsWith(open, at));
  if (pair === undefined) return null;
  const close = text.indexOf(pair[1], at + pair[0].length);
  return { kind: "comment", end: close === -1 ? text.length : close + pair[1].length };
}

// A string in one quote ends with its line, unless the language has longer ones.
function string(text, at, { quotes, names }, unclosed) {
  const quote = quotes.find((each) => text.startsWith(each, at));
  if (quote === undefined || unclosed.get(quote) > at) return null;
  const goesOn = quote.length === 3 || quote === "`";
  let end = at + quote.length;
  while (end < text.length && !text.startsWith(quote, end)) {
    if (text[end] === "\n" && !goesOn) {
      unclosed.set(quote, end);
      return { kind: "plain", end: at + quote.length };
    }
    end += text[end] === "\\" ? 2 : 1;
  }
  end = Math.min(end + quote.length, text.length);
  return { kind: names && isName(text, end) ? "name" : "string", end };
}

function word(text, at, { keywords, anyCase, names }) {
  const end = matchEnd(WORD, text, at);
  if (end === -1) return null;
  const found = text.slice(at, end);
  if (keywords.has(anyCase ? found.toLowerCase() : found)) return { kind: "keyword", end };
  if (names && isName(text, end)) return { kind: "name", end };
  return { kind: text[end] === "(" ? "call" : "plain", end };
}

function isName(text, end) {
  const after = matchEnd(SPACE, text, end);
  return text[after] === ":" || text[after] === "=";
}

function tag(text, at) {
  const end = matchEnd(TAG, text, at);
  if (end !== -1) return { kind: "keyword", end };
  const name = matchEnd(WORD, text, at);
  if (name === -1) return null;
  return { kind: text[name] === "=" ? "name" : "plain", end: name };
}

function number(text, at) {
  const end = matchEnd(NUMBER, text, at);
  return end === -1 ? null : { kind: "number", end };
}

function matchEnd(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}
