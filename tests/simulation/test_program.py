"""`./dev simulate`: many worlds, one world, and what it says of one that fails."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bargein.testing import simulate as program
from bargein.testing.simulation.plan import Plan
from tests.simulation.variants import QueueGoesOnAfterAStop

SEEDS = range(8, 10)


def test_many_seeds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seeds", "3", "--first", "5", "--backend", "asyncio"]) == 0
    assert re.fullmatch(r"3 seeds, 0 failed, \d+ a second on asyncio\n", capsys.readouterr().out)


def test_workers_share_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seeds", "45", "--workers", "2"]) == 0
    # A slow machine shows its progress before.
    assert "\n45 seeds, 0 failed" in "\n" + capsys.readouterr().out


def test_progress_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "PROGRESS_S", 0.0)
    assert program.main(["--seeds", "2"]) == 0
    assert capsys.readouterr().out.startswith("  1 of 2, ")


def test_one_seed_tells_its_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 3 on trio\n")
    assert told.endswith("no law was broken\n")
    assert " durable s0 1 MessageAccepted" in told


def test_a_failing_seed_comes_with_its_replay_and_the_smallest_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert program.run_many(SEEDS, "trio", make_world=QueueGoesOnAfterAStop) == 1
    told = capsys.readouterr().out
    found = re.search(
        r"^seed (\d+): (law 3 .*)\n    replay: ./dev simulate --seed \1 ", told, re.MULTILINE
    )
    assert found is not None, told
    plan = msgspec.json.decode(told.splitlines()[-2], type=Plan)
    assert "failed" in told.splitlines()[-1]
    small = program.simulate(plan, make_world=QueueGoesOnAfterAStop)
    assert small.kind == found.group(2)
    drawn = program.simulate(plan.seed).plan
    assert sum(map(len, plan.users)) <= sum(map(len, drawn.users))
    # The real engine lives the same plan, from a file, and nothing is broken.
    file = tmp_path / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    assert program.main(["--plan", str(file)]) == 0


@pytest.mark.parametrize("content", [None, "{", '{"users": 3}'])
def test_a_plan_that_cannot_be_read_is_wrong_usage(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as caught:
        program.main(["--plan", str(file)])
    assert caught.value.code == 2
    assert f"--plan {file}: " in capsys.readouterr().err
