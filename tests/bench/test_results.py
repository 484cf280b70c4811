"""What InterruptBench makes of its samples: figures, tables, a picture, pages."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench.interruptbench.command import read_arguments
from bench.interruptbench.connection import Request
from bench.interruptbench.environments import (
    PINS,
    CannotInstall,
    SystemSpec,
    interpreter,
    load_systems,
)
from bench.interruptbench.plays_many import overlap_s
from bench.interruptbench.plot import draw, place
from bench.interruptbench.publish import BEGIN, END, replace_between
from bench.interruptbench.report import Report
from bench.interruptbench.results import Figures, Results, figures, grouped, joined, read
from bench.interruptbench.scenarios import SCENARIOS
from bench.interruptbench.stage import Sample


def sample(number: int, returned_s: float, *violations: str, system: str = "bargein") -> Sample:
    return Sample(
        "7" if system == "bare-httpx" else "1a",
        system,
        str(number),
        {"returned_s": returned_s},
        list(violations),
    )


@pytest.fixture
def results() -> Results:
    samples = [sample(0, 0.001), sample(1, 0.002, "hung", "hung", "late"), sample(2, 0.25)]
    head = {
        "at": "2030-01-02T03:04:05+00:00",
        "spent_s": 61,
        "machine": "a machine",
        "load_at_start": 0.1,
        "load_at_end": 0.2,
        "systems": {
            "bargein": {"versions": {"bargein": "1"}, "python": "3.11", "lacks": {}},
            "bare-httpx": {"versions": {}, "lacks": {"restart": "it keeps none"}},
        },
        "refusals": {"hermes": "no wheel"},
    }
    return Results(head, grouped(samples))


def test_figures_are_of_the_samples() -> None:
    assert figures([0.3, 0.1, 0.2]) == Figures(3, 0.2, 0.3, 0.3)
    assert figures([]) is None


def test_a_run_is_bad_once_and_each_kind_counts_once_a_run(results: Results) -> None:
    (group,) = results.groups
    assert (group.runs, group.bad_runs) == (3, 1)
    assert group.counts == {"hung": 1, "late": 1}


def test_results_come_back_from_their_file_as_they_were(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "file")
    again = read(tmp_path / "file")
    assert (again.head, again.groups) == (results.head, results.groups)


def test_runs_of_different_scenarios_are_joined_if_they_are_alike(results: Results) -> None:
    other = Results(
        {**results.head, "spent_s": 9, "load_at_end": 3.0}, grouped([Sample("2a", "bargein", "0")])
    )
    whole = joined([results, other])
    assert [group.scenario for group in whole.groups] == ["1a", "2a"]
    assert (whole.head["spent_s"], whole.head["load_at_end"]) == (70, 3.0)
    other.head["machine"] = "another"
    with pytest.raises(ValueError, match="different machines"):
        joined([results, other])


def test_the_table_has_figures_counts_and_reasons(results: Results) -> None:
    text = Report(results).whole()
    assert "| 1a stop in a stream, a part every 50 ms: caller back | 2 / 250 / 250 |" in text
    assert "| 1a stop in a stream, a part every 50 ms: hung | 1 of 3 |" in text
    assert "no such feature [" in text
    assert "bare loop, httpx: it keeps none." in text
    short = Report(results).short()
    assert "| no such feature |" in short
    assert "[" not in short
    assert "not run [" in text
    assert "Hermes Agent: no wheel" in text
    assert "2030-01-02 03:04 UTC" in text


def test_the_picture_is_well_formed_and_its_scale_is_even(results: Results) -> None:
    tree = ElementTree.fromstring(draw(results))
    assert len(tree.findall(".//{*}circle")) == 1
    assert "1 of 3 bad" in "".join(tree.itertext())
    decade = place(0.01) - place(0.001)
    assert place(0.1) - place(0.01) == pytest.approx(decade)


def test_results_are_put_between_the_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_between(page, "new")
    replace_between(page, "newer")
    assert page.read_text() == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks are missing"):
        replace_between(page, "new")


def test_every_system_has_pins_that_name_no_place() -> None:
    for name, spec in load_systems().items():
        if spec.python != "project":
            for line in (PINS / f"{name}.txt").read_text().splitlines():
                assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), (name, line)


def test_a_system_that_cannot_be_installed_says_why() -> None:
    spec = SystemSpec("bare-httpx", "x", "x", "3.99", "")
    with pytest.raises(CannotInstall, match=r"needs Python 3\.99"):
        interpreter(spec)


def test_scenarios_are_chosen_by_number_or_by_name() -> None:
    chosen = read_arguments(["--scenarios", "1,2b", "--systems", "bargein"])
    assert [each.id for each in chosen.scenarios] == ["1a", "1b", "1c", "1d", "2b"]
    assert [each.name for each in chosen.systems] == ["bargein"]
    assert len(read_arguments([]).scenarios) == len(SCENARIOS)
    with pytest.raises(SystemExit):
        read_arguments(["--scenarios", "77"])
    with pytest.raises(SystemExit):
        read_arguments(["--systems", "nobody"])


def test_two_requests_overlap_for_as_long_as_both_are_under_way() -> None:
    def request(at: float, over_at: float) -> Request:
        return Request(1, "a", 0, at, [], [], finished_at=over_at)

    assert overlap_s([request(1, 2), request(2, 3)]) == 0
    assert overlap_s([request(5, 9), request(1, 6), request(8, 12)]) == 1
    assert overlap_s([]) == 0
