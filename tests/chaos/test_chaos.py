"""A slice of the chaos, by the seed of the run; and its checker, on histories that are wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from bargein.cancel import Cause, Reason
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    CallStarted,
    Event,
    MessageAccepted,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import AssistantMessage, Text, ToolCall, Usage
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.testing.chaos.checker import Acknowledged, EffectSeen, StopTold, Thawed, check

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def run_chaos(*arguments: str) -> str:
    """What a run says. It is a program of its own: it makes itself a network and a disk."""
    done = subprocess.run(
        [sys.executable, "-m", "bargein.testing.chaos.run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    said = f"./dev chaos {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    return said


@pytest.mark.needs("pgbouncer")
@pytest.mark.timeout(180)
def test_nothing_is_lost_or_done_twice(request: pytest.FixtureRequest, anyio_backend: str) -> None:
    seed = str(request.config.getoption("--seed"))
    said = run_chaos("--faults", "8", "--seed", seed)
    assert "8 faults" in said
    assert " 0 effects" not in said
    if os.geteuid() == 0 and shutil.which("ip"):
        assert "NOT POSSIBLE HERE: full disk" not in said


def a_turn(number: int, outcome: TurnOutcome = TurnOutcome.COMPLETED) -> list[Event]:
    turn, message, call = f"t{number}", f"m{number}", f"c{number}"
    said = (Text(f"k{number}"),)
    receipt = None
    if outcome is TurnOutcome.STOPPED:
        receipt = Receipt(
            ReceiptStatus.STOPPED,
            Scope.TURN,
            "s",
            turn,
            Reason(Cause.USER_STOP, "client"),
            by="client",
        )
    return [
        MessageAccepted(
            Message(message, "client", Mode.QUEUE, said, client_id=f"k{number}"),
            Disposition.STARTED,
            turn,
        ),
        TurnStarted(turn, (message,)),
        UserSaid(turn, said),
        AssistantSaid(turn, AssistantMessage((ToolCall(call, "append", "{}"),)), "m", Usage()),
        CallStarted(turn, ToolCall(call, "append", "{}"), Effect.UNKNOWN),
        CallEnded(turn, call, CallResult(CallStatus.FINISHED, (Text("done"),))),
        TurnSettled(turn, outcome, receipt),
    ]


def effect(number: int, node: str = "0.1", began: float | None = None) -> EffectSeen:
    begins = float(number) if began is None else began
    return EffectSeen("s", f"c{number}", node, begins, begins + 0.1)


def broken(
    *events: Event,
    effects: tuple[EffectSeen, ...] = (),
    acknowledged: tuple[str, ...] = (),
    stopped: tuple[StopTold, ...] = (),
    asked: int = 0,
    thawed: tuple[Thawed, ...] = (),
    may_lose: bool = False,
) -> str:
    log = [Recorded(seq, 1.0, event) for seq, event in enumerate(events, 1)]
    keys = [Acknowledged("s", key) for key in acknowledged]
    found = check(
        {"s": log},
        keys,
        stopped,
        effects,
        stops_asked=Counter(s=asked),
        thawed=thawed,
        may_lose=may_lose,
    )
    return "; ".join(found.broken)


def test_the_checker_finds_what_is_wrong(anyio_backend: str) -> None:
    first, second = a_turn(1), a_turn(2)
    assert broken(*first, *second, effects=(effect(1), effect(2)), acknowledged=("k1", "k2")) == ""
    assert "k3 was acknowledged and is lost" in broken(*first, acknowledged=("k3",))
    assert "k1 is there 2 times" in broken(*first, *first)
    assert "the effect of c1 happened 2 times" in broken(
        *first, effects=(effect(1), effect(1, "1.1", 5.0))
    )
    assert "does not say that it started" in broken(*first, effects=(effect(9),))
    two_at_once = [*first[:5], *second[:3]]
    assert broken(*two_at_once) != ""
    wrong = StopTold("s", "stopped", "t1")
    assert "t1 was stopped, and the log says" in broken(*first, stopped=(wrong,), asked=1)
    stopped = a_turn(1, TurnOutcome.STOPPED)
    assert "0 stops were asked for, and 1 turns stopped" in broken(*stopped)


def test_the_checker_knows_two_turns_at_once_from_a_node_that_was_frozen(
    anyio_backend: str,
) -> None:
    log = [*a_turn(1), *a_turn(2)]
    at_once = (effect(1, "0.1", 1.0), effect(2, "1.1", 1.05))
    assert "c1 at 0.1 and c2 at 1.1 happened at the same time" in broken(*log, effects=at_once)
    # It had decided before it was frozen, and acts when it wakes: no lease can prevent that.
    assert broken(*log, effects=at_once, thawed=(Thawed(0, 0.95),)) == ""
    assert broken(*log, effects=at_once, thawed=(Thawed(1, 0.5),)) != ""


def test_the_checker_lets_an_asynchronous_standby_lose_and_not_repeat(anyio_backend: str) -> None:
    first = a_turn(1)
    assert broken(*first, acknowledged=("k3",), may_lose=True) == ""
    assert "k1 is there 2 times" in broken(*first, *first, may_lose=True)
