// The door, for one whom the server does not know.

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
    h("h1", {}, "Who is there?"),
    h(
      "p",
      {},
      "Open the address that bargein serve printed, or enter a token made with bargein token " +
        "add. It is kept in a cookie that no script can read.",
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

/** Why a token was not taken, if one was shown; `refused`: it stood in the address. */
export function refusalWords(problem, refused) {
  if (refused)
    return "The token of that address is not known here; a server that starts anew has another.";
  return problem.message.startsWith("no token was shown") ? "" : problem.message;
}
