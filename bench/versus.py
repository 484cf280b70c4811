"""Two versions side by side: runs the benches of an older commit and of this tree in turns.

    ./dev bench versus COMMIT NAME... [--rounds N]

Each round runs every named bench once in each version, in a random order, so that whatever else the
machine does meets both alike. A row is compared by its ratio to the baseline that its own run
measured, or by its value if it has none. The table shows the median of the rounds for each version
and the ratio of the two; "spread" is the largest median-to-round difference of the older version,
which is how much the same code differs from itself on this machine. A row above 1.05 is missed.

The older version is unpacked into a temporary folder and runs with this tree's interpreter and
packages. Rows that only one version has are listed below the table. Ctrl-C ends it with a table of
what was measured so far.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench.measure import describe_machine, table

ROOT = Path(__file__).parents[1]
BAR = 1.05
BENCH_S_MAX = 1200.0
HEADINGS = ("measure", "old", "new", "new / old", "spread", "verdict")

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(-?[\d,.]+(?:e[+-]?\d+)?) ?(\S*)")

Figures = dict[str, float]


def unpack(commit: str, folder: Path) -> None:
    command = ["git", "archive", commit]
    archive = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")


def run_bench(tree: Path, name: str) -> Figures:
    """Runs one bench of one version and reads the table that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=BENCH_S_MAX,
        check=False,
    )
    figures = dict(read_table(done.stdout))
    if done.returncode or not figures:
        raise SystemExit(f"bench {name} in {tree} exited with {done.returncode}:\n{done.stdout}")
    return figures


def read_table(text: str) -> Iterator[tuple[str, float]]:
    """Yields each row's name with its ratio, or with its value if it has no baseline."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 4 or not line.startswith("| ") or cells[0] == "measure":
            continue
        figure = number(cells[3]) if cells[3] else number(cells[2])
        if figure is not None:
            yield cells[0], figure


def number(cell: str) -> float | None:
    found = _NUMBER.fullmatch(cell)
    if found is None:
        return None
    return float(found[1].replace(",", "")) * UNITS.get(found[2], 1.0)


def compare(old: dict[str, list[float]], new: dict[str, list[float]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for measure, figures in old.items():
        before = statistics.median(figures)
        if measure not in new or not before:
            continue
        after = statistics.median(new[measure])
        spread = max(abs(each / before - 1) for each in figures)
        ratio = after / before
        verdict = "met" if ratio <= BAR else "missed"
        shown = (f"{before:.4g}", f"{after:.4g}", f"{ratio:.3f}", f"{spread:.1%}", verdict)
        rows.append((measure, *shown))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench versus", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    old: defaultdict[str, list[float]] = defaultdict(list)
    new: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        unpack(chosen.commit, Path(folder))
        runs = [(Path(folder), old), (ROOT, new)]
        try:
            for at in range(chosen.rounds):
                for name in chosen.names:
                    random.shuffle(runs)
                    for tree, figures in runs:
                        side = "new" if tree is ROOT else "old"
                        print(f"round {at + 1}, {name}, {side}", file=sys.stderr, flush=True)
                        for measure, figure in run_bench(tree, name).items():
                            figures[f"{name}: {measure}"].append(figure)
        except KeyboardInterrupt:
            print("Stopped: the table shows what was measured so far.", file=sys.stderr)
    print(f"\n{chosen.commit} against this tree, {chosen.rounds} rounds: {describe_machine()}\n")
    print(table(compare(old, new), HEADINGS))
    for side, ours, others in (("old", old, new), ("new", new, old)):
        alone = [measure for measure in ours if measure not in others]
        if alone:
            print(f"\nOnly in the {side} version: {'; '.join(alone)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
