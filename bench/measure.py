"""What all benches share: interleaved rounds, percentiles, one table.

A bench compares named candidates, and reads ratios rather than times: machines differ and drift,
the ratio of two things measured side by side hardly does. So candidates run in rounds, each once a
round, in a new random order each round; whatever else the machine does meets all of them alike. A
pause between samples ("paced") shows costs that a tight loop hides, because caches and the kernel's
own laziness stay warm in it.

    samples = interleave({"plain": statement("x.a", {"x": x}), "ours": statement("t.b", {"t": t})},
    rounds=50) report = Report("kernel") report.compare("read a flag", samples, baseline="plain",
    ours="ours", bar=1.2) sys.exit(report.finish())

A figure above its bar reads "missed" in the table and nothing more. `Report.violation` is for wrong
behaviour, and makes `finish` return 1.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import sys
import time
import timeit
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio

RESULTS = Path(__file__).parent / "results"

Sample = Callable[[], float]
AsyncSample = Callable[[], Awaitable[float]]
Samples = dict[str, list[float]]


def statement(code: str, names: Mapping[str, object], *, number: int = 100_000) -> Sample:
    """A candidate that runs `code` in a tight loop; a sample is the seconds one pass takes."""
    timer = timeit.Timer(code, globals=dict(names))
    return lambda: timer.timeit(number) / number


def call(function: Callable[[], object], *, number: int = 1) -> Sample:
    """A candidate that calls `function`; a sample is the seconds one call takes."""
    return statement("function()", {"function": function}, number=number)


def interleave(
    candidates: Mapping[str, Sample],
    *,
    rounds: int,
    warm_up_rounds: int = 1,
    pause_s: float = 0.0,
    seed: int | None = None,
) -> Samples:
    """Take one sample of each candidate a round. Each returns its own seconds, so it may leave its
    set-up out."""
    samples: Samples = {name: [] for name in candidates}
    for name, counts in _order(list(candidates), rounds, warm_up_rounds, seed):
        if pause_s:
            time.sleep(pause_s)
        seconds = candidates[name]()
        if counts:
            samples[name].append(seconds)
    return samples


async def interleave_async(
    candidates: Mapping[str, AsyncSample],
    *,
    rounds: int,
    warm_up_rounds: int = 1,
    pause_s: float = 0.0,
    seed: int | None = None,
) -> Samples:
    """`interleave` for candidates that are coroutine functions, all on the loop that this runs
    on."""
    samples: Samples = {name: [] for name in candidates}
    for name, counts in _order(list(candidates), rounds, warm_up_rounds, seed):
        if pause_s:
            await anyio.sleep(pause_s)
        seconds = await candidates[name]()
        if counts:
            samples[name].append(seconds)
    return samples


def _order(
    names: list[str], rounds: int, warm_up_rounds: int, seed: int | None
) -> Iterator[tuple[str, bool]]:
    chance = random.Random(seed)
    for number in range(warm_up_rounds + rounds):
        chance.shuffle(names)
        for name in names:
            yield name, number >= warm_up_rounds


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    if not values:
        raise ValueError("no samples: a percentile of nothing is not a number")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `bar` is the most that the ratio, or without a baseline the value, may
    be."""

    measure: str
    ours: float
    baseline: float | None = None
    bar: float | None = None
    unit: str = "s"

    @property
    def ratio(self) -> float | None:
        if self.baseline is None:
            return None
        return self.ours / self.baseline if self.baseline else math.inf

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        figure = self.ours if self.ratio is None else self.ratio
        return "met" if figure <= self.bar else "missed"

    def cells(self) -> tuple[str, ...]:
        baseline = "" if self.baseline is None else show(self.baseline, self.unit)
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x"
        if self.bar is None:
            bar = ""
        else:
            bar = show(self.bar, self.unit) if self.ratio is None else f"{self.bar:g} x"
        return self.measure, baseline, show(self.ours, self.unit), ratio, bar, self.verdict


def show(value: float, unit: str = "s") -> str:
    """A number a person can read: seconds as ns, us, ms or s, anything else with its unit."""
    if unit != "s":
        return f"{value:,.4g} {unit}".strip()
    for factor, name in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 1000:
            return f"{value * factor:.3g} {name}"
    return f"{value:.3g} s"


@dataclass
class Report:
    """Collects the rows of one bench; `finish` prints them and keeps the raw samples in
    bench/results."""

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    raw: list[dict[str, object]] = field(default_factory=list)
    results: Path = RESULTS

    def compare(
        self,
        measure: str,
        samples: Samples,
        *,
        baseline: str,
        ours: str,
        bar: float | None = None,
        percents: Sequence[float] = (50,),
    ) -> None:
        """One row for each percentile, both sides from the same run. `bar` holds for each of
        them."""
        for percent in percents:
            self.rows.append(
                Row(
                    f"{measure}, p{percent:g}",
                    ours=percentile(samples[ours], percent),
                    baseline=percentile(samples[baseline], percent),
                    bar=bar,
                )
            )
        for name in (baseline, ours):
            self.raw.append({"measure": measure, "candidate": name, "samples_s": samples[name]})

    def figure(
        self, measure: str, value: float, *, unit: str = "s", bar: float | None = None
    ) -> None:
        """A row without a baseline: a count, a slope, an absolute bound."""
        self.rows.append(Row(measure, ours=value, bar=bar, unit=unit))
        self.raw.append({"measure": measure, "value": value, "unit": unit})

    def note(self, text: str) -> None:
        self.notes.append(text)

    def violation(self, text: str) -> None:
        """Something behaved wrongly: no figure makes up for it."""
        self.violations.append(text)

    def finish(self) -> int:
        """Print everything, write the raw samples, and return the exit code."""
        now = datetime.now(UTC)
        print(f"\n{self.name}: {now:%Y-%m-%d %H:%M} UTC, {describe_machine()}\n")
        print(table([row.cells() for row in self.rows]))
        for text in self.notes:
            print(f"\n{text}")
        for text in self.violations:
            print(f"\nVIOLATION: {text}")
        sys.stdout.flush()
        self._write_raw(now)
        return 1 if self.violations else 0

    def _write_raw(self, now: datetime) -> None:
        self.results.mkdir(exist_ok=True)
        head = {"bench": self.name, "at": now.isoformat(), "machine": describe_machine()}
        with (self.results / f"{self.name}-{now:%Y%m%dT%H%M%S}.jsonl").open("w") as file:
            for line in [head, *self.raw, *({"violation": text} for text in self.violations)]:
                file.write(json.dumps(line) + "\n")


def describe_machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()} {platform.machine()}"
    )


HEADINGS = ("measure", "baseline", "ours", "ratio", "bar", "verdict")


def table(rows: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> str:
    """A Markdown table whose columns also line up as plain text; the first column to the left,
    others right."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    shown = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in _rest(line, widths))]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [shown[0], rule, *shown[1:]])


def _rest(line: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, int]]:
    return zip(line[1:], widths[1:], strict=True)
