"""How InterruptBench counts survivors: truly, by a mark that a process cannot lose."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from bench.interruptbench import processes
from bench.interruptbench.processes import SurvivorWatch, end_marked, marked
from bench.interruptbench.stage import COMMANDS


@pytest.fixture
def mark() -> str:
    return f"ibmark-{uuid.uuid4().hex}"


def start(name: str, mark: str, up: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sh", COMMANDS / f"{name}.sh", mark, up], start_new_session=True)
    while not up.exists():
        assert process.poll() is None
        time.sleep(0.005)
    return process


def until_there_are(names: list[str], mark: str) -> None:
    """Who starts, is in its exec, or has just been killed, is counted a moment longer, or not
    yet."""
    deadline = time.monotonic() + 30
    while (found := sorted(program_of(pid) for pid in marked([mark])[mark])) != names:
        assert time.monotonic() < deadline, f"there are {found}, not {names}"
        time.sleep(0.005)


def program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""


def test_whoever_forked_away_is_found_and_ended(mark: str, tmp_path: Path) -> None:
    process = start("escapes", mark, tmp_path / "up")
    # The shell, its sleep, and the two that left.
    until_there_are(["sh", "sleep", "sleep", "sleep"], mark)
    os.killpg(process.pid, 9)
    process.wait()
    until_there_are(["sleep", "sleep"], mark)
    assert end_marked(mark) == 2
    assert marked([mark]) == {mark: []}


def test_a_zombie_is_no_survivor(mark: str) -> None:
    process = subprocess.Popen(["sleep", "30"], env={**os.environ, "IB_MARK": mark})
    while not marked([mark])[mark]:
        time.sleep(0.005)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert marked([mark]) == {mark: []}
    process.wait()


def test_survivors_are_looked_at_twice_and_then_ended(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOKS_S", (0.0, 0.05))
    watch = SurvivorWatch()
    process = start("stubborn", mark, tmp_path / "up")
    watched = watch.add(mark, time.monotonic())
    watch.look()
    assert not watched.over
    time.sleep(max(0.0, (watch.next_due_at or 0.0) - time.monotonic()))
    watch.look()
    assert watched.over
    assert all(count >= 1 for count in watched.alive)
    assert watch.next_due_at is None
    assert process.wait(30) == -9
