"""The pages lead somewhere: every link has an end, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def links(page: Path) -> list[str]:
    """Links to other files, without code blocks, where brackets mean something else."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    return [link.partition("#")[0] for link in found if "://" not in link and link[0] != "#"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    missing = [link for link in links(page) if not (page.parent / link).exists()]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            todo.extend(page.parent / link for link in links(page))
    assert [page for page in PAGES if page.resolve() not in reached] == []


def test_decisions_have_a_number_each_and_carry_it_in_their_heading() -> None:
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in records]
    assert len(set(numbers)) == len(numbers)
    headings = [int(page.read_text().split(".")[0].lstrip("# ")) for page in records]
    assert headings == numbers
