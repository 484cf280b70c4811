"""`./dev bench interrupt`: choose systems and scenarios, run them, write table, samples and
plots."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bench.interruptbench.environments import SystemSpec, load_systems
from bench.interruptbench.plot import draw
from bench.interruptbench.publish import publish
from bench.interruptbench.report import Report
from bench.interruptbench.results import Results, joined, read
from bench.interruptbench.runner import Runner
from bench.interruptbench.scenarios import SCENARIOS
from bench.measure import RESULTS


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench interrupt", description=__doc__)
    parser.add_argument("--systems", help="names with commas (default: all)")
    parser.add_argument("--scenarios", help="ids or numbers with commas, such as 1a,2,9")
    parser.add_argument("--runs", type=int, help="samples of each, instead of the default")
    parser.add_argument("--out", type=Path, help="where the files go (default: bench/results)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float, help="begin no scenario after so long")
    parser.add_argument(
        "--publish",
        nargs="*",
        metavar="FILE",
        help="put the results, or those of FILES without a run, into the project's pages",
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs of all processes")
    chosen = parser.parse_args(arguments)
    chosen.systems = _choose(parser, chosen.systems, load_systems())
    names = chosen.scenarios.split(",") if chosen.scenarios else list(SCENARIOS)
    ids = [each.id for each in SCENARIOS.values() if {each.id, each.number} & set(names)]
    unknown = [name for name in names if name not in {s.number for s in SCENARIOS.values()}]
    if set(unknown) - SCENARIOS.keys():
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    chosen.scenarios = [SCENARIOS[each] for each in ids]
    return chosen


def _choose(
    parser: argparse.ArgumentParser, names: str | None, known: Mapping[str, SystemSpec]
) -> list[SystemSpec]:
    chosen = names.split(",") if names else list(known)
    for name in chosen:
        if name not in known:
            parser.error(f"no system {name!r}; there are {', '.join(known)}")
    return [known[name] for name in chosen]


def main(arguments: list[str] | None = None) -> int:
    chosen = read_arguments(arguments)
    if chosen.publish:
        publish(joined([read(Path(each)) for each in chosen.publish]))
        return 0
    results = run(chosen)
    out: Path = chosen.out or RESULTS
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"interrupt-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    results.write(stem.with_suffix(".jsonl"))
    stem.with_suffix(".svg").write_text(draw(results))
    table = Report(results).whole()
    stem.with_suffix(".md").write_text(table + "\n")
    print(f"{table}\n\n{stem}.md, .jsonl and .svg are written.")
    if chosen.publish is not None:
        publish(results)
    # How others do is a figure; what Bargein does wrong is a failure.
    return 1 if any(each.violations for each in results.groups if each.system == "bargein") else 0


def run(chosen: argparse.Namespace) -> Results:
    folder = Path(tempfile.mkdtemp(prefix="interruptbench-"))
    runner = Runner(
        chosen.systems,
        chosen.scenarios,
        folder=folder,
        runs=chosen.runs,
        seed=chosen.seed,
        minutes=chosen.minutes,
    )
    try:
        asyncio.run(runner.run())
    finally:
        if chosen.keep:
            print(f"The logs are in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return runner.results()
