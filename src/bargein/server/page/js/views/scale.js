// Axes for the two timelines.

import { s } from "../dom.js";
import { duration } from "../format.js";

const STEPS = [1, 2, 5];

/** Returns about `wanted` round places between 0 and `length`, in milliseconds. */
export function ticks(length, wanted = 4) {
  const rough = length / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (STEPS.find((each) => each * power >= rough) ?? 10) * power;
  const found = [];
  for (let at = 0; at <= length * 1.0001; at += step) found.push(at);
  return found;
}

/** Draws grid lines with their times below. `x` maps milliseconds to pixels. */
export function axis(length, x, height) {
  return ticks(length).map((at) =>
    s(
      "g",
      {},
      s("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height }),
      s(
        "text",
        { x: x(at), y: height + 13, "text-anchor": at === 0 ? "start" : "middle" },
        duration(at),
      ),
    ),
  );
}

/** Shortens a name to so many characters. */
export function fitted(name, characters) {
  return name.length > characters ? `${name.slice(0, characters - 1)}…` : name;
}
