// A question or an approval, answered where it stands.

import { button, fillWith, h, setText } from "../dom.js";

export function questionView(_, store, actions) {
  const asks = h("span", { class: "label asks" });
  const text = h("p");
  const detail = h("pre");
  const row = h("div", { class: "row" });
  const node = h("li", { class: "question" }, asks, text, detail, row);
  let drawn = null;

  const update = (question) => {
    const approval = question.asks === "approval";
    node.className = `question${approval ? " approval" : ""}${question.open ? "" : " closed"}`;
    node.dataset.question = question.id;
    setText(
      asks,
      question.open
        ? approval
          ? "May it?"
          : "A question for you"
        : closedWords(question, approval),
    );
    setText(text, question.text);
    detail.hidden = !question.detail || !question.open;
    setText(detail, question.detail);
    if (drawn === question.open) return;
    drawn = question.open;
    fillWith(
      row,
      question.open && store.get().session?.access !== "read"
        ? answers(question, approval, actions, row)
        : null,
    );
  };
  return { node, update };
}

function answers(question, approval, actions, row) {
  const give = async (answer) => {
    for (const each of row.querySelectorAll("button, input")) each.disabled = true;
    const done = await actions.answer(question.id, answer);
    if (done === null)
      for (const each of row.querySelectorAll("button, input")) each.disabled = false;
  };
  if (approval) {
    return [
      button("Allow", { does: () => give("allow"), kind: "primary" }),
      button("Deny", { does: () => give("deny"), kind: "stop" }),
      freeText("Or say why not", give),
    ];
  }
  const choices = question.choices.map((choice) => button(choice, { does: () => give(choice) }));
  return choices.length ? choices : freeText("Your answer", give);
}

function freeText(name, give) {
  const field = h("input", { type: "text", placeholder: name, "aria-label": name });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && field.value.trim()) give(field.value.trim());
  });
  return field;
}

const ALLOWS = ["allow", "session", "always"];

function closedWords({ answer, by }, approval) {
  if (answer === null) return "Closed without an answer";
  const said =
    !approval ? `Answered: ${answer}` : ALLOWS.includes(answer) ? "Allowed" : "Not allowed";
  return by ? `${said} · ${by}` : said;
}
