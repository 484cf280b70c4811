// With whom a session is shared: invite somebody by name, change what they may do, take it back.
// Only the owner can.

import { button, fillWith, h, setText } from "../dom.js";
import { copyButton } from "../app/copying.js";
import { dialogView, failed, pending } from "./dialog.js";

const ROLES = [
  { role: "talk", name: "read and talk" },
  { role: "write", name: "read and write" },
  { role: "read", name: "only read" },
];

/** Returns a function that opens the dialog for the session on the screen. */
export function sharingView(store, api) {
  const dialog = dialogView("sharing");
  let session = null;

  const change = async (members) => {
    try {
      show((await api.share(session, members)).members);
    } catch (problem) {
      dialog.node.querySelector(".problem")?.remove();
      dialog.node.querySelector(".dialog-body").append(failed(problem));
    }
  };

  const show = (members = {}) => {
    store.set(({ session: now }) =>
      now?.id === session ? { session: { ...now, members } } : {},
    );
    const rows = Object.keys(members).map((who) => memberRow(who, members, change));
    const address = `${location.origin}/#/s/${encodeURIComponent(session)}`;
    dialog.fill(
      h("p", { class: "sub" }, ABOUT),
      rows.length
        ? h("ul", { class: "members", "aria-label": "Members" }, rows)
        : h("p", { class: "nothing" }, "Nobody but you."),
      inviteForm(members, change),
      h(
        "div",
        { class: "row" },
        h("span", { class: "sub grow" }, "The address of this session, for members:"),
        copyButton(() => address, { name: "Copy the address", kind: "" }),
      ),
    );
  };

  return async () => {
    session = store.get().current;
    dialog.open("Share this session", pending());
    try {
      show((await api.session(session)).members);
      dialog.node.querySelector("input")?.focus();
    } catch (problem) {
      dialog.fill(failed(problem));
    }
  };
}

const ABOUT =
  "Members see everything in this session. Those who may talk or write can also stop it; those " +
  "who may write approve its calls, as far as the server lets them. They sign in with a token of " +
  "their own.";

function roleSelect(role, about) {
  const options = ROLES.map((each) =>
    h("option", { value: each.role, selected: each.role === role }, each.name),
  );
  return h("select", { "aria-label": about }, options);
}

function memberRow(who, members, change) {
  const select = roleSelect(members[who], `What ${who} may do`);
  select.addEventListener("change", () => change({ ...members, [who]: select.value }));
  const remove = button("Remove", {
    name: `Remove ${who}`,
    kind: "stop",
    does() {
      const { [who]: _, ...others } = members;
      change(others);
    },
  });
  return h("li", { class: "row" }, h("strong", { class: "grow" }, who), select, remove);
}

function inviteForm(members, change) {
  const name = h("input", {
    class: "field",
    placeholder: "Name",
    maxlength: 100,
    autocomplete: "off",
    "aria-label": "Name of the person to invite",
  });
  const select = roleSelect("write", "What they may do");
  const problem = h("p", { class: "sub", role: "status" });
  const form = h(
    "form",
    { class: "row" },
    name,
    select,
    h("button", { class: "button primary" }, "Invite"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const who = name.value.trim();
    if (!who) setText(problem, "Write the name of the person, as in their token.");
    else if (who in members) setText(problem, `${who} is a member already.`);
    else change({ ...members, [who]: select.value });
  });
  const node = h("div", {});
  fillWith(node, form, problem);
  return node;
}
