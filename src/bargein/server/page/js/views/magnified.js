// The stop itself, magnified: from the moment it landed until each thing was over.

import { h, s } from "../dom.js";
import { duration } from "../format.js";
import { stepName, stepWords } from "../state/receipt.js";
import { axis, fitted } from "./scale.js";

const ROW = 24;
// Drawn as wide as the conversation: scaled down to a phone, it would be unreadable.
const WIDE = { width: 640, label: 150, characters: 23 };
const NARROW = { width: 300, label: 84, characters: 13 };

/** Draws a receipt. Returns null if there is nothing to draw. */
export function magnified(receipt, session) {
  const steps = receipt.steps ?? [];
  if (!steps.length) return null;
  const length = Math.max(receipt.elapsed_ms, ...steps.map((step) => step.elapsed_ms), 0.1);
  const { width, label, characters } = window.innerWidth > 760 ? WIDE : NARROW;
  const x = (ms) => label + (ms / length) * (width - label - 70);
  const height = steps.length * ROW + 4;
  const words = steps.map((step) => `${stepWords(step)} after ${duration(step.elapsed_ms)}`);
  const picture = s(
    "svg",
    {
      viewBox: `0 -14 ${width} ${height + 34}`,
      role: "img",
      "aria-label": `After the stop: ${words.join("; ")}`,
    },
    axis(length, x, height),
    steps.map((step, row) => stepBar(step, row, x, fitted(stepName(step, session), characters))),
    s("line", { class: "interrupt-line", x1: x(0), x2: x(0), y1: -4, y2: height }),
    s("text", { class: "interrupt-word", x: x(0), y: -6, "text-anchor": "middle" }, "stop"),
  );
  return h("div", { class: "magnified" }, picture);
}

function stepBar(step, row, x, name) {
  const y = row * ROW + 6;
  const end = x(step.elapsed_ms);
  return s(
    "g",
    {},
    s("title", {}, `${stepWords(step)}: ${duration(step.elapsed_ms)}`),
    s("text", { class: "name", x: 0, y: y + 10 }, name),
    s("rect", {
      class: `bar-${step.kind}`,
      x: x(0),
      y,
      width: Math.max(end - x(0), 2),
      height: 11,
      rx: 3,
    }),
    s("circle", { class: `end-${step.status}`, cx: end, cy: y + 5.5, r: 4 }),
    s("text", { x: end + 9, y: y + 10 }, duration(step.elapsed_ms)),
  );
}
