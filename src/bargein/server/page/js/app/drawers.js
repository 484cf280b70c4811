// The two side panels on a narrow screen: one at a time, closed by the scrim, Escape or navigation.

import { h } from "../dom.js";

export function createDrawers(app) {
  const scrim = h("button", {
    type: "button",
    class: "scrim",
    "aria-label": "Close",
    hidden: true,
  });
  document.body.append(scrim);
  const close = () => {
    app.classList.remove("show-sessions", "show-now");
    scrim.hidden = true;
  };
  scrim.addEventListener("click", close);
  window.addEventListener("hashchange", close);
  document.addEventListener(
    "keydown",
    (event) => {
      // A dialog above the panel closes first, by itself.
      if (event.key !== "Escape" || scrim.hidden || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      event.stopPropagation();
      close();
    },
    true,
  );
  return {
    close,
    toggle(name) {
      const open = !app.classList.contains(`show-${name}`);
      close();
      app.classList.toggle(`show-${name}`, open);
      scrim.hidden = !open;
      if (open) document.getElementById(name).querySelector("input, button, a")?.focus();
    },
  };
}
