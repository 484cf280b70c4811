"""The library of the benches: a wrong ruler would make every figure wrong."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import measure
from bench.__main__ import take_lock
from bench.measure import Report, Row, interleave, interleave_async, percentile, show, statement

ROOT = Path(__file__).parents[2]


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, p) for p in (0, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_every_candidate_runs_once_a_round_in_changing_order() -> None:
    taken: list[str] = []

    def candidate(name: str) -> measure.Sample:
        def sample() -> float:
            taken.append(name)
            return len(taken)

        return sample

    names = "abc"
    samples = interleave({n: candidate(n) for n in names}, rounds=20, warm_up_rounds=2, seed=1)
    rounds = ["".join(taken[i : i + 3]) for i in range(0, len(taken), 3)]
    assert [sorted(one) for one in rounds] == [list(names)] * 22
    assert len(set(rounds)) > 1
    # The first two rounds warm up: none of their six samples is kept.
    assert sorted(value for values in samples.values() for value in values) == list(range(7, 67))


@pytest.mark.anyio
async def test_coroutines_are_interleaved_alike() -> None:
    async def one() -> float:
        return 1.0

    async def two() -> float:
        return 2.0

    samples = await interleave_async({"one": one, "two": two}, rounds=3, pause_s=0.001)
    assert samples == {"one": [1.0] * 3, "two": [2.0] * 3}


def test_a_statement_is_timed_by_the_pass() -> None:
    passes: list[int] = []
    seconds = statement("passes.append(1)", {"passes": passes}, number=1000)()
    assert len(passes) == 1000
    assert 0 < seconds < 0.001


def test_a_row_is_judged_by_its_ratio_or_without_a_baseline_by_its_value() -> None:
    assert Row("a", baseline=2.0, ours=3.0, bar=1.5).verdict == "met"
    assert Row("a", baseline=2.0, ours=3.1, bar=1.5).verdict == "missed"
    assert Row("a", ours=3.0, bar=3.0).verdict == "met"
    assert Row("a", ours=3.1, bar=3.0).verdict == "missed"
    assert Row("a", baseline=1.0, ours=9.0).verdict == ""
    assert Row("a", baseline=0.0, ours=1.0, bar=2.0).ratio == math.inf


def test_numbers_are_shown_for_people() -> None:
    assert [show(s) for s in (9e-9, 57.2e-6, 0.0011, 2.0)] == ["9 ns", "57.2 us", "1.1 ms", "2 s"]
    assert show(12_345_678, "bytes") == "1.235e+07 bytes"


def test_a_missed_figure_is_told_and_does_not_fail(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = Report("x", results=tmp_path)
    samples = {"plain": [1.0, 2.0], "ours": [4.0, 8.0]}
    report.compare("speed", samples, baseline="plain", ours="ours", bar=2, percents=(50, 99))
    report.figure("left over", 0, unit="sockets", bar=0)
    assert report.finish() == 0
    out = capsys.readouterr().out
    assert "| speed, p50 |      1 s |       4 s | 4.00 x |       2 x |  missed |" in out
    assert "| left over  |          | 0 sockets |        | 0 sockets |     met |" in out
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in out


def test_wrong_behaviour_fails_whatever_the_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = Report("x", results=tmp_path)
    report.violation("a process survived")
    assert report.finish() == 1
    assert "VIOLATION: a process survived" in capsys.readouterr().out


def test_raw_samples_are_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = Report("x", results=tmp_path)
    report.compare("speed", {"p": [1.0], "o": [2.0]}, baseline="p", ours="o")
    report.finish()
    (path,) = tmp_path.glob("x-*.jsonl")
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert head["bench"] == "x"
    assert {line["candidate"]: line["samples_s"] for line in lines} == {"p": [1.0], "o": [2.0]}
    assert "speed" in capsys.readouterr().out


def test_benches_are_listed_with_a_line_each() -> None:
    done = bench()
    assert done.returncode == 0
    assert re.search(r"^imports +What `import bargein` costs", done.stdout, re.MULTILINE)
    assert "measure" not in [line.split()[0] for line in done.stdout.splitlines()]


def test_an_unknown_bench_is_wrong_usage() -> None:
    done = bench("no_such_bench")
    assert done.returncode == 2
    assert "There is no bench 'no_such_bench'" in done.stderr


def test_a_second_bench_says_that_it_waits_and_then_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = take_lock(path)
    program = f"from bench.__main__ import take_lock; take_lock({path!r}); print('running')"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as second:
        assert second.stderr is not None
        assert "Waiting" in second.stderr.readline()
        assert second.poll() is None
        os.close(held)
        assert second.communicate() == ("running\n", "")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
