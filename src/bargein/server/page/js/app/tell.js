// Notifications: a short note on the screen, and text for a screen reader.

const TOAST_MS = 5_000;

/** Shows a note that disappears by itself. */
export function toast(text) {
  const node = document.createElement("div");
  node.className = "toast";
  node.textContent = text;
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), TOAST_MS);
}

/** Has a screen reader say this, without showing it. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
