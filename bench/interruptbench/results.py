"""What a run has measured: the raw samples by scenario and system, and figures drawn from them.

A file of results has a line of JSON that says when, where and with which versions it was measured,
and then one line for each scenario and system: every value that was measured, in the order of the
runs, and every violation with the number of its run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.interruptbench.stage import Sample
from bench.measure import percentile

FACTS = ("offset_s", "refused", "one_after_another")
"""Measures that say how a run was, not how well it went."""


@dataclass
class Group:
    """All runs of one system in one scenario."""

    scenario: str
    system: str
    runs: int
    values: dict[str, list[float | None]] = field(default_factory=dict)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def measured(self, name: str) -> list[float]:
        return [value for value in self.values.get(name, ()) if value is not None]

    @property
    def counts(self) -> Counter[str]:
        """In how many runs each kind of violation was seen."""
        return Counter(kind for _, kind in set(self.violations))

    @property
    def bad_runs(self) -> int:
        return len({run for run, _ in self.violations})


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of a list of values."""

    count: int
    p50: float
    p95: float
    most: float


def figures(values: Sequence[float]) -> Figures | None:
    if not values:
        return None
    return Figures(len(values), percentile(values, 50), percentile(values, 95), max(values))


@dataclass
class Results:
    head: dict[str, Any]
    groups: list[Group]

    def group(self, scenario: str, system: str) -> Group | None:
        for group in self.groups:
            if (group.scenario, group.system) == (scenario, system):
                return group
        return None

    @property
    def systems(self) -> list[str]:
        """In the order of the table: those that ran, then those that could not."""
        return [
            *self.head["systems"],
            *(n for n in self.head["refusals"] if n not in self.head["systems"]),
        ]

    def write(self, path: Path) -> None:
        lines = [self.head, *(_line(group) for group in self.groups)]
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def read(path: Path) -> Results:
    head, *lines = map(json.loads, path.read_text().splitlines())
    groups = [
        Group(
            line["scenario"],
            line["system"],
            line["runs"],
            line["values"],
            [(run, kind) for run, kind in line["violations"]],
        )
        for line in lines
    ]
    return Results(head, groups)


def joined(parts: Sequence[Results]) -> Results:
    """Runs of different scenarios as one, if they were of the same systems on the same machine."""
    first, last = parts[0].head, parts[-1].head
    groups: dict[tuple[str, str], Group] = {}
    for part in parts:
        for system, facts in part.head["systems"].items():
            if facts.get("versions") != first["systems"].get(system, {}).get("versions"):
                raise ValueError(f"{system} is not of the same version in all runs")
        if part.head["machine"] != first["machine"]:
            raise ValueError("the runs are of different machines")
        groups |= {(group.scenario, group.system): group for group in part.groups}
    scenarios = {scenario for scenario, _ in groups}
    head = {
        **first,
        "at": last["at"],
        "load_at_end": last["load_at_end"],
        "spent_s": sum(part.head["spent_s"] for part in parts),
        "skipped": [each for each in first.get("skipped", ()) if each not in scenarios],
    }
    return Results(head, list(groups.values()))


def grouped(samples: Sequence[Sample]) -> list[Group]:
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.scenario, sample.system), []).append(sample)
    return [_group(scenario, system, mine) for (scenario, system), mine in groups.items()]


def _group(scenario: str, system: str, samples: Sequence[Sample]) -> Group:
    names = list(dict.fromkeys(name for sample in samples for name in sample.measures))
    values = {name: [sample.measures.get(name) for sample in samples] for name in names}
    violations = [(run, kind) for run, each in enumerate(samples) for kind in each.violations]
    return Group(scenario, system, len(samples), values, violations)


def _line(group: Group) -> dict[str, object]:
    values = {name: [_short(value) for value in mine] for name, mine in group.values.items()}
    return {
        "scenario": group.scenario,
        "system": group.system,
        "runs": group.runs,
        "values": values,
        "violations": group.violations,
    }


def _short(value: float | None) -> float | None:
    """Four digits are more than the machine's noise leaves."""
    return None if value is None else float(f"{value:.4g}")
