// The HTTP API, one function for each thing the page does. The browser sends the session cookie by
// itself: no script can read the token.

import { offline, problemOf } from "./problem.js";

const BASE = "/v1";

async function ask(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch {
    throw offline();
  }
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? null : response.json();
}

function at(...parts) {
  return `${BASE}/sessions/${parts.map(encodeURIComponent).join("/")}`;
}

export const api = {
  me: () => ask("GET", `${BASE}/me`),
  login: (token) => ask("POST", "/login", { token }),
  logout: () => ask("POST", "/logout"),

  sessions: (limit) => ask("GET", `${BASE}/sessions?limit=${limit}`),
  search: (words) => ask("GET", `${BASE}/search?words=${encodeURIComponent(words)}`),
  create: (title = "") => ask("POST", `${BASE}/sessions`, { title }),
  session: (id) => ask("GET", at(id)),
  rename: (id, title) => ask("PATCH", at(id), { title }),
  remove: (id) => ask("DELETE", at(id)),

  send: (id, { text, mode, clientId }) =>
    ask("POST", at(id, "messages"), { text, mode, client_message_id: clientId }),
  stop: (id, turn) => ask("POST", at(id, "interrupt"), { scope: "turn", expected_turn_id: turn }),
  stopChild: (id, child) => ask("POST", at(id, "interrupt"), { scope: "child", target: child }),
  stopCall: (id, call) => ask("POST", at(id, "calls", call, "interrupt"), {}),
  detach: (id, call) => ask("POST", at(id, "calls", call, "detach"), {}),
  pause: (id) => ask("POST", at(id, "pause"), {}),
  resume: (id) => ask("POST", at(id, "resume"), {}),
  goOn: (id) => ask("POST", at(id, "continue"), {}),
  answer: (id, question, text) => ask("POST", at(id, "questions", question, "answer"), { text }),

  inbox: (id) => ask("GET", at(id, "inbox")),
  edit: (id, message, text) => ask("PATCH", at(id, "inbox", message), { text }),
  move: (id, message, before) => ask("PATCH", at(id, "inbox", message), { before }),
  withdraw: (id, message) => ask("DELETE", at(id, "inbox", message)),

  eventsPath: (id, after) => `${at(id, "events")}?after=${after}`,
};
