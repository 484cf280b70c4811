// Search results by session: each hit with the words in it, as a link to its place.

import { button, fillWith, h } from "../dom.js";
import { count, titleOf } from "../format.js";

const PLACES = 3;

export function foundView() {
  const groups = h("ul");
  const node = h(
    "section",
    { class: "found-list", "aria-labelledby": "found-name" },
    h("h2", { id: "found-name" }, "What was said"),
    groups,
  );
  let shown;
  const update = (hits) => {
    if (hits === shown) return;
    shown = hits;
    node.hidden = !hits?.found.length;
    if (node.hidden) fillWith(groups);
    else fillWith(groups, [...bySession(hits.found)].map(([, each]) => group(each, hits.words)));
  };
  return { node, update };
}

function bySession(found) {
  const sessions = new Map();
  for (const hit of found) {
    const known = sessions.get(hit.root);
    if (known === undefined) sessions.set(hit.root, [hit]);
    else known.push(hit);
  }
  return sessions;
}

function group(hits, words) {
  const [first, rest] = [hits.slice(0, PLACES), hits.slice(PLACES)];
  const more = button(`and ${count(rest.length, "more place")}`, {
    does: () => {
      const places = rest.map((hit) => place(hit, words));
      more.replaceWith(...places);
      places[0].focus();
    },
    kind: "quiet",
  });
  return h(
    "li",
    { class: "found" },
    h("div", { class: "title" }, titleOf(hits[0])),
    first.map((hit) => place(hit, words)),
    rest.length ? more : null,
  );
}

function place({ session, seq, excerpt }, words) {
  const text = h("span", {}, marked(excerpt, words));
  return h("a", { href: `#/s/${encodeURIComponent(session)}?at=${seq}` }, text);
}

// Marks the words in the text. Words that differ in accents are not marked.
function marked(text, words) {
  const wanted = words.match(/[\p{L}\p{N}]+/gu) ?? [];
  if (!wanted.length) return [text];
  const pieces = text.split(new RegExp(`(?<![\\p{L}\\p{N}])(${wanted.join("|")})`, "giu"));
  return pieces.map((piece, place) => (place % 2 ? h("mark", {}, piece) : piece));
}
