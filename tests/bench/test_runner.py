"""InterruptBench from end to end with Bargein, once each; and with a driver that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.interruptbench import runner as runner_module
from bench.interruptbench import stage
from bench.interruptbench.environments import SystemSpec, load_systems
from bench.interruptbench.processes import marked
from bench.interruptbench.runner import Runner
from bench.interruptbench.scenarios import SCENARIOS


def run(spec: SystemSpec, ids: list[str], folder: Path, *, runs: int = 1) -> Runner:
    runner = Runner([spec], [SCENARIOS[each] for each in ids], folder=folder, runs=runs, seed=1)
    asyncio.run(runner.run())
    return runner


@pytest.mark.timeout(240)
def test_bargein_is_driven_through_stops_redirects_and_a_crash(tmp_path: Path) -> None:
    ids = ["1a", "1c", "4", "5", "7", "8", "9"]
    # A stream of three seconds may be over, or a second gone by, on a machine that stands still:
    # that is seen once. What is wrong with us is seen each time.
    runners = (run(load_systems()["bargein"], ids, _folder(tmp_path)) for _ in range(3))
    runner = next((each for each in runners if not _violations(each)), None)
    assert runner is not None
    assert runner.refusals == {}
    assert [(each.scenario, each.violations) for each in runner.samples] == [(i, []) for i in ids]
    measured = {each.scenario: each.measures for each in runner.samples}
    for scenario in ("1a", "1c"):
        assert 0 < (measured[scenario]["returned_s"] or 0) < stage.RETURN_BOUND_S
        assert 0 < (measured[scenario]["disconnect_s"] or 0) < stage.RETURN_BOUND_S
    assert measured["9"] | {"ready_s": 0} == {
        "ready_s": 0, "effects": 1, "alive_1s": 0, "alive_5s": 0,
    }  # fmt: skip
    assert runner.head["systems"]["bargein"]["restarts"] == 0  # type: ignore[index]


def _folder(below: Path) -> Path:
    folder = below / str(len(list(below.iterdir())))
    folder.mkdir()
    return folder


def _violations(runner: Runner) -> list[str]:
    """Shown by pytest if the test fails."""
    found = [f"{each.scenario}: {what}" for each in runner.samples for what in each.violations]
    print(*found, sep="\n")  # noqa: T201
    return found


def test_a_driver_that_ends_or_hangs_is_counted_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "SETUP_BOUND_S", 0.5)
    monkeypatch.setattr(runner_module, "WARM_BOUND_S", 0.5)
    spec = SystemSpec("bad", "Bad", "tests.bench.bad_driver", "project", "")
    runner = run(spec, ["1a"], tmp_path, runs=2)
    assert [each.violations for each in runner.samples] == [["driver failed"]] * 2
    assert runner.head["systems"]["bad"]["restarts"] == 2  # type: ignore[index]
    assert marked([runner.mark])[runner.mark] == []
