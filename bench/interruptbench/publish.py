"""Puts the results of a run where people read them: between two marks of a page, and a picture."""

from __future__ import annotations

from pathlib import Path

from bench.interruptbench.plot import draw
from bench.interruptbench.report import Report
from bench.interruptbench.results import Results

ROOT = Path(__file__).parents[2]
RAW = ROOT / "bench" / "results" / "interrupt.jsonl"
PAGE = ROOT / "docs" / "interruptbench.md"
PICTURE = ROOT / "docs" / "images" / "interruptbench.svg"
FRONT = ROOT / "README.md"
BEGIN = "<!-- interruptbench: what follows is written by `./dev bench interrupt --publish` -->"
END = "<!-- interruptbench: end -->"


def publish(results: Results, root: Path = ROOT) -> None:
    """The raw samples, the tables, the picture; and the short table, if the README has marks."""

    def here(path: Path) -> Path:
        return root / path.relative_to(ROOT)

    for path in (RAW, PICTURE):
        here(path).parent.mkdir(parents=True, exist_ok=True)
    results.write(here(RAW))
    here(PICTURE).write_text(draw(results))
    replace_between(here(PAGE), Report(results).whole())
    if BEGIN in here(FRONT).read_text():
        replace_between(here(FRONT), Report(results).short())


def replace_between(page: Path, text: str) -> None:
    before, found, rest = page.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{page} has no place for results: the marks are missing")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
