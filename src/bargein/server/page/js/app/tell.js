// Words for a person who is not looking at the right place: a short note on the screen, and what a
// screen reader is to say.

const TOAST_MS = 5_000;

/** A note that goes away by itself. */
export function toast(text) {
  const node = document.createElement("div");
  node.className = "toast";
  node.textContent = text;
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), TOAST_MS);
}

/** Said, and not shown. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
