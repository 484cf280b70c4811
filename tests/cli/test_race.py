"""The answer ends as Enter is pressed, fifty times: no message is lost, none runs twice."""

import random
import time
from pathlib import Path

import anyio

from bargein.contracts.event import (
    MessageAccepted,
    MessagesTaken,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.stores.sqlite import SqliteStore
from bargein.testing.engine_invariants import check_log
from tests.cli.conftest import Open
from tests.cli.screen import CTRL_D, Screen

RUNS = 50
ANSWER_S = 0.06
# Some answers take so long that a message meets them on any machine.
LONG_RUNS = (5, 20, 35)
SCRIPT = f"""
repeat = true
[[answers]]
when = "^long"
steps = [{{ do = "say", text = "begun" }}, {{ do = "pause", seconds = 1.5 }}]
[[answers]]
when = "^first"
steps = [{{ do = "say", text = "begun" }}, {{ do = "pause", seconds = {ANSWER_S} }}]
[[answers]]
when = "^second"
steps = [{{ do = "say", text = "done" }}]
"""


async def events_of(database: Path) -> list[Recorded]:
    store = await SqliteStore.open(database)
    try:
        (head,) = [each for each in await store.sessions() if each.seq]
        return await store.events(head.id)
    finally:
        await store.aclose()


def race(screen: Screen, number: int, chance: random.Random) -> None:
    screen.enter(_first(number))
    screen.wait_until(lambda: _last_answer(screen) == "begun", "the answer begun")
    if number not in LONG_RUNS:
        # From before its end to after it; what the screen takes to show it is in there too.
        time.sleep(chance.uniform(0.0, 1.2 * ANSWER_S))
    screen.enter(f"second {number}.")
    screen.wait_until(lambda: _last_answer(screen) == "done", "the second answered")
    screen.wait_ready()


def _first(number: int) -> str:
    return f"{'long' if number in LONG_RUNS else 'first'} {number}."


def _last_answer(screen: Screen) -> str:
    return next((e for e in reversed(screen.text.split("\n")) if e in ("begun", "done")), "")


def test_the_answer_ends_as_enter_is_pressed(chat: Open, tmp_path: Path) -> None:
    screen = chat(script=SCRIPT, rows=16, columns=60)
    screen.wait_ready()
    chance = random.Random(7)
    for number in range(RUNS):
        race(screen, number, chance)
    screen.type(CTRL_D)
    assert screen.exit_code() == 0

    log = anyio.run(events_of, tmp_path / "data" / SESSIONS_FILE)
    check_log(log).check_all_ran()
    accepted = {
        each.event.message.id: each.event.message.text
        for each in log
        if isinstance(each.event, MessageAccepted)
    }
    wanted = [text for number in range(RUNS) for text in (_first(number), f"second {number}.")]
    assert list(accepted.values()) == wanted
    taken = [
        message
        for each in log
        if isinstance(each.event, TurnStarted | MessagesTaken)
        for message in each.event.messages
    ]
    assert sorted(taken) == sorted(accepted)
    settled = [each.event for each in log if isinstance(each.event, TurnSettled)]
    assert {each.outcome for each in settled} == {TurnOutcome.COMPLETED}
    # Both sides of the race were met: some joined the turn, some were too late for it.
    assert RUNS < len(settled) < 2 * RUNS
