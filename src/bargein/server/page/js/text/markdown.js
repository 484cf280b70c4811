// Shows Markdown as elements. Text only becomes text nodes: no model's text is parsed as HTML,
// nothing is fetched, and only http, https and mailto links can be followed.

import { copyButton } from "../app/copying.js";
import { h } from "../dom.js";
import { blocks } from "./blocks.js";
import { diffNodes } from "./diff.js";
import { highlighted } from "./highlight.js";

const STREAMED_MAX = 8_000;
const INLINE_TAGS = { strong: "strong", emphasis: "em", struck: "s" };

/** Makes an element that shows Markdown. `update` draws only the blocks that changed. */
export function markdownView() {
  const node = h("div", { class: "prose" });
  let drawn = [];
  const update = (text) => {
    const wanted = blocks(text);
    let same = 0;
    while (same < wanted.length && same < drawn.length && drawn[same] === key(wanted[same])) {
      same += 1;
    }
    while (node.childNodes.length > same) node.lastChild.remove();
    for (const block of wanted.slice(same)) node.append(blockNode(block));
    drawn = wanted.map(key);
  };
  return { node, update };
}

function key(block) {
  return `${block.kind}:${block.closed ?? ""}:${block.source}`;
}

function blockNode(block) {
  switch (block.kind) {
    case "heading":
      return h(`h${Math.min(block.level + 2, 6)}`, {}, inlineNodes(block.inlines));
    case "rule":
      return h("hr");
    case "code":
      return codeNode(block);
    case "quote":
      return h("blockquote", {}, block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return h("p", {}, inlineNodes(block.inlines));
  }
}

function codeNode(block) {
  const { language, text } = block;
  const isDiff = /^(diff|patch)$/i.test(language);
  // A long block that is still streaming is drawn anew with every piece: it gets its colours later.
  const later = !block.closed && text.length > STREAMED_MAX;
  const nodes = later ? [text] : isDiff ? diffNodes(text) : highlighted(text, language);
  const code = h("code", {}, nodes);
  const copy = copyButton(() => block.text, { name: "Copy code", kind: "quiet copy" });
  const head = h("div", { class: "code-head" }, h("span", {}, block.language || "text"), copy);
  return h("div", { class: "code" }, head, h("pre", { tabindex: "0" }, code));
}

function listNode(block) {
  const items = block.items.map((item) => {
    // A tight item is one paragraph: its text goes into the item itself.
    const content = item.blocks.flatMap((each, place) =>
      place === 0 && each.kind === "paragraph" ? inlineNodes(each.inlines) : [blockNode(each)],
    );
    if (item.checked === null) return h("li", {}, content);
    const box = h("input", { type: "checkbox", disabled: true, checked: item.checked });
    return h("li", { class: "task" }, box, content);
  });
  return block.ordered ? h("ol", { start: String(block.start) }, items) : h("ul", {}, items);
}

function tableNode(block) {
  const row = (tag) => (cells) =>
    h(
      "tr",
      {},
      cells.map((cell, column) =>
        h(
          tag,
          { class: block.aligns[column] ? `align-${block.aligns[column]}` : null },
          inlineNodes(cell),
        ),
      ),
    );
  const table = h(
    "table",
    {},
    h("thead", {}, row("th")(block.head)),
    h("tbody", {}, block.rows.map(row("td"))),
  );
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function inlineNodes(nodes) {
  return nodes.map((each) => {
    switch (each.kind) {
      case "text":
        return document.createTextNode(each.text);
      case "code":
        return h("code", {}, each.text);
      case "break":
        return h("br");
      case "link":
        return h(
          "a",
          { href: each.address, target: "_blank", rel: "noopener noreferrer nofollow" },
          inlineNodes(each.inlines),
        );
      case "refused":
        return h(
          "span",
          { class: "refused", title: `Not a web address: ${each.address}` },
          inlineNodes(each.inlines),
        );
      default:
        return h(INLINE_TAGS[each.kind], {}, inlineNodes(each.inlines));
    }
  });
}
