// The sign-in screen, for a tab without a valid token.

import { fillWith, h, setText } from "../dom.js";

export function gateView(node, actions) {
  const field = h("input", {
    type: "password",
    autocomplete: "off",
    required: true,
    "aria-label": "Token",
    placeholder: "bgn_…",
  });
  const problem = h("p", { class: "problem", role: "alert" });
  const form = h(
    "form",
    {},
    h("img", { src: "/static/icon.svg", alt: "" }),
    h("h1", {}, "Sign in"),
    h(
      "p",
      {},
      "Open the address that bargein serve printed, or enter a token made with bargein token " +
        "add. The token stays in this tab until you sign out or close it.",
    ),
    field,
    problem,
    h("button", { class: "button primary" }, "Enter"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(problem, "");
    try {
      await actions.login(field.value.trim());
      field.value = "";
    } catch (error) {
      setText(problem, error.message);
      field.select();
    }
  });
  fillWith(node, form);
  return { focus: () => field.focus(), tell: (words) => setText(problem, words) };
}
