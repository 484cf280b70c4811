"""The tables, in Markdown, made from the results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bench.interruptbench.environments import load_systems
from bench.interruptbench.results import Group, Results, figures
from bench.interruptbench.scenarios import SCENARIOS
from bench.interruptbench.stage import RETURN_BOUND_S

TIMES = {"returned_s": "caller back", "disconnect_s": "server sees it", "answered_s": "answered"}
COSTS = (
    ("import_s", "import", 1e3, "ms"),
    ("ready_s", "process started, system ready", 1e3, "ms"),
    ("memory_bytes", "memory at rest, after a first turn", 1 / 2**20, "MiB"),
    ("memory_session_bytes", "memory, each session in flight", 1 / 2**10, "KiB"),
    ("check_s", "one look whether it was stopped", 1e9, "ns"),
    ("cpu_part_s", "processor time, each streamed part", 1e6, "us"),
)
TIMES_HEAD = (
    "p50 / p95 / most, in milliseconds. "
    f"A run that was not over after {RETURN_BOUND_S:g} s counts as that."
)
NOT_RUN = "-"
Cell = Callable[[Group], str]


class Footnotes:
    """Reasons, each told once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        return [f"{number}. {text}" for number, text in enumerate(self.texts, 1)]


class Report:
    def __init__(self, results: Results) -> None:
        self._results = results
        self._notes = Footnotes()
        self._titles = {name: spec.title for name, spec in load_systems().items()}

    def whole(self) -> str:
        parts = [
            self._where(),
            f"### Times\n\n{TIMES_HEAD}",
            self._times(),
            "### Violations\n\nRuns in which it was seen, of how many.",
            self._violations(),
            "### Costs\n\np50 (runs).",
            self._costs(),
            "### Notes",
            "\n".join(self._notes.lines()),
        ]
        return "\n\n".join(part for part in parts if part)

    def short(self) -> str:
        """What fits on the project's first page; the reasons stand on the other one."""
        table = self._table([self._row(*line) for line in HEADLINES])
        return re.sub(r" \[\d+\]", "", table)

    # Parts

    def _where(self) -> str:
        head = self._results.head
        versions = [
            f"{self._titles.get(name, name)}: "
            + ", ".join(f"{package} {v}" for package, v in facts.get("versions", {}).items())
            + f" on Python {facts.get('python', '?')}"
            for name, facts in head["systems"].items()
        ]
        return (
            f"Measured {head['at'][:16].replace('T', ' ')} UTC in {head['spent_s'] / 60:.0f} "
            f"minutes; {head['machine']}; load {head['load_at_start']} at the start, "
            f"{head['load_at_end']} at the end. {'; '.join(versions)}."
        )

    def _times(self) -> str:
        rows = []
        for scenario in SCENARIOS.values():
            for measure, words in TIMES.items():
                if any(
                    g.scenario == scenario.id and g.measured(measure) for g in self._results.groups
                ):
                    label = f"{scenario.id} {scenario.title}: {words}"
                    rows.append(self._row(label, scenario.id, times_cell(measure)))
        for measure, words in (("loop_pause_s", "the loop's longest pause"),):
            for identity in ("3a", "3b"):
                label = f"{identity} {SCENARIOS[identity].title}: {words}"
                rows.append(self._row(label, identity, times_cell(measure)))
        rows.append(self._row("9 restarted and ready", "9", times_cell("ready_s")))
        return self._table(rows)

    def _violations(self) -> str:
        rows = []
        for scenario in SCENARIOS.values():
            mine = [group for group in self._results.groups if group.scenario == scenario.id]
            kinds = sorted({kind for group in mine for kind in group.counts})
            for kind in kinds or ["any"]:
                label = f"{scenario.id} {scenario.title}: {kind}"
                if mine:
                    rows.append(self._row(label, scenario.id, count_cell(kind)))
        return self._table(rows)

    def _costs(self) -> str:
        return self._table(
            [
                self._row(f"{words}, {unit}", "10", cost_cell(name, factor))
                for name, words, factor, unit in COSTS
            ]
        )

    # Cells

    def _row(self, label: str, scenario: str, cell: Cell) -> list[str]:
        return [label, *(self._cell(scenario, system, cell) for system in self._results.systems)]

    def _cell(self, scenario: str, system: str, cell: Cell) -> str:
        refusal = self._results.head["refusals"].get(system)
        if refusal:
            return "not run " + self._notes.mark(f"{self._titles.get(system, system)}: {refusal}")
        facts = self._results.head["systems"][system]
        for feature in SCENARIOS[scenario].needs:
            if feature in facts.get("lacks", {}):
                reason = f"{self._titles.get(system, system)}: {facts['lacks'][feature]}."
                return "no such feature " + self._notes.mark(reason)
        group = self._results.group(scenario, system)
        text = cell(group) if group is not None else NOT_RUN
        for feature in SCENARIOS[scenario].needs:
            if feature in facts.get("notes", {}):
                note = f"{self._titles.get(system, system)}: {facts['notes'][feature]}."
                return f"{text} {self._notes.mark(note)}"
        return text

    def _table(self, rows: Sequence[Sequence[str]]) -> str:
        titles = [self._titles.get(system, system) for system in self._results.systems]
        rule = ["---", *("---:" for _ in titles)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [["", *titles], rule, *rows])


def times_cell(measure: str) -> Cell:
    def cell(group: Group) -> str:
        found = figures(group.measured(measure))
        if found is None:
            return NOT_RUN
        return " / ".join(digits(value * 1e3) for value in (found.p50, found.p95, found.most))

    return cell


def median_cell(measure: str) -> Cell:
    def cell(group: Group) -> str:
        found = figures(group.measured(measure))
        return NOT_RUN if found is None else f"{digits(found.p50 * 1e3)} ms"

    return cell


def count_cell(*kinds: str) -> Cell:
    def cell(group: Group) -> str:
        seen = {run for run, kind in group.violations if kind in kinds or kinds == ("any",)}
        return f"{len(seen)} of {group.runs}"

    return cell


def cost_cell(measure: str, factor: float) -> Cell:
    def cell(group: Group) -> str:
        found = figures(group.measured(measure))
        return NOT_RUN if found is None else f"{digits(found.p50 * factor)} ({found.count})"

    return cell


def digits(value: float) -> str:
    """Two digits below a hundred, whole numbers above."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


LOST = ("message lost", "next turn aborted", "answered twice", "driver failed")
HEADLINES: tuple[tuple[str, str, Cell], ...] = (
    ("stop in a stream: caller back, p50", "1a", median_cell("returned_s")),
    ("stop while silent: provider sees it, p50", "1c", median_cell("disconnect_s")),
    (
        "stop a command that forked away: something lives on",
        "2b",
        count_cell("processes alive after the stop", "driver failed"),
    ),
    ("stop two blocking tools: caller back, p50", "3b", median_cell("returned_s")),
    (
        "stop a parent: its sub-agent goes on",
        "4",
        count_cell("server saw no disconnect", "driver failed"),
    ),
    ("redirect at the turn's end: lost, twice or aborted", "5", count_cell(*LOST)),
    (
        "late stop of another session: disturbed",
        "6b",
        count_cell("another session disturbed", "driver failed"),
    ),
    ("two messages at once: two runs at a time", "7", count_cell("two runs at a time")),
    (
        "next message after a stop between two calls: refused",
        "8",
        count_cell("transcript refused", "next message not answered", "driver failed"),
    ),
    ("kill -9 and restart: anything wrong", "9", count_cell("any")),
)
