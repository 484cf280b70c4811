// Tool calls: requested by the model, begun, with output, ended; perhaps moved to the background.
// And the questions they ask.

import { appended, outcomeOf, patched, tail, textOf } from "./change.js";
import { callBegan, callDetached, callOver, guessNextModel } from "./bars.js";
import { planTitle } from "./plan.js";
import { visible } from "./visible.js";

const OUTPUT_CHARACTERS = 65_536;

/** Adds a call that the model has requested. */
export function callSaid(state, turn, call, at) {
  const known = state.calls[call.id];
  const title = known?.title || titleOf(call);
  const changes = { turn, name: call.name, arguments: visible(call.arguments), title };
  return withCall(state, call.id, known === undefined ? { ...changes, startedAt: at } : changes);
}

function withCall(state, id, changes) {
  const known = state.calls[id];
  const fresh = { id, key: `c-${id}`, kind: "call", status: "running", output: "", skipped: 0 };
  const call = { ...fresh, ...known, ...changes, listed: true };
  const item = { key: call.key, kind: "call", id };
  return {
    ...state,
    calls: { ...state.calls, [id]: call },
    items: known?.listed ? state.items : appended(state.items, item),
  };
}

// Makes a title while the tool itself has not given one.
function titleOf({ name, arguments: json }) {
  if (name === "todo") return planTitle(json);
  try {
    const values = Object.values(JSON.parse(json)).filter((each) => typeof each === "string");
    return visible(values[0]?.split("\n")[0] ?? name);
  } catch {
    return name;
  }
}

// Removes the tool's name from a title, because it is shown beside it.
function beside(name, title) {
  const start = [`${name}: `, `${name} `].find((each) => title.startsWith(each)) ?? "";
  return title.slice(start.length);
}

/** Notes that a call runs. Its arguments come with the model's answer, which may come later. */
export function toolStepBegan(state, { turn, name, call_id: id, title = "" }, { at }) {
  const calls = patched(state.calls, id, {
    status: "running",
    startedAt: at,
    output: "",
    skipped: 0,
    title: beside(name, title),
    ...state.calls[id],
    id,
    key: `c-${id}`,
    kind: "call",
    turn,
    name,
    begun: true,
  });
  return { ...state, calls, turns: callBegan(state.turns, turn, id, name, at) };
}

function started(state, { turn, call, effect, title }, { at }) {
  const changes = {
    turn,
    name: call.name,
    arguments: visible(call.arguments),
    effect,
    startedAt: at,
    begun: true,
  };
  if (title) changes.title = beside(call.name, title);
  const next = withCall(state, call.id, changes);
  return { ...next, turns: callBegan(next.turns, turn, call.id, call.name, at) };
}

function output(state, { call_id: id, text }) {
  const call = state.calls[id];
  if (call === undefined) return state;
  const whole = call.output + text;
  const kept = tail(whole, OUTPUT_CHARACTERS);
  const changes = { output: kept, skipped: call.skipped + whole.length - kept.length };
  return { ...state, calls: patched(state.calls, id, changes) };
}

function outputSoFar(state, { call_id: id, turn, text, skipped }, { at }) {
  // It may have begun before the part of the log that was read; the session's detail has it.
  const fresh = { id, key: `c-${id}`, kind: "call", status: "running", turn, startedAt: at };
  const call = { ...fresh, ...state.calls[id], output: text, skipped: skipped ?? 0 };
  return { ...state, calls: { ...state.calls, [id]: call } };
}

/** Adds a running call from the server's list, for a log that was not read from its beginning. */
export function withRunningCall(state, { id, name, title, detached, running_s: runningS }, now) {
  if (state.calls[id]?.name) return state;
  return withCall(state, id, {
    name,
    title: beside(name, title),
    status: detached ? "background" : "running",
    detached,
    begun: true,
    startedAt: now - runningS * 1000,
  });
}

function ended(state, { turn, call_id: id, result }, { at }) {
  const next = withCall(state, id, { turn, ...resultOf(result), endedAt: at });
  const detached = result.status === "detached";
  const turns = detached
    ? callDetached(next.turns, turn, id, at)
    : guessNextModel(callOver(next.turns, turn, id, at, outcomeOf(result)), turn, at);
  const call = detached ? { detached: true, status: "background", endedAt: null } : {};
  return { ...next, turns, calls: patched(next.calls, id, call) };
}

function detached(state, { call_id: id }) {
  if (state.calls[id] === undefined) return state;
  const call = { detached: true, status: "background", endedAt: null };
  return { ...state, calls: patched(state.calls, id, call) };
}

function backgroundEnded(state, { call_id: id, result }, { at }) {
  const next = withCall(state, id, { ...resultOf(result), endedAt: at });
  const { turn } = next.calls[id];
  return { ...next, turns: callOver(next.turns, turn, id, at, outcomeOf(result)) };
}

// A result replaces the output, because it has everything to show. Only for a call that a crash has
// ended, the output on the screen is all there is.
function resultOf(ended) {
  const { content, summary, stop } = ended;
  const status = outcomeOf(ended);
  const result = textOf(content);
  const told = { status, result, summary: summary ?? "", stop: stop ?? null };
  const replaced = result && status !== "detached" && status !== "unknown";
  return replaced ? { ...told, output: "", skipped: 0 } : told;
}

function asked(state, { turn, id, question, call_id: callId = "" }, { at }) {
  if (state.questions[id] !== undefined) return state;
  const { text, choices = [], detail = "", kind: asks = "question", grant = null } = question;
  const { answerable_by: needs = "writer" } = question;
  // A guest answers what allows nothing.
  const answerableBy = needs === "writer" && asks !== "approval" ? "guest" : needs;
  const key = `q-${id}`;
  const known = {
    id,
    key,
    kind: "question",
    turn,
    callId,
    text,
    choices,
    detail,
    asks,
    grant,
    answerableBy,
    open: true,
    at,
  };
  return {
    ...state,
    questions: { ...state.questions, [id]: known },
    items: appended(state.items, { key, kind: "question", id }),
    calls: asking(state.calls, callId, true),
  };
}

function closed(state, { id, answer, by }) {
  const question = state.questions[id];
  if (question === undefined) return state;
  const changes = { open: false, answer: answer ?? null, by: by ?? "" };
  return {
    ...state,
    questions: patched(state.questions, id, changes),
    calls: asking(state.calls, question.callId, false),
  };
}

// A call with an open question waits and does not run.
function asking(calls, id, isAsking) {
  return calls[id] === undefined ? calls : patched(calls, id, { asking: isAsking });
}

export const callHandlers = {
  call_started: started,
  call_output: output,
  output_so_far: outputSoFar,
  call_ended: ended,
  call_detached: detached,
  background_ended: backgroundEnded,
  question_asked: asked,
  question_closed: closed,
};

/** Returns the calls that have not ended, in the order in which they began. */
export function runningCalls(state) {
  return Object.values(state.calls)
    .filter((call) => call.status === "running" || call.status === "background")
    .sort((one, other) => one.startedAt - other.startedAt);
}

/** Returns the open questions. */
export function openQuestions(state) {
  return Object.values(state.questions).filter((question) => question.open);
}
