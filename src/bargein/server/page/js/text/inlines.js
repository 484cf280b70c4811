// Parses the inside of a paragraph: text, code, emphasis, links. One pass; the search for a closing
// mark is bounded, so that no text takes long to parse.

const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);
const BARE_LINK = /^https?:\/\/[^\s<>"'`]+[^\s<>"'`.,:;!?)\]}*_]/;
const ESCAPABLE = /[\\`*_{}[\]()#+\-.!|~<>]/;
const WORD = /[\p{L}\p{N}]/u;
const DEPTH_MAX = 6;
const SPAN_MAX = 2_000;

/** Returns the inline nodes of a text. */
export function inlines(text, depth = 0) {
  const found = [];
  let plain = "";
  let at = 0;
  const searched = {};
  const flush = () => {
    if (plain) found.push({ kind: "text", text: plain });
    plain = "";
  };
  while (at < text.length) {
    const hit = depth < DEPTH_MAX ? special(text, at, depth, searched) : null;
    if (hit === null) {
      plain += text[at];
      at += 1;
    } else {
      if (hit.node.kind === "text") {
        plain += hit.node.text;
      } else {
        flush();
        found.push(hit.node);
      }
      at = hit.next;
    }
  }
  flush();
  return found;
}

/** Returns the address if it may be followed, else null. */
export function safeAddress(address) {
  const trimmed = address.trim();
  let url;
  try {
    url = new URL(trimmed);
  } catch {
    return null;
  }
  return SAFE_SCHEMES.has(url.protocol) ? url.href : null;
}

function special(text, at, depth, searched) {
  switch (text[at]) {
    case "\\":
      return escaped(text, at);
    case "`":
      return code(text, at);
    case "*":
    case "_":
      return emphasis(text, at, depth, searched);
    case "~":
      return struck(text, at, depth);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, depth) : null;
    case "[":
      return link(text, at, depth);
    case "<":
      return pointed(text, at);
    case "h":
      return bare(text, at);
    case "\n":
      return { node: { kind: "break" }, next: at + 1 };
    default:
      return null;
  }
}

function escaped(text, at) {
  const next = text[at + 1];
  if (next === "\n") return { node: { kind: "break" }, next: at + 2 };
  if (next === undefined || !ESCAPABLE.test(next)) return null;
  return { node: { kind: "text", text: next }, next: at + 2 };
}

function run(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function code(text, at) {
  const length = run(text, at);
  let close = at + length;
  while ((close = text.indexOf("`", close)) !== -1 && close - at < SPAN_MAX) {
    const closing = run(text, close);
    if (closing === length) {
      const inner = text.slice(at + length, close).replace(/\n/g, " ");
      const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
      const node = { kind: "code", text: padded ? inner.slice(1, -1) : inner };
      return { node, next: close + length };
    }
    close += closing;
  }
  return { node: { kind: "text", text: text.slice(at, at + length) }, next: at + length };
}

// `searched` says how far each mark is known to have no end, so that no text is searched twice.
function emphasis(text, at, depth, searched) {
  const mark = text[at];
  const length = Math.min(run(text, at), 3);
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const opens = /\S/.test(after) && !(mark === "_" && WORD.test(before));
  const key = mark.repeat(length);
  const bound = Math.min(text.length, at + SPAN_MAX);
  const from = Math.max(at + length, searched[key] ?? 0);
  const close = opens ? closing(text, from, bound, key) : -1;
  if (close === -1) {
    if (opens) searched[key] = bound;
    return { node: { kind: "text", text: text.slice(at, at + length) }, next: at + length };
  }
  const inner = inlines(text.slice(at + length, close), depth + 1);
  let node = { kind: length === 2 ? "strong" : "emphasis", inlines: inner };
  if (length === 3) node = { kind: "strong", inlines: [node] };
  return { node, next: close + length };
}

// Returns where the mark comes again after a word; code in between is skipped.
function closing(text, from, bound, mark) {
  for (let at = from; at < bound; at += 1) {
    if (text[at] === "\\") {
      at += 1;
    } else if (text[at] === "`") {
      at = code(text, at).next - 1;
    } else if (text[at] === mark[0]) {
      const length = run(text, at);
      const closes = /\S/.test(text[at - 1]) && length >= mark.length;
      const after = text[at + length] ?? " ";
      if (
        closes &&
        (length === mark.length || length === 3) &&
        !(mark[0] === "_" && WORD.test(after))
      ) {
        return at + length - mark.length;
      }
      at += length - 1;
    }
  }
  return -1;
}

function struck(text, at, depth) {
  if (text[at + 1] !== "~") return null;
  const close = text.indexOf("~~", at + 2);
  if (close <= at + 2) return null;
  const node = { kind: "struck", inlines: inlines(text.slice(at + 2, close), depth + 1) };
  return { node, next: close + 2 };
}

function link(text, at, depth) {
  const labelEnd = balanced(text, at, "[", "]");
  if (labelEnd === -1 || text[labelEnd + 1] !== "(") return null;
  const end = balanced(text, labelEnd + 1, "(", ")");
  if (end === -1) return null;
  const target = text
    .slice(labelEnd + 2, end)
    .trim()
    .replace(/\s+["'].*["']$/s, "");
  const address = safeAddress(target.replace(/^<(.*)>$/, "$1"));
  const label = inlines(text.slice(at + 1, labelEnd), depth + 1);
  if (address === null) {
    return { node: { kind: "refused", inlines: label, address: target }, next: end + 1 };
  }
  return { node: { kind: "link", inlines: label, address }, next: end + 1 };
}

function balanced(text, at, open, close) {
  const first = text.indexOf(close, at);
  if (first === -1 || first - at > SPAN_MAX) return -1;
  let level = 0;
  const bound = Math.min(text.length, at + SPAN_MAX);
  for (let place = at; place < bound; place += 1) {
    if (text[place] === "\\") place += 1;
    else if (text[place] === open) level += 1;
    else if (text[place] === close && (level -= 1) === 0) return place;
  }
  return -1;
}

function pointed(text, at) {
  const end = text.indexOf(">", at);
  const address = end === -1 || end - at > SPAN_MAX ? null : text.slice(at + 1, end);
  if (address === null || /\s/.test(address) || !/^(https?:|mailto:)/i.test(address)) return null;
  return linkTo(address, end + 1);
}

function bare(text, at) {
  if (!text.startsWith("http", at) || WORD.test(text[at - 1] ?? " ")) return null;
  const found = BARE_LINK.exec(text.slice(at, at + SPAN_MAX));
  return found === null ? null : linkTo(found[0], at + found[0].length);
}

function linkTo(address, next) {
  const safe = safeAddress(address);
  if (safe === null) return null;
  const label = [{ kind: "text", text: address.replace(/^mailto:/i, "") }];
  return { node: { kind: "link", inlines: label, address: safe }, next };
}
