// What the session permits: the mode, beside the field; and what was granted, among what goes on.

import { announce } from "../app/tell.js";
import { button, h, keyedList, setText } from "../dom.js";
import { ago } from "../format.js";
import { MODES } from "../state/permission.js";

const FULL = "In full mode nothing is asked: every call runs, dangerous ones too. Use it?";

/** The permission mode: shown to all, changed by those who may. */
export function modeView(store, actions) {
  const options = MODES.map(({ mode, name, about }) =>
    h("option", { value: mode, title: about }, name),
  );
  const select = h("select", { id: "permission", "aria-describedby": "permission-about" }, options);
  const about = h("span", { class: "unseen", id: "permission-about" });
  const rest = h("span", { class: "unseen" }, " mode");
  const label = h("label", { for: "permission" }, "Permission", rest);
  const node = h("span", { class: "permission" }, label, select, about);
  let shown = null;

  select.addEventListener("change", async () => {
    const wanted = select.value;
    select.value = shown;
    if (wanted === "full" && !confirm(FULL)) return;
    await actions.setMode(wanted);
  });
  return {
    node,
    update({ session, current }) {
      const { mode, may } = session?.permits ?? {};
      node.hidden = current === null || !mode;
      if (node.hidden || !mode) return;
      const allowed = may?.modes ?? [];
      MODES.forEach((each, place) => {
        options[place].disabled = each.mode !== mode && !allowed.includes(each.mode);
      });
      select.disabled = session.ended || allowed.every((each) => each === mode);
      const { name, about: means } = MODES.find((each) => each.mode === mode);
      select.title = `Permission mode: ${means}`;
      setText(about, means);
      node.dataset.mode = mode;
      if (shown !== null && shown !== mode) announce(`Permission mode: ${name}, ${means}`);
      shown = mode;
      // What somebody is choosing from is not changed under them.
      if (document.activeElement !== select || select.value !== mode) select.value = mode;
    },
  };
}

/** What approvals have allowed for longer than one call. */
export function grantsView(actions) {
  const list = h("ul", { class: "grants" });
  const draw = keyedList(list, () => grantRow(actions));
  return {
    node: list,
    /** Returns whether there are any. */
    update(session) {
      const grants = session?.permits.grants ?? [];
      draw(grants, (each) => `${each.scope} ${each.id}`);
      return grants.length > 0;
    },
  };
}

const SCOPES = { session: "in this session", project: "always in this project" };

function grantRow(actions) {
  const text = h("code", {});
  const about = h("span", { class: "came" });
  const revoke = button("Revoke", { does: () => take() });
  const node = h("li", { class: "grant" }, text, revoke, about);
  let grant = null;
  const take = async () => {
    revoke.disabled = true;
    if ((await actions.revoke(grant)) === null) revoke.disabled = false;
  };
  const update = (next) => {
    grant = next;
    setText(text, next.text);
    text.title = next.text;
    const when = ago(next.at * 1000, Date.now());
    setText(about, `${SCOPES[next.scope]} · ${next.by}${when ? ` · ${when}` : ""}`);
    revoke.hidden = !next.revocable;
    revoke.setAttribute("aria-label", `Revoke ${next.text} ${SCOPES[next.scope]}`);
  };
  return { node, update };
}
