"""A run of the tests leaves out what its tier and its seed say, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("place", [*tiers.NOT_QUICK, *tiers.SHARES])
def test_every_place_that_is_named_is_there(place: str) -> None:
    path, _, function = place.partition("::")
    assert (ROOT / path).exists()
    if function:
        assert f"def {function}(" in (ROOT / path).read_text()


def test_a_seed_picks_the_same_slice_again_and_another_seed_another() -> None:
    (suite, share), *_ = tiers.SHARES.items()
    tests = [f"{suite}[{number}]" for number in range(100)]
    slices = [kept(tests, seed) for seed in (1, 1, 2)]
    assert slices[0] == slices[1] != slices[2]
    assert len(slices[0]) == round(100 * share)
    everything = set().union(*(kept(tests, seed) for seed in range(40)))
    assert everything == set(tests)


def kept(tests: list[str], seed: int) -> set[str]:
    return set(tests) - tiers.left_out_of_slice(tests, seed)


def test_a_small_suite_keeps_a_test_and_other_tests_stay() -> None:
    (suite, *_) = tiers.SHARES
    others = ["tests/house/test_tiers.py::test_it", f"{suite}_too::test_it"]
    assert kept([f"{suite}[1]", *others], seed=3) == {f"{suite}[1]", *others}


def collected(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return done.stdout


def test_a_quick_run_does_not_look_at_what_it_leaves_out() -> None:
    told = collected("--quick", "tests/bench", "tests/contracts")
    assert "tests/contracts/" in told
    assert "tests/bench/" not in told.partition("left out of a quick run")[0]
    assert "./dev test runs them too" in told


def test_tests_that_are_named_run_whole() -> None:
    told = collected("tests/simulation/test_seeds.py")
    assert told.count("test_no_law_is_broken") == 100
    assert "left out" not in told


def test_quick_and_all_exclude_each_other() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--quick", "--all"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "exclude each other" in done.stderr
