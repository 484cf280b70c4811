// Elements without a template language: attributes and text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["checked", "disabled", "hidden", "open", "value", "selected"]);

/** Makes an HTML element. `on` has listeners by name; children are nodes, texts, lists or null. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (PROPERTIES.has(name)) node[name] = value;
    else node.setAttribute(name, String(value));
  }
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return node;
}

/** Replaces all children of `node`. */
export function fillWith(node, ...children) {
  node.replaceChildren(
    ...children.flat(Infinity).filter((each) => each !== null && each !== undefined),
  );
}

/** Changes a text only if it differs, so as not to disturb selections and screen readers. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Keeps a list of views in step with a list of things: by key, in order, changing only what
 * differs. `create(thing)` returns `{node, update(thing)}`.
 */
export function keyedList(container, create) {
  const views = new Map();
  return (things, keyOf) => {
    const wanted = new Set(things.map(keyOf));
    for (const [key, view] of views) {
      if (wanted.has(key)) continue;
      view.node.remove();
      views.delete(key);
    }
    let before = container.firstChild;
    for (const thing of things) {
      const key = keyOf(thing);
      let view = views.get(key);
      if (view === undefined) {
        view = { ...create(thing), thing: null };
        views.set(key, view);
      }
      if (view.thing !== thing) {
        view.update(thing);
        view.thing = thing;
      }
      if (view.node.contains(document.activeElement)) before = clearedWay(view.node, before);
      if (view.node === before) before = before.nextSibling;
      else container.insertBefore(view.node, before);
    }
    return views;
  };
}

// An element that is moved loses the focus, which would disturb typing: move the others instead.
function clearedWay(node, before) {
  const isAhead = before?.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING;
  while (isAhead && before !== node) {
    const next = before.nextSibling;
    node.parentNode.append(before);
    before = next;
  }
  return before;
}

/**
 * A button that stops something. `does` returns a promise for the end of the stop; until then the
 * button shows that the stop is under way.
 */
export function stopButton({ does, ...about }) {
  const node = button("Stop", {
    ...about,
    kind: "stop",
    async does() {
      node.disabled = true;
      setText(node, "Stopping");
      await does();
      node.disabled = false;
      setText(node, "Stop");
    },
  });
  return node;
}

/** Makes a button with a word and an action; give a `name` if the word alone is unclear. */
export function button(label, { does, name = null, kind = "", title = null, key = null } = {}) {
  return h(
    "button",
    {
      type: "button",
      class: `button ${kind}`.trim(),
      "aria-label": name,
      title,
      "aria-keyshortcuts": key,
      on: { click: does },
    },
    label,
  );
}
