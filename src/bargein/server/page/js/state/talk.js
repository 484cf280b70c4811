// The model's answers: streamed first, then recorded in the log. The recorded text replaces the
// streamed one under the same key, so that nothing on the screen jumps.

import { appended, tail, textOf } from "./change.js";
import { callSaid } from "./calls.js";
import { modelBegan, modelSaid } from "./bars.js";

const REASONING_CHARACTERS = 20_000;

function delta(field) {
  return (state, { turn, text }, { at }) => {
    const [segment, rest] = current(state, turn, at);
    const said = segment[field] + text;
    const kept = field === "reasoning" ? tail(said, REASONING_CHARACTERS) : said;
    return { ...state, live: [...rest, { ...segment, [field]: kept, retry: null }] };
  };
}

function soFar(state, { turn, text, reasoning }, { at }) {
  const shown = state.live.findLast((each) => each.turn === turn) ?? segmentOf(turn, at);
  return { ...state, live: [{ ...shown, text, reasoning, stale: false }] };
}

function voided(state, { turn, cause, delay_s: delayS, model }, { at }) {
  const [segment, rest] = current(state, turn, at);
  const retry = { cause, delayS, model };
  return { ...state, live: [...rest, { ...segment, text: "", reasoning: "", retry }] };
}

function said(state, { turn, message, model, usage, partial }, { at, seq }) {
  const text = textOf(message.content);
  const calls = message.content.filter((part) => part.type === "tool_call");
  const reasoning = message.content
    .filter((part) => part.type === "reasoning")
    .map((part) => part.text)
    .join("\n");
  const [segment, live] = finished(state.live, turn, text);
  const item = {
    key: segment?.key ?? `a-${seq}`,
    kind: "answer",
    turn,
    text,
    reasoning: reasoning || (segment?.reasoning ?? ""),
    model,
    usage,
    partial: partial ?? false,
    unkept: partial ? beyond(text, segment) : "",
    at,
  };
  const turns = modelSaid(state.turns, turn, at, partial ? "stopped" : "finished");
  let next = { ...state, live, turns };
  if (text || item.reasoning || item.unkept) next = { ...next, items: appended(next.items, item) };
  for (const call of calls) next = callSaid(next, turn, call, at);
  return next;
}

/** Returns the streamed text of an answer that was never recorded, as items that stay shown. */
export function neverSaid(live, at) {
  return live
    .filter((segment) => segment.text)
    .map(({ key, turn, text, reasoning }) => {
      const item = { key, kind: "answer", turn, text: "", reasoning, partial: true, at };
      return { ...item, unkept: text };
    });
}

// Returns the text that was streamed of this answer and not recorded.
function beyond(text, segment) {
  return segment?.text.startsWith(text) ? segment.text.slice(text.length) : "";
}

/** Notes a new request to the model: its answer is a new one. */
export function modelStepBegan(state, { turn, name }, { at }) {
  const last = state.live.at(-1);
  const fresh = last === undefined || last.turn !== turn || last.text || last.reasoning;
  return {
    ...state,
    live: fresh ? appended(state.live, segmentOf(turn, at)) : state.live,
    turns: modelBegan(state.turns, turn, at, name),
  };
}

// Returns the answer that a turn is streaming now, and those before it.
function current(state, turn, at) {
  const known = state.live.filter((each) => !each.stale);
  const last = known.at(-1);
  if (last?.turn === turn) return [last, known.slice(0, -1)];
  return [segmentOf(turn, at), known];
}

function segmentOf(turn, at) {
  return {
    key: `live-${turn}-${at}`,
    kind: "live",
    turn,
    text: "",
    reasoning: "",
    retry: null,
    at,
  };
}

// Returns the streamed answer that is now recorded, and the others. The next one may have begun to
// stream before the log has this one, so they are distinguished by their text.
function finished(live, turn, text) {
  const place = live.findIndex(
    (each) =>
      each.turn === turn && (text.startsWith(each.text) || (text && each.text.startsWith(text))),
  );
  return place === -1 ? [null, live] : [live[place], live.slice(place + 1)];
}

export const talkHandlers = {
  text_delta: delta("text"),
  reasoning_delta: delta("reasoning"),
  answer_so_far: soFar,
  answer_void: voided,
  assistant_said: said,
  compressed: (state, event, when) => noticed(state, compressedWords(event), when),
  // Not in the log, so that it is shown once, to whoever looks.
  notice: (state, { turn, text }, { at }) =>
    turn ? noticed(state, text, { at, seq: `live-${turn}-${state.items.length}` }) : state,
  session_titled: (state, { title }) => ({ ...state, title }),
};

function compressedWords({ dropped, tokens_before: before, tokens_after: after }) {
  const how = dropped ? "left out for the model" : "summarised for the model";
  const room = before && after ? ` (${before} → ${after} tokens)` : "";
  return `Everything before this point is ${how}${room}. It stays in the log.`;
}

function noticed(state, text, { at, seq }) {
  return { ...state, items: appended(state.items, { key: `n-${seq}`, kind: "notice", text, at }) };
}
