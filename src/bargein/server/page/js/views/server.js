// The server, for admins: what runs and what it has used, the nodes that share its database, who
// has a token, and who did what. It is read again every few seconds while it is open. And the MCP
// servers, for everybody.

import { button, fillWith, h } from "../dom.js";
import { ago, count } from "../format.js";
import { spentWords } from "../state/used.js";
import { dialogView, failed, pending } from "./dialog.js";
import { mcp } from "./mcp.js";

const EVERY_MS = 3_000;
const USED_MAX = 20;
const AUDIT_SHOWN = 100;

/** Returns a function that opens the dialog. */
export function serverView(store, api, { stopAll, revoke }) {
  const dialog = dialogView("wide server");
  let timer = null;
  let tab = "Running";

  // Sessions of others are known by their ids alone.
  const nameOf = (id) => {
    const [root] = id.split("/");
    const { sessions, session } = store.get();
    const known = [session, ...sessions].find((each) => each?.id === root);
    const name = known?.title || root;
    return id === root ? name : `${name}, sub-agent`;
  };

  const tabs = () =>
    Object.keys(TABS)
      .filter((name) => name === "MCP servers" || store.get().me?.admin)
      .map((name) =>
        h(
          "button",
          {
            type: "button",
            class: "mode",
            role: "tab",
            "aria-selected": String(name === tab),
            on: {
              click() {
                tab = name;
                draw({ anew: true });
              },
            },
          },
          name,
        ),
      );

  // `anew` shows that it is being read. `forced` draws even if somebody is about to press a button.
  const draw = async ({ anew = false, forced = anew } = {}) => {
    clearTimeout(timer);
    if (!dialog.isOpen()) return;
    const chosen = tab;
    const head = h("div", { class: "modes", role: "tablist", "aria-label": "About the server" });
    fillWith(head, tabs());
    if (anew) dialog.fill(head, pending());
    let content;
    try {
      const again = () => draw({ forced: true });
      content = await TABS[chosen](api, { stopAll, revoke, again, nameOf });
    } catch (problem) {
      content = failed(problem);
    }
    if (!dialog.isOpen() || chosen !== tab) return;
    const busy = dialog.node.querySelector(".dialog-body :is(td, li) :focus, select:focus");
    if (forced || busy === null) dialog.fill(head, content);
    timer = setTimeout(draw, EVERY_MS);
  };
  dialog.node.addEventListener("close", () => clearTimeout(timer));

  return () => {
    tab = store.get().me?.admin ? "Running" : "MCP servers";
    dialog.open("Server");
    draw({ anew: true });
  };
}

const TABS = {
  Running: running,
  Nodes: nodes,
  Tokens: tokens,
  "Audit log": audit,
  "MCP servers": mcp,
};

async function running(api, { stopAll, again, nameOf }) {
  const { sessions, streams, draining, channels = [] } = await api.running();
  const used = await Promise.all(
    sessions.slice(0, USED_MAX).map(({ id }) => api.usage(id).catch(() => null)),
  );
  const about = `${count(sessions.length, "session")} at work · ${count(streams, "open stream")}`;
  const stop = async (ids) => {
    await stopAll(ids);
    again();
  };
  return h(
    "div",
    {},
    h(
      "div",
      { class: "row" },
      h("p", { class: "sub grow" }, draining ? `${about} · shutting down` : about),
      sessions.length
        ? button("Stop all", { does: () => stop(null), kind: "stop", name: "Stop all sessions" })
        : null,
    ),
    table(
      ["Session", "Owner", "State", "At work on", "Used", ""],
      sessions.map((each, place) => [
        h("a", { href: `#/s/${encodeURIComponent(each.id)}`, title: each.id }, nameOf(each.id)),
        each.owner || "this machine",
        each.waiting ? `${each.phase}, ${each.waiting} waiting` : each.phase,
        [...each.calls, ...each.background_calls.map((call) => `${call} (background)`)]
          .map(withoutTwice)
          .join(", "),
        used[place] ? spentWords(used[place]) : "",
        button("Stop", { does: () => stop([each.id]), kind: "stop", name: `Stop ${each.id}` }),
      ]),
      "Nothing runs.",
    ),
    channels.length ? h("h3", { class: "label" }, "Chat platforms") : null,
    channels.length
      ? table(
          ["Channel", "State", "Chats at work", "Unsent", "Last error"],
          channels.map((each) => [
            each.name,
            each.running ? "runs" : "does not reach its platform",
            String(each.chats),
            String(each.unsent),
            each.error
              ? `${each.error} (${ago(each.error_at * 1000, Date.now())})`
              : "",
          ]),
          "",
        )
      : null,
  );
}

