// The arguments of a call as people read them: an edit as a difference, a command or a file as
// code, anything else by name. Long ones are cut.

import { h } from "../dom.js";
import { diffLines, lineDiff } from "../text/diff.js";
import { highlighted } from "../text/highlight.js";
import { languageOfPath } from "../text/languages.js";
import { planItems } from "../state/plan.js";
import { planNode } from "./plan.js";

const CHARACTERS_MAX = 20_000;

const UNASKED = new Set(["edit_file", "todo"]);

/** Returns whether the arguments are worth showing unasked: changes of a file, and plans. */
export function isShownUnasked({ name, status }) {
  return UNASKED.has(name) && status !== "not_started";
}

/** Returns nodes for the arguments of a call; none if its title says it all. */
export function argumentNodes({ name, arguments: json = "", title = "" }) {
  const given = parsed(json);
  if (given === null) return json ? [h("pre", { tabindex: "0" }, cut(json))] : [];
  const special = SPECIAL[name]?.(given);
  const rest = Object.entries(special?.rest ?? given).filter(([, value]) => value !== title);
  return [special?.node ?? null, rest.length ? named(rest) : null].filter(Boolean);
}

const SPECIAL = {
  edit_file({ path, old_text: before, new_text: after, ...rest }) {
    if (typeof before !== "string" || typeof after !== "string") return null;
    return { node: diffLines(lineDiff(cut(before), cut(after))), rest };
  },
  write_file({ path, content, ...rest }) {
    if (typeof content !== "string") return null;
    return { node: code(content, languageOfPath(String(path))), rest };
  },
  terminal({ command, ...rest }) {
    if (typeof command !== "string") return null;
    return { node: isShort(command) ? null : code(command, "shell"), rest: rest };
  },
  todo({ items, ...rest }) {
    const plan = planItems(JSON.stringify({ items }));
    return plan.length ? { node: planNode(plan), rest } : null;
  },
  python({ code: text, ...rest }) {
    return typeof text === "string" ? { node: code(text, "python"), rest } : null;
  },
};

function isShort(text) {
  return text.length < 60 && !text.includes("\n");
}

function parsed(json) {
  try {
    const value = JSON.parse(json);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function named(entries) {
  return h(
    "dl",
    { class: "given" },
    entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, valueNode(value))]),
  );
}

function valueNode(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return isShort(text) ? h("code", {}, text) : h("pre", { tabindex: "0" }, cut(text));
}

function code(text, language) {
  return h("pre", { class: "code-shown", tabindex: "0" }, highlighted(cut(text), language));
}

function cut(text) {
  const left = text.length - CHARACTERS_MAX;
  return left > 0 ? `${text.slice(0, CHARACTERS_MAX)}\n[${left} more characters]` : text;
}
