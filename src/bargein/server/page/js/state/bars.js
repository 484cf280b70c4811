// The timeline of a turn as bars: what worked from when to when. The log alone is enough; in it a
// model's request is the time between two other things. Live parts only make the beginnings more
// exact.

import { outcomeOf, patched } from "./change.js";

/** Returns the bars of a new turn, which begins with a request to the model. */
export function firstBars(at) {
  const bar = { id: "model-1", kind: "model", name: "model", from: at, to: null };
  return [{ ...bar, status: "running", guessed: true }];
}

function withBars(turns, turn, change) {
  if (turns[turn] === undefined) return turns;
  return patched(turns, turn, { bars: change(turns[turn].bars) });
}

function changeBar(bars, test, changes) {
  return bars.map((bar) => (test(bar) ? { ...bar, ...changes } : bar));
}

const isOpenModel = (bar) => bar.kind === "model" && bar.to === null;

export function modelBegan(turns, turn, at, name, guessed = false) {
  return withBars(turns, turn, (bars) => {
    const open = bars.find(isOpenModel);
    if (open !== undefined && guessed) return bars;
    if (open?.guessed) return changeBar(bars, (bar) => bar === open, { from: at, name, guessed });
    const id = `model-${bars.filter((bar) => bar.kind === "model").length + 1}`;
    const bar = { id, kind: "model", name, from: at, to: null, status: "running", guessed };
    return [...changeBar(bars, isOpenModel, { to: at, status: "finished" }), bar];
  });
}

export function modelOver(turns, turn, at, status) {
  return withBars(turns, turn, (bars) => {
    const open = bars.find(isOpenModel);
    return changeBar(bars, (bar) => bar === open, { to: at, status, unsaid: true });
  });
}

/** Ends the request of an answer that is in the log, now or when its end was seen. */
export function modelSaid(turns, turn, at, status) {
  return withBars(turns, turn, (bars) => {
    const told = bars.find((bar) => bar.unsaid);
    if (told !== undefined)
      return changeBar(bars, (bar) => bar === told, { unsaid: false, status });
    const open = bars.find(isOpenModel);
    return changeBar(bars, (bar) => bar === open, { to: at, status });
  });
}

export function callBegan(turns, turn, id, name, at) {
  return withBars(turns, turn, (bars) => {
    if (bars.some((bar) => bar.id === id)) return bars;
    return [...bars, { id, kind: "tool", name, from: at, to: null, status: "running" }];
  });
}

export function callOver(turns, turn, id, at, status) {
  return withBars(turns, turn, (bars) =>
    changeBar(bars, (bar) => bar.id === id && bar.to === null, { to: at, status }),
  );
}

export function callDetached(turns, turn, id, at) {
  return withBars(turns, turn, (bars) =>
    changeBar(bars, (bar) => bar.id === id, {
      detachedAt: at,
      detached: true,
      status: "background",
    }),
  );
}

export function childBegan(turns, turn, id, name, at) {
  const bar = { id, kind: "child", name, from: at, to: null, status: "running" };
  return withBars(turns, turn, (bars) => [...bars, bar]);
}

/** Begins the next request when all calls have results, unless the turn ends. */
export function guessNextModel(turns, turn, at) {
  const { bars = [], interrupts = [] } = turns[turn] ?? {};
  const busy = interrupts.length || bars.some((bar) => bar.to === null && !bar.detached);
  return busy ? turns : modelBegan(turns, turn, at, "model", true);
}

/** Ends all bars of a turn. Stopped steps ended when the receipt says. */
export function lastBars(bars, at, interruptAt, receipt) {
  const ends = new Map();
  for (const step of receipt?.steps ?? []) {
    const id = step.kind === "tool" ? step.call_id : step.kind;
    ends.set(id, { to: (interruptAt ?? at) + step.elapsed_ms, status: outcomeOf(step) });
  }
  return bars
    .filter((bar) => !(bar.guessed && bar.to === null && !ends.has("model")))
    .map((bar) => {
      const met = ends.get(bar.kind === "model" ? "model" : bar.id);
      const last = bar.to === null || (interruptAt !== null && bar.to >= interruptAt);
      if (met !== undefined && last) return { ...bar, ...met };
      return bar.to === null && !bar.detached ? { ...bar, to: at, status: "finished" } : bar;
    });
}
