"""How long things may take to stop: agreed on in one place, each outlasting what it waits for."""

from __future__ import annotations

import anyio
import pytest

from bargein.cancel import Token
from bargein.contracts import grace
from bargein.contracts.model import Text, ToolCall, ToolSchema
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    Effect,
    PlannedCall,
    Refused,
)
from bargein.process import Ladder
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.session.turn import Turn
from bargein.stores.memory import MemoryStore
from bargein.testing.seeded import Backend, Seeded, run_seeded
from bargein.tools import ToolRegistry, tool

LIMITS = Limits()


def test_each_outlasts_what_it_waits_for() -> None:
    ladder = Ladder()
    assert ladder.total_s < grace.PROCESS_S
    assert grace.PROCESS_S < grace.CALLED_S < grace.TOOL_S < grace.CALL_S < grace.SETTLE_S
    assert LIMITS.grace_of(0.0) == grace.CALL_S
    assert LIMITS.grace_of(60.0) == LIMITS.call_grace_s_max < LIMITS.calls_s


def test_a_tool_is_given_longer_if_it_can_hear_of_a_stop() -> None:
    @tool
    async def asynchronous() -> str:
        """Is cancelled."""
        return ""

    @tool
    def looking(token: Token) -> str:
        """Looks at its token."""
        return ""

    @tool
    def blind() -> str:
        """Hears of nothing."""
        return ""

    assert asynchronous.grace_s == looking.grace_s == grace.TOOL_S
    assert blind.grace_s == grace.BLIND_S < grace.TOOL_S


def test_what_a_tool_may_ask_for_makes_no_receipt_later() -> None:
    without = LIMITS.settle_s + LIMITS.children_s(0) + LIMITS.store_s
    assert LIMITS.receipt_s == without


def test_a_registry_asks_for_what_its_tools_need_and_no_more() -> None:
    @tool(grace_s=2.0)
    async def careful() -> str:
        """Tidies up."""
        return ""

    @tool
    async def usual() -> str:
        """Does not."""
        return ""

    registry = ToolRegistry([careful, usual])
    asked = {}
    for name in ("careful", "usual"):
        planned = registry.plan(ToolCall("c", name, "{}"))
        assert isinstance(planned, PlannedCall)
        asked[name] = planned.grace_s
    assert asked == {"careful": 2.0, "usual": grace.TOOL_S}


class Tidies:
    """A tool that takes `needs_s` to stop, and has asked for `asks_s`."""

    def __init__(self, needs_s: float, asks_s: float) -> None:
        self._needs_s = needs_s
        self._asks_s = asks_s
        self.runs = anyio.Event()

    def schemas(self) -> tuple[ToolSchema, ...]:
        return ()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        return PlannedCall(call, Effect.UNKNOWN, call.name, grace_s=self._asks_s)

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        self.runs.set()
        with context.token.scope():
            await anyio.sleep_forever()
        await anyio.sleep(self._needs_s)
        return CallResult(CallStatus.STOPPED, (Text("tidied up"),), "tidied up")


async def stop_while_it_runs(run: Seeded, toolbox: Tidies, scope: str) -> tuple[Receipt, float]:
    async def agent(turn: Turn) -> None:
        await turn.run_calls(toolbox, [ToolCall("c1", "tidies", "{}")])

    async with SessionEngine(agent, MemoryStore(), clock=run.clock) as engine:
        session = await engine.session("s")
        await session.send("go")
        await toolbox.runs.wait()
        began_at = anyio.current_time()
        receipt = await session.interrupt(scope=scope, target="c1" if scope == "call" else None)
        return receipt, anyio.current_time() - began_at


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("scope", ["turn", "call"])
@pytest.mark.parametrize(
    ("needs_s", "asks_s", "status"),
    [
        (1.4, 0.0, CallStatus.STOPPED),
        (1.6, 0.0, CallStatus.ABANDONED),
        (1.9, 2.0, CallStatus.STOPPED),
        (2.1, 2.2, CallStatus.STOPPED),
        (60.0, 90.0, CallStatus.ABANDONED),
    ],
)
def test_a_stop_that_is_about_to_be_confirmed_is_not_given_up_and_every_one_is_bounded(
    backend: Backend, scope: str, needs_s: float, asks_s: float, status: CallStatus
) -> None:
    async def stop(run: Seeded) -> tuple[Receipt, float]:
        return await stop_while_it_runs(run, Tidies(needs_s, asks_s), scope)

    receipt, elapsed_s = run_seeded(stop, 1, backend=backend)
    (step,) = [step for step in receipt.steps if step.call_id == "c1"]
    assert step.status is status
    assert elapsed_s == pytest.approx(min(needs_s, LIMITS.grace_of(asks_s)), abs=0.01)
