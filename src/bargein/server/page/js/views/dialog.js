// A dialog over the page. Escape and its Close button close it; Escape stops nothing then.

import { button, fillWith, h, setText } from "../dom.js";

/** Makes a dialog with a heading. `open(name, ...content)` shows it. */
export function dialogView(kind) {
  const title = h("h2");
  const body = h("div", { class: "dialog-body" });
  const close = button("Close", { does: () => node.close(), kind: "quiet" });
  const head = h("div", { class: "dialog-head" }, title, close);
  const node = h("dialog", { class: `dialog ${kind}` }, head, body);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.stopPropagation();
  });
  node.addEventListener("close", () => fillWith(body));
  document.body.append(node);
  return {
    node,
    close: () => node.close(),
    isOpen: () => node.open,
    fill: (...content) => fillWith(body, content),
    open(name, ...content) {
      setText(title, name);
      node.setAttribute("aria-label", name);
      fillWith(body, content);
      if (!node.open) node.showModal();
    },
  };
}

/** Shows that something is being asked for, or why it failed. */
export function pending(words = "One moment …") {
  return h("p", { class: "pending", role: "status" }, words);
}

export function failed(problem) {
  return h("p", { class: "problem", role: "alert" }, problem.message);
}
