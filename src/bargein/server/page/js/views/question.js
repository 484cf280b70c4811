// A question or an approval, answered in place. An approval offers the answers that the server lets
// this principal give: once, for the session, for always, and no.

import { button, fillWith, h, setText } from "../dom.js";
import { grantWords, isGuest, offered } from "../state/permission.js";

export function questionView(_, __, actions) {
  const asks = h("span", { class: "label asks" });
  const text = h("p");
  const detail = h("pre");
  const row = h("div", { class: "row", role: "group", "aria-label": "Your answer" });
  const longer = h("p", { class: "longer" });
  const node = h("li", { class: "question" }, asks, text, detail, row, longer);
  let drawn = null;

  const update = (question) => {
    const approval = question.asks === "approval";
    node.className = `question${approval ? " approval" : ""}${question.open ? "" : " closed"}`;
    node.dataset.question = question.id;
    setText(
      asks,
      question.open
        ? approval
          ? "Needs your approval"
          : "A question for you"
        : closedWords(question, approval),
    );
    setText(text, question.text);
    detail.hidden = !question.detail || !question.open;
    setText(detail, question.detail);
    const { mine, choices } = offered(question);
    const goesOn = choices.filter((choice) => choice in LONGER);
    longer.hidden = !goesOn.length && mine !== false;
    const howLong = goesOn.includes("always") ? "For this session or always" : "For this session";
    const why = isGuest(question.may) ? FOR_GUESTS : NOT_YOURS;
    setText(longer, mine ? `${howLong}: ${grantWords(question.grant)}` : why);
    row.hidden = !mine;
    const key = `${mine} ${choices}`;
    if (drawn === key) return;
    drawn = key;
    fillWith(row, mine ? answers(question, { approval, goesOn }, actions, row) : null);
  };
  return { node, update };
}

const NOT_YOURS = "Only people whose token was made before this server started can answer this.";
const FOR_GUESTS =
  "You may read and talk here. Whoever shared this chat can let you approve: /share approve NAME.";
const LONGER = { session: "For this session", always: "Always in this project" };

function answers(question, { approval, goesOn }, actions, row) {
  const give = async (answer) => {
    for (const each of row.querySelectorAll("button, input")) each.disabled = true;
    const done = await actions.answer(question.id, answer);
    if (done === null)
      for (const each of row.querySelectorAll("button, input")) each.disabled = false;
  };
  if (approval) {
    return [
      button("Allow once", { does: () => give("allow"), kind: "primary" }),
      goesOn.map((choice) => button(LONGER[choice], { does: () => give(choice) })),
      button("Deny", { does: () => give("deny"), kind: "stop" }),
      freeText("Or say why not", give),
    ];
  }
  const named = question.choices.map((choice) => button(choice, { does: () => give(choice) }));
  return named.length ? named : freeText("Your answer", give);
}

function freeText(name, give) {
  const field = h("input", { type: "text", placeholder: name, "aria-label": name });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && field.value.trim()) give(field.value.trim());
  });
  return field;
}

const ALLOWED = {
  allow: "Allowed",
  session: "Allowed for this session",
  always: "Always allowed in this project",
};

function closedWords({ answer, by }, approval) {
  if (answer === null) return "Closed without an answer";
  const said = !approval ? `Answered: ${answer}` : (ALLOWED[answer] ?? "Not allowed");
  return by ? `${said} · ${by}` : said;
}