async function nodes(api) {
  const { nodes: found, failover } = await api.nodes();
  const now = Date.now();
  const life = ({ dead, lease_s: lease }) =>
    dead ? "dead" : lease > 0 ? "alive" : `silent for ${Math.ceil(-lease)} s past its lease`;
  return h(
    "div",
    {},
    failover ? h("p", { class: "sub" }, `If the database fails: ${failover}.`) : null,
    table(
      ["Node", "State", "At work", "Since", "Version", "Address"],
      found.map((each) => [
        h("code", {}, each.id),
        each.here ? `${life(each)}, this one` : life(each),
        count(each.unfinished, "session"),
        ago(each.joined_at * 1000, now),
        each.version,
        each.address,
      ]),
      "This server is alone. Others that use the same PostgreSQL would be listed here.",
    ),
  );
}

async function tokens(api, { revoke, again }) {
  const { tokens: found } = await api.tokens();
  const now = Date.now() / 1000;
  const state = ({ revoked_at: revoked, expires_at: expires }) =>
    revoked !== null ? "revoked" : expires !== null && expires < now ? "expired" : "valid";
  return table(
    ["Person", "Token", "May", "Made", "State", ""],
    found.map((each) => [
      each.principal,
      h("code", {}, each.id),
      [
        each.admin ? "everything" : each.read_only ? "read" : "read and write",
        each.sessions ? `in ${count(each.sessions.length, "session")}` : "",
        each.note,
      ]
        .filter(Boolean)
        .join(" · "),
      ago(each.created_at * 1000, Date.now()),
      state(each),
      state(each) === "valid"
        ? button("Revoke", {
            kind: "stop",
            name: `Revoke the token of ${each.principal}`,
            async does() {
              await revoke(each);
              again();
            },
          })
        : null,
    ]),
    "No token has been made. The address that bargein serve printed lets its user in.",
  );
}

async function audit(api) {
  const entries = await lastAudit(api);
  return table(
    ["When", "Who", "Did", "Where", "Answer", "About"],
    entries.map((each) => [
      new Date(each.at * 1000).toLocaleString(),
      each.principal || "nobody",
      each.action,
      each.session,
      String(each.status),
      [each.target, each.detail].filter(Boolean).join(" · "),
    ]),
    "Nobody has done anything yet.",
  );
}

// The log is read from its beginning, a page at a time; the newest entries are shown first.
async function lastAudit(api) {
  let kept = [];
  for (let after = 0, pages = 0; pages < 50; pages += 1) {
    const { entries } = await api.audit(after, 1_000);
    kept = [...kept, ...entries].slice(-AUDIT_SHOWN);
    if (entries.length < 1_000) break;
    after = entries.at(-1).number;
  }
  return kept.reverse();
}

function table(names, rows, nothing) {
  if (!rows.length) return h("p", { class: "nothing" }, nothing);
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          names.map((name) => h("th", {}, name)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((cell) => h("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}

// The title of some calls begins with the tool's name, which stands before it.
function withoutTwice(call) {
  return call.replace(/^(\S+): \1\b/, "$1");
}
