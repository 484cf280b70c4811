// The MCP servers of the agent: the state, tools and processes of each, and the prompts they offer.

import { h } from "../dom.js";
import { count } from "../format.js";

export async function mcp(api) {
  const { servers, prompts = [] } = await api.mcp();
  if (!servers.length)
    return h("p", { class: "nothing" }, "No MCP servers. Add one with: bargein mcp add");
  return h(
    "div",
    {},
    h("ul", { class: "mcp-list" }, servers.map(mcpRow)),
    prompts.length ? h("h3", { class: "label" }, "Prompts") : null,
    prompts.map(({ offered_as: name, about }) =>
      h("p", { class: "sub" }, h("code", {}, `/${name}`), about ? ` ${about}` : ""),
    ),
  );
}

const DOTS = { ready: "finished", starting: "running", failed: "failed" };

function mcpRow(server) {
  const about = [server.transport, server.server, server.version, server.principal];
  const list = (name, texts) =>
    texts.length
      ? h(
          "details",
          {},
          h("summary", {}, `${count(texts.length, name)}`),
          h(
            "ul",
            {},
            texts.map((each) => h("li", {}, h("code", {}, each))),
          ),
        )
      : null;
  return h(
    "li",
    { class: "mcp" },
    h("span", { class: `dot ${DOTS[server.state] ?? ""}` }),
    h("strong", {}, server.name),
    h("span", { class: "sub" }, [server.state, ...about].filter(Boolean).join(" · ")),
    server.error ? h("p", { class: "problem" }, server.error) : null,
    server.oddities ? h("p", { class: "sub" }, server.oddities) : null,
    list("tool", server.tools),
    list("tool left out", server.left_out),
    list("process", server.processes),
  );
}
