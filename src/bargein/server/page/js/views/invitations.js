// Sessions that others share with you. They join your list when you accept them.

import { button, h, keyedList, setText } from "../dom.js";
import { titleOf } from "../format.js";

export function invitationsView(actions) {
  const rows = h("ul");
  const node = h(
    "section",
    { class: "invited-list", "aria-labelledby": "invitations-name" },
    h("h2", { id: "invitations-name" }, "Shared with you"),
    rows,
  );
  const draw = keyedList(rows, () => invitation(actions));
  let shown = null;
  const update = (invitations) => {
    if (invitations === shown) return;
    shown = invitations;
    node.hidden = !invitations.length;
    draw(invitations, (each) => each.id);
  };
  return { node, update };
}

function invitation(actions) {
  const title = h("div", { class: "title" });
  const from = h("span", { class: "from" });
  let session = null;
  const accept = button("Accept", { does: () => actions.invited(session.id, "accept") });
  const hide = button("Hide", { does: () => actions.invited(session.id, "hide"), kind: "quiet" });
  const row = h("div", { class: "row" }, from, accept, hide);
  const node = h("li", { class: "invitation" }, title, row);
  const update = (next) => {
    session = next;
    setText(title, titleOf(next));
    setText(from, `from ${next.owner}`);
    accept.setAttribute("aria-label", `Accept ${titleOf(next)} from ${next.owner}`);
    hide.setAttribute("aria-label", `Hide ${titleOf(next)} from ${next.owner}`);
  };
  return { node, update };
}
