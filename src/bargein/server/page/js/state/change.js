// Small changes to values that are never changed in place.

/** The map with `changes` laid over what it has under `key`. */
export function patched(map, key, changes) {
  return { ...map, [key]: { ...map[key], ...changes } };
}

/** The list with one more at its end. */
export function appended(list, item) {
  return [...list, item];
}

/** The text of a message's or a result's content. */
export function textOf(content) {
  return content
    .map((part) => (part.type === "image" ? "[image]" : part.type === "text" ? part.text : ""))
    .filter(Boolean)
    .join("\n");
}

/** How a call came out, for its mark: one that did its work may have run what did not succeed. */
export function outcomeOf({ status, unsuccessful }) {
  return unsuccessful ? "failed" : status;
}

/** At most so many characters, the end of them. */
export function tail(text, characters) {
  return text.length > characters ? text.slice(-characters) : text;
}
