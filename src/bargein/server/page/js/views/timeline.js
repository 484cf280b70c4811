// Draws a turn as bars on one time line: the model, each call, each sub-agent. An interrupt is the
// line that cuts through them. Uses the state only.

import { fillWith, h, s, setText } from "../dom.js";
import { duration } from "../format.js";
import { receiptLine } from "../state/receipt.js";
import { latestTurn } from "../state/turns.js";
import { axis, fitted } from "./scale.js";

const LABEL = 84;
const ROW = 22;
const BAR = 10;
const ROWS_MAX = 14;

export function timelineView(store) {
  const aside = h("span", { class: "aside" });
  const chart = h("div", { class: "timeline" });
  const legend = h("p", { class: "legend" });
  const nothing = h("p", { class: "nothing" }, "Nothing has run yet.");
  const head = h("div", { class: "panel-head" }, h("h2", { class: "label" }, "Timeline"), aside);
  const node = h("section", { class: "panel" }, head, chart, legend, nothing);
  let turn = null;
  let titles = {};
  let width = 300;

  const draw = () => {
    if (turn === null) return;
    const now = Date.now() + store.get().clockOffset;
    const end = Math.max(turn.settledAt ?? now, ...turn.bars.map((bar) => bar.to ?? 0));
    setText(aside, `${turn.id} · ${duration(Math.max(0, end - turn.startedAt))}`);
    fillWith(chart, picture(turn, end, width, titles));
  };
  new ResizeObserver(([entry]) => {
    width = Math.max(220, entry.contentRect.width);
    draw();
  }).observe(chart);
  setInterval(() => turn !== null && isOpen(turn) && chart.offsetParent !== null && draw(), 250);

  const update = (session) => {
    const latest = session === null ? null : latestTurn(session);
    nothing.hidden = latest !== null;
    chart.hidden = aside.hidden = latest === null;
    legend.hidden = !latest?.receipt;
    if (latest?.receipt) setText(legend, receiptLine(latest.receipt));
    if (latest === turn) return;
    turn = latest;
    titles = session?.calls ?? {};
    draw();
  };
  return { node, update };
}

function isOpen({ settledAt, bars }) {
  return settledAt === null || bars.some((bar) => bar.to === null);
}

function picture(turn, end, width, titles) {
  const rows = rowsOf(turn.bars, titles);
  const length = Math.max(end - turn.startedAt, 50);
  const x = (ms) => LABEL + (Math.min(Math.max(ms, 0), length) / length) * (width - LABEL - 12);
  const height = Math.max(rows.length, 1) * ROW + 2;
  return s(
    "svg",
    {
      viewBox: `0 -14 ${width} ${height + 32}`,
      height: height + 32,
      role: "img",
      "aria-label": wordsOf(turn, end),
    },
    hatch(),
    axis(length, x, height),
    rows.map((row, place) => rowNode(row, place, turn, end, x)),
    turn.interrupts?.map((each) => interruptNode(x(each.at - turn.startedAt), each, height)),
  );
}

// Requests to the model share a row; every call and sub-agent has its own.
function rowsOf(bars, titles) {
  const model = bars.filter((bar) => bar.kind === "model");
  const others = bars.filter((bar) => bar.kind !== "model");
  const rows = others
    .slice(-(ROWS_MAX - 1))
    .map((bar) => ({ name: titles[bar.id]?.title || bar.name, bars: [bar] }));
  return [{ name: "model", bars: model }, ...rows];
}

function rowNode(row, place, turn, end, x) {
  const y = place * ROW + 4;
  const label = s("text", { class: "name", x: 0, y: y + BAR }, fitted(row.name, 13));
  return s(
    "g",
    {},
    label,
    row.bars.map((bar) => barNode(bar, y, turn, end, x)),
  );
}

function barNode(bar, y, turn, end, x) {
  const from = x(bar.from - turn.startedAt);
  const to = x((bar.to ?? end) - turn.startedAt);
  const rect = { y, height: BAR, rx: 3 };
  const running = bar.to === null && !bar.detached ? " bar-running" : "";
  const left = bar.detached ? x(bar.detachedAt - turn.startedAt) : to;
  const words = `${bar.name}: ${bar.status}, ${duration(Math.max(0, (bar.to ?? end) - bar.from))}`;
  const cut = bar.status === "stopped" || bar.status === "abandoned" || bar.status === "failed";
  return s(
    "g",
    { "data-bar": bar.id },
    s("title", {}, words),
    s("rect", {
      class: `bar-${bar.kind}${running}`,
      x: from,
      width: Math.max(left - from, 2),
      ...rect,
    }),
    bar.detached
      ? s("rect", { class: "bar-background", x: left, width: Math.max(to - left, 2), ...rect })
      : null,
    cut ? s("circle", { class: `end-${bar.status}`, cx: to, cy: y + BAR / 2, r: 4 }) : null,
  );
}

function interruptNode(at, { reason, by }, height) {
  return s(
    "g",
    { class: "interrupt" },
    s("title", {}, `${reason}${by ? ` by ${by}` : ""}`),
    s("line", { class: "interrupt-line", x1: at, x2: at, y1: -2, y2: height }),
    s(
      "text",
      { class: "interrupt-word", x: at, y: -5, "text-anchor": "middle" },
      WORDS[reason] ?? "stop",
    ),
  );
}

const WORDS = {
  user_stop: "stop",
  interrupt: "redirect",
  rollback: "roll back",
  shutdown: "shutdown",
};

function hatch() {
  return s(
    "defs",
    {},
    s(
      "pattern",
      {
        id: "hatch",
        width: 5,
        height: 5,
        patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)",
      },
      s("line", {
        x1: 0,
        x2: 0,
        y1: 0,
        y2: 5,
        stroke: "currentColor",
        "stroke-width": 1.6,
        opacity: 0.5,
      }),
    ),
  );
}

function wordsOf(turn, end) {
  const bars = turn.bars.map(
    (bar) => `${bar.name} ${duration(Math.max(0, (bar.to ?? end) - bar.from))} ${bar.status}`,
  );
  const stops = (turn.interrupts ?? []).map(
    (each) => `interrupted after ${duration(each.at - turn.startedAt)}`,
  );
  return [`Timeline of ${turn.id}`, ...bars, ...stops].join("; ");
}
