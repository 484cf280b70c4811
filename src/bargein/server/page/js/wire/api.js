// The API, one function for each thing the page does. Operations on the session on the screen go
// over its open socket, in order. Everything else, and everything while there is no socket, is a
// short HTTP request. The page holds no HTTP connection for long: a browser has only six for a
// server, in all its tabs together, and a stop must never wait for one.

import { offline, problemOf } from "./problem.js";
import { token } from "./token.js";

const BASE = "/v1";
const ANSWER_MS = 30_000;
// A character is up to six bytes of JSON.
const SOCKET_CHARACTERS_MAX = 150_000;

let line = null;

/** Returns the open socket of a session, or null: see socket.js. */
export function setLine(socket) {
  line = socket;
}

/** Returns the header with the token. */
export function authorization(shown = token.get()) {
  return shown === null ? {} : { authorization: `Bearer ${shown}` };
}

async function ask(method, path, body, { as, key } = {}) {
  const headers = { accept: "application/json", ...authorization(as) };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key !== undefined) headers["idempotency-key"] = key;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (response.ok) return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error.name !== "TimeoutError") throw offline();
    throw offline(`The server has not answered for ${ANSWER_MS / 1000} s.`);
  }
  throw await problemOf(response);
}

function at(...parts) {
  return `${BASE}/sessions/${parts.map(encodeURIComponent).join("/")}`;
}

// Sends an operation of a session over its socket, by the operation's name, or else over HTTP.
// Large ones go over HTTP, because a socket takes a mebibyte at most and a stop must not wait
// behind them.
function within(id, name, params, method, parts, body) {
  const fits = !body?.content && (body?.text?.length ?? 0) < SOCKET_CHARACTERS_MAX;
  if (fits && line?.session === id && line.takes()) return line.perform(name, params, body);
  return ask(method, at(id, ...parts), body);
}

const post = (id, name, parts, body = {}, params = {}) =>
  within(id, name, params, "POST", parts, body);

export const api = {
  join: (code) => ask("POST", `${BASE}/join`, undefined, { as: code }),
  me: (shown) => ask("GET", `${BASE}/me`, undefined, { as: shown }),

  sessions: (limit) => ask("GET", `${BASE}/sessions?limit=${limit}`),
  invitations: () => ask("GET", `${BASE}/invitations`),
  accept: (id) => ask("POST", at(id, "accept"), {}),
  hide: (id) => ask("POST", at(id, "hide"), {}),
  search: (words) => ask("GET", `${BASE}/search?words=${encodeURIComponent(words)}`),
  create: (key) => ask("POST", `${BASE}/sessions`, {}, { key }),
  session: (id) => within(id, "get_session", {}, "GET", []),
  rename: (id, title) => ask("PATCH", at(id), { title }),
  remove: (id) => ask("DELETE", at(id)),
  ticket: (id, after) => ask("POST", at(id, "ticket"), { after }),

  send: (id, { text, pictures, mode, clientId }) =>
    post(id, "send_message", ["messages"], {
      ...contentOf(text, pictures ?? []),
      mode,
      client_message_id: clientId,
    }),
  stop: (id, turn) => post(id, "interrupt", ["interrupt"], turnStop(turn)),
  /** The same over HTTP, past a socket that does not answer. */
  stopByHttp: (id, turn) => ask("POST", at(id, "interrupt"), turnStop(turn)),
  stopAll: (id) => post(id, "interrupt", ["interrupt"], { scope: "session" }),
  stopChild: (id, child) => post(id, "interrupt", ["interrupt"], { scope: "child", target: child }),
  stopCall: (id, call) => post(id, "interrupt_call", ["calls", call, "interrupt"], {}, { call }),
  detach: (id, call) => post(id, "detach_call", ["calls", call, "detach"], {}, { call }),
  pause: (id) => post(id, "pause", ["pause"]),
  resume: (id) => post(id, "resume", ["resume"]),
  goOn: (id) => post(id, "continue_queue", ["continue"]),
  answer: (id, question, text) =>
    post(id, "answer_question", ["questions", question, "answer"], { text }, { question }),

  setMode: (id, mode) => within(id, "change_session", {}, "PATCH", [], { mode }),
  grants: (id) => within(id, "list_grants", {}, "GET", ["grants"]),
  revoke: (id, grant, scope) => ask("DELETE", `${at(id, "grants", grant)}?scope=${scope}`),

  fork: (id, turn) => post(id, "fork_session", ["fork"], { turn }),
  previewUndo: (id, turn) => post(id, "preview_undo", ["undo", "preview"], { turn }),
  rewind: (id, turn, wanted = {}) => post(id, "rewind_session", ["rewind"], { turn, ...wanted }),
  undoCalls: (id, calls) => post(id, "undo_calls", ["undo", "calls"], { calls }),
  redo: (id) => post(id, "redo_files", ["redo"]),
  diff: (id, turn) => post(id, "diff_turn", ["diff"], { turn }),

  share: (id, members) => ask("PATCH", at(id), { members }),
  usage: (id) => ask("GET", at(id, "usage")),
  running: () => ask("GET", `${BASE}/admin/running`),
  stopRunning: (sessions) => ask("POST", `${BASE}/admin/stop`, { sessions, scope: "session" }),
  tokens: () => ask("GET", `${BASE}/admin/tokens`),
  nodes: () => ask("GET", `${BASE}/admin/nodes`),
  revokeToken: (token) => ask("DELETE", `${BASE}/admin/tokens/${encodeURIComponent(token)}`),
  audit: (after, limit) => ask("GET", `${BASE}/admin/audit?after=${after}&limit=${limit}`),
  mcp: () => ask("GET", `${BASE}/mcp`),

  inbox: (id) => within(id, "get_inbox", {}, "GET", ["inbox"]),
  edit: (id, message, text) => change(id, message, { text }),
  move: (id, message, before) => change(id, message, { before }),
  withdraw: (id, message) =>
    within(id, "withdraw_message", { message }, "DELETE", ["inbox", message]),

  eventsPath: (id, after) => `${at(id, "events")}?after=${after}`,
  socketPath: (id, after) => `${at(id, "socket")}?after=${after}`,
};

// Words with pictures are sent in parts.
function contentOf(text, pictures) {
  if (!pictures.length) return { text };
  const words = text ? [{ type: "text", text }] : [];
  return { content: [...words, ...pictures.map((each) => ({ type: "image", ...each }))] };
}

const turnStop = (turn) => ({ scope: "turn", expected_turn_id: turn });
const change = (id, message, changes) =>
  within(id, "change_message", { message }, "PATCH", ["inbox", message], changes);
