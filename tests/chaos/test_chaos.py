"""A slice of the chaos, by the seed of the run; and its checker, on histories that are wrong."""

from __future__ import annotations

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
from bargein.testing.chaos.checker import Acknowledged, EffectSeen, StopTold, violations
from bargein.testing.chaos.run import chaos

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.mark.anyio
@pytest.mark.timeout(180)
async def test_nothing_is_lost_or_done_twice(request: pytest.FixtureRequest) -> None:
    seed = int(request.config.getoption("--seed"))
    told: list[str] = []
    found = await chaos(6, seed, told.append)
    assert found == [], "\n".join([f"./dev chaos --faults 6 --seed {seed}", *told])


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


def effect(number: int, node: str = "a") -> EffectSeen:
    return EffectSeen("s", f"c{number}", node, 0.0, 1.0)


def broken(
    *events: Event,
    effects: tuple[EffectSeen, ...] = (),
    acknowledged: tuple[str, ...] = (),
    stopped: tuple[StopTold, ...] = (),
    asked: int = 0,
) -> str:
    log = [Recorded(seq, 1.0, event) for seq, event in enumerate(events, 1)]
    keys = [Acknowledged("s", key) for key in acknowledged]
    found = violations({"s": log}, keys, stopped, effects, stops_asked=Counter(s=asked))
    return "; ".join(found)


def test_the_checker_finds_what_is_wrong(anyio_backend: str) -> None:
    first, second = a_turn(1), a_turn(2)
    assert broken(*first, *second, effects=(effect(1), effect(2)), acknowledged=("k1", "k2")) == ""
    assert "k3 was acknowledged and is lost" in broken(*first, acknowledged=("k3",))
    assert "k1 is there 2 times" in broken(*first, *first)
    assert "the effect of c1 happened 2 times" in broken(
        *first, effects=(effect(1), effect(1, "b"))
    )
    assert "does not say that it started" in broken(*first, effects=(effect(9),))
    two_at_once = [*first[:5], *second[:3]]
    assert broken(*two_at_once) != ""
    wrong = StopTold("s", "stopped", "t1")
    assert "t1 was stopped, and the log says" in broken(*first, stopped=(wrong,), asked=1)
    stopped = a_turn(1, TurnOutcome.STOPPED)
    assert "0 stops were asked for, and 1 turns stopped" in broken(*stopped)
