"""Decides which tests a run leaves out. `tests/conftest.py` applies it.

    ./dev test --quick     tests that start no other program and take little time: about a minute
    ./dev test             every suite; of the long ones a slice, which a seed picks
    ./dev test --seed N    the slice of an earlier run again
    ./dev test --all       everything

A run prints its seed and how many tests it left out. Tests that are named on the command line all
run: `./dev test tests/simulation` is the whole simulation.

The seed is also the one of Hypothesis, so that `--seed N` repeats its examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum

NOT_QUICK = (
    "tests/bench",
    "tests/cancel/test_fork.py",
    "tests/cancel/test_growth.py",
    "tests/cancel/test_interrupted.py",
    "tests/cancel/test_law_6_bounded.py",
    "tests/cancel/test_raise_in_thread.py",
    "tests/cancel/test_run_abandonable.py",
    "tests/cancel/test_run_thread.py",
    "tests/cancel/test_tree.py",
    "tests/channels/test_matrix.py",
    "tests/channels/test_platforms.py",
    "tests/channels/test_program.py",
    "tests/chaos",
    "tests/checkpoints",
    "tests/cli",
    "tests/client",
    "tests/cluster",
    "tests/house/test_dev.py",
    "tests/house/test_examples.py",
    "tests/house/test_shield.py",
    "tests/house/test_snippets.py",
    "tests/house/test_tiers.py",
    "tests/interrupt",
    "tests/mcp",
    "tests/models/local",
    "tests/models/test_choice.py",
    "tests/models/test_interrupt_phases.py",
    "tests/models/test_no_leaks.py",
    "tests/models/test_secrets.py",
    "tests/models/test_zoo.py",
    "tests/process",
    "tests/sandbox",
    "tests/server",
    "tests/session/test_crash_points.py",
    "tests/session/test_life.py",
    "tests/session/test_no_garbage.py",
    "tests/session/test_own_processes.py",
    "tests/session/test_recovery.py",
    "tests/simulation",
    "tests/stores/test_backup.py",
    "tests/stores/test_faults.py",
    "tests/stores/test_faults_together.py",
    "tests/stores/test_kill.py",
    "tests/stores/test_postgres_conformance.py",
    "tests/stores/test_postgres_engine.py",
    "tests/stores/test_postgres_faults.py",
    "tests/stores/test_postgres_fence.py",
    "tests/stores/test_postgres_kill.py",
    "tests/stores/test_postgres_mail.py",
    "tests/stores/test_postgres_replica.py",
    "tests/stores/test_conformance.py",
    "tests/testing/test_seeded.py",
    "tests/tools/test_approval.py",
    "tests/tools/test_isolation.py",
    "tests/tools/test_own_processes.py",
    "tests/tools/test_python.py",
    "tests/tools/test_search.py",
    "tests/tools/test_terminal.py",
    "tests/tools/test_web_fetch.py",
)
"""Files and folders that start programs, wait for real time, or try very many cases."""

SHARES = {
    "tests/cancel/test_interrupted.py::test_one_inside_the_other": 0.4,
    "tests/channels/test_platforms.py::test_on_a_real_homeserver": 0.2,
    "tests/checkpoints/test_random_trees.py": 0.1,
    "tests/checkpoints/test_staging.py::test_random_acts_leave_what_the_rules_say": 0.1,
    "tests/cli/test_every_screen.py": 0.04,
    "tests/cli/test_start.py::test_a_signal_at_any_step_is_heard_and_quiet": 0.4,
    "tests/interrupt/test_rows.py": 0.25,
    "tests/mcp/test_conformance.py::test_scenario": 0.2,
    "tests/mcp/test_hostile.py": 0.5,
    "tests/mcp/test_http.py": 0.5,
    "tests/mcp/test_stops.py": 0.5,
    "tests/mcp/test_survivors.py::test_200_starts_and_stops_leave_nobody": 0.25,
    "tests/models/test_interrupt_phases.py": 0.4,
    "tests/process/test_attacks.py": 0.5,
    "tests/process/test_deaths.py": 0.5,
    "tests/process/test_spawn_failures.py": 0.4,
    "tests/process/test_zoo.py": 0.3,
    "tests/simulation/test_broken_variants.py": 0.4,
    "tests/simulation/test_seeds.py::test_no_law_is_broken": 0.2,
    "tests/simulation/test_on_postgres.py": 0.05,
    "tests/simulation/test_with_files.py": 0.2,
    "tests/stores/test_faults.py": 0.5,
    "tests/stores/test_postgres_conformance.py::test_postgres_of_debian": 0.2,
    "tests/stores/test_faults_together.py": 0.5,
    "tests/tools/test_own_processes.py": 0.4,
}
"""The long suites, by the beginning of their tests' ids, and the share of each in a slice. Their
tests are samples of one search, so that any of them may be missing from a run."""


class Tier(Enum):
    QUICK = "quick"
    SLICE = "slice"
    ALL = "all"


def is_quick(test: str) -> bool:
    return not _is_in(test, NOT_QUICK)


def left_out_of_slice(tests: Sequence[str], seed: int) -> set[str]:
    """Picks the tests of the long suites that the slice of this seed leaves out."""
    left_out: set[str] = set()
    for suite, share in SHARES.items():
        found = sorted(
            (test for test in tests if _is_in(test, (suite,))), key=lambda test: _rank(test, seed)
        )
        left_out.update(found[max(1, round(len(found) * share)) :])
    return left_out


def _rank(test: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {test}".encode()).digest()


def _is_in(test: str, places: Sequence[str]) -> bool:
    return any(
        test == place or test.startswith((f"{place}/", f"{place}::", f"{place}["))
        for place in places
    )
