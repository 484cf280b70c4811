// The plan that the model has written down with its tool `todo`: the list in a call's arguments.

const STATES = new Set(["open", "doing", "done"]);

/** Returns the items in a call's arguments: `[{text, state}]`, empty if it has no valid list. */
export function planItems(json) {
  try {
    const { items } = JSON.parse(json);
    return items
      .map(({ text, state = "open" }) => ({ text, state }))
      .filter(({ text, state }) => typeof text === "string" && STATES.has(state));
  } catch {
    return [];
  }
}

/** Returns the plan of the last call that wrote one; empty if there is none. */
export function planOf({ calls }) {
  const last = Object.values(calls).findLast(
    ({ name, status }) => name === "todo" && status === "finished",
  );
  return last === undefined ? [] : planItems(last.arguments);
}

/** Returns how far a plan is, as the tool's own title says it. */
export function planTitle(json) {
  const items = planItems(json);
  return `${items.filter(({ state }) => state === "done").length} of ${items.length} done`;
}
