// Small changes of immutable values.

/** Returns the map with `changes` merged into the value under `key`. */
export function patched(map, key, changes) {
  return { ...map, [key]: { ...map[key], ...changes } };
}

/** Returns the list with one more item at its end. */
export function appended(list, item) {
  return [...list, item];
}

/** Returns the text of a message's or a result's content. */
export function textOf(content) {
  return content
    .map((part) => (part.type === "image" ? "[image]" : part.type === "text" ? part.text : ""))
    .filter(Boolean)
    .join("\n");
}

/** Returns the outcome of a call, for its mark. A finished call may have run what failed. */
export function outcomeOf({ status, unsuccessful }) {
  return unsuccessful ? "failed" : status;
}

/** Returns the end of the text, at most so many characters. */
export function tail(text, characters) {
  return text.length > characters ? text.slice(-characters) : text;
}
