// A receipt in one line, and the end of a turn in words. Plain functions of data.

import { count, duration } from "../format.js";
import { spentShort } from "./used.js";

const UNCERTAIN = new Set(["stopped", "abandoned", "unknown"]);
const STATUS_WORDS = {
  stopped: "stopped",
  finished: "had finished",
  failed: "failed",
  not_started: "not started",
  abandoned: "did not stop: abandoned",
  detached: "in the background",
  unknown: "outcome unknown",
};
const CAUSES = {
  user_stop: "stopped",
  redirect: "redirected",
  interrupt: "redirected",
  rollback: "rolled back",
  deadline: "out of time, stopped",
  budget: "budget used up, stopped",
  shutdown: "the server shut down, stopped",
  parent: "stopped with its parent",
  lease_lost: "another owner took over, stopped",
  client_gone: "the client went away, stopped",
};

/** Returns whether a step may be half done. */
export function isUncertain(step) {
  return step.effect !== "none" && UNCERTAIN.has(step.status);
}

/** Returns the root cause: the reason itself, or that of the parent that was stopped. */
export function causeOf(receipt) {
  const reason = receipt?.reason;
  return (reason?.parent ?? reason)?.cause ?? "user_stop";
}

export function causeWords(receipt) {
  return CAUSES[causeOf(receipt)] ?? "stopped";
}

/** Returns more about the cause: which budget it was, and that the session can go on. */
export function causeDetail(receipt) {
  const cause = causeOf(receipt);
  return cause === "budget" || cause === "deadline" ? (receipt.reason?.detail ?? "") : "";
}

/** Describes a step: what the call did, or the task of the sub-agent. */
export function stepName(step, session) {
  if (step.kind !== "child") return session?.calls[step.call_id]?.title || step.name;
  const known = Object.values(session?.children ?? {}).flatMap((child) => [
    child,
    ...(child.below ?? []),
  ]);
  return known.find((child) => child.id === step.name)?.task ?? "a sub-agent further down";
}

/** Describes one step: `make test killed (3 processes), may have happened half`. */
export function stepWords(step) {
  const what =
    shortened(step.summary) || `${step.name}: ${STATUS_WORDS[step.status] ?? step.status}`;
  return isUncertain(step) ? `${what}, may have happened half` : what;
}

// Keeps the beginning, which names it, and the end, which has the outcome.
function shortened(text, characters = 72) {
  if (text.length <= characters) return text;
  return `${text.slice(0, characters - 32)} … ${text.slice(-29)}`;
}

/** Returns the receipt in one line: how fast, what was stopped, what is uncertain, what waits. */
export function receiptLine(receipt) {
  const words = [`${causeWords(receipt)} in ${duration(receipt.elapsed_ms)}`];
  const kind = (name) => (step) => step.kind === name;
  const steps = receipt.steps ?? [];
  const calls = steps.filter(kind("tool"));
  const children = steps.filter(kind("child"));
  words.push(
    ...steps.filter((step) => !calls.includes(step) && !children.includes(step)).map(stepWords),
  );
  if (children.length) words.push(many(children, "sub-agent"));
  words.push(...(calls.length > 1 ? [many(calls, "call")] : calls.map(stepWords)));
  if (receipt.held?.length) words.push(`${receipt.held.length} held`);
  if (receipt.queued?.length) words.push(`${receipt.queued.length} queued`);
  const spent = receipt.spent ? spentShort(receipt.spent) : "";
  if (spent) words.push(spent);
  if (receipt.stored === false) words.push("not stored: the disk did not take it");
  return words.join(" · ");
}

// Counts many steps: `3 calls stopped (5 processes), may have happened half`.
function many(steps, name) {
  const processes = steps.reduce((sum, step) => sum + (step.detail?.processes?.length ?? 0), 0);
  const ended = processes ? ` (${count(processes, "process", "processes")})` : "";
  const half = steps.filter(isUncertain).length;
  const abandoned = steps.filter((step) => step.status === "abandoned").length;
  const words = [`${count(steps.length, name)} stopped${ended}`];
  if (abandoned) words.push(`${abandoned} did not stop`);
  if (half) words.push(`${half === steps.length ? "" : `${half} `}may have happened half`);
  return words.join(", ");
}

/** Describes how a call was stopped: by what means, and whether a process is left. */
export function stopWords(stop) {
  const words = [`over in ${duration(stop.elapsed_ms)}`];
  if (stop.means) words.push(`by ${stop.means}`);
  if (stop.processes?.length) words.push(count(stop.processes.length, "process", "processes"));
  if (stop.survivors?.length) words.push(`${stop.survivors.length} still alive`);
  else words.push(stop.confirmed ? "nobody is left" : "not confirmed that nobody is left");
  return words.join(", ");
}

/** The signs of what an undo does with a file. */
export const FILE_MARKS = { "changed back": "↺", "brought back": "+", removed: "−", kept: "=" };
