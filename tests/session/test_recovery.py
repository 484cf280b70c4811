"""kill -9 for real: a program with effects, on a real file, killed at random moments, also while it
recovers from having been killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import (
    AssistantSaid,
    CallStarted,
    MessageAccepted,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.tool import CallStatus
from bargein.session.transcript import Transcript
from bargein.stores.sqlite import SqliteStore
from tests.session.crash_child import MESSAGES
from tests.session.laws import check_log, check_transcript, events_of, outcomes, statuses

ROOT = Path(__file__).parents[2]
KILLS_MAX = 12


class Program:
    """The program that is started over and over."""

    def __init__(self, directory: Path) -> None:
        self._forker = subprocess.Popen(
            [sys.executable, "-m", "tests.session.crash_child", str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, killed_at_step: int = 0, delay_s: float = 0.0) -> int:
        """Start it, and give its wait status."""
        assert self._forker.stdin is not None
        self._forker.stdin.write(f"{killed_at_step} {delay_s}\n")
        self._forker.stdin.flush()
        return int(self._line().split()[1])

    def _line(self) -> str:
        assert self._forker.stdout is not None
        line = self._forker.stdout.readline().strip()
        assert line, "the program could not even be started"
        return line

    def close(self) -> None:
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.close()
        self._forker.wait(30)
        self._forker.stdout.close()


@pytest.mark.parametrize("seed", range(5))
def test_killed_again_and_again_it_loses_nothing_and_does_nothing_twice(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    modes = [chance.choice(["steer", "queue", "queue", "interrupt"]) for _ in range(MESSAGES)]
    (tmp_path / "modes").write_text(" ".join(modes))
    program = Program(tmp_path)
    kills = 0
    try:
        while kills < KILLS_MAX:
            # Every third is killed while it recovers.
            if kills % 3 == 2:
                status = program.run(1, chance.random() * 0.02)
            else:
                status = program.run(chance.randrange(2, 30), chance.random() * 0.003)
            kills += status == signal.SIGKILL
            if (tmp_path / "finished").exists():
                break
        assert program.run() == 0
    finally:
        program.close()
    log = anyio.run(read_log, tmp_path / "home" / "sessions.sqlite3")
    check_log(log)
    check_transcript(Transcript.of(log).messages())
    check_acknowledged(log, (tmp_path / "acknowledged").read_text().split())
    check_effects(log, (tmp_path / "effects").read_text().split())
    check_kept_text(log)
    assert TurnOutcome.CRASHED in outcomes(log).values(), "no kill met a turn"
    assert TurnOutcome.FAILED not in outcomes(log).values()
    assert kills >= 3


async def read_log(path: Path) -> list[Recorded]:
    store = await SqliteStore.open(path)
    try:
        return await store.events("alice")
    finally:
        await store.aclose()


def check_acknowledged(log: list[Recorded], acknowledged: list[str]) -> None:
    """Each is accepted once, also if it had to be sent again; what was taken, `check_log` knows."""
    accepted = [e.message.client_id for e in events_of(log) if isinstance(e, MessageAccepted)]
    assert Counter(accepted) == Counter(dict.fromkeys((f"c{n}" for n in range(MESSAGES)), 1))
    assert set(acknowledged) <= set(accepted)


def check_effects(log: list[Recorded], effects: list[str]) -> None:
    assert max(Counter(effects).values()) == 1, "an effect was had twice"
    begun = {e.call.id for e in events_of(log) if isinstance(e, CallStarted)}
    assert set(effects) <= begun, "an effect whose start was not durable"
    for call, status in statuses(log).items():
        if status is CallStatus.FINISHED:
            assert call in effects, f"{call} is told as finished"
        elif status is CallStatus.NOT_STARTED:
            assert call not in effects, f"{call} is told as not started"


def check_kept_text(log: list[Recorded]) -> None:
    """What was checkpointed of a crashed turn's last answer was kept."""
    text = ""
    for event in events_of(log):
        if isinstance(event, TextCheckpoint):
            text += event.text
        elif isinstance(event, AssistantSaid):
            assert text in str(event.message.content[0]), "a text that had been saved is gone"
            text = ""
        elif isinstance(event, TurnSettled):
            assert text == "", f"{event.turn} lost {text!r}"


def test_a_killed_program_leaves_its_directory_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "modes").write_text(" ".join(["queue"] * MESSAGES))
    program = Program(tmp_path)
    try:
        assert program.run(5) == signal.SIGKILL
        began = time.monotonic()
        assert program.run() == 0
        assert time.monotonic() - began < 20
    finally:
        program.close()
