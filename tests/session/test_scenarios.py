"""Failures of real agents that no other module shows for the whole engine: docs/scenarios.md."""

from __future__ import annotations

import threading

import anyio
import pytest

from bargein import sync
from bargein.cancel import Token
from bargein.contracts.event import Recorded
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.models.script import Call, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.session.transcript import Transcript
from tests.session.world import CONFIG, LIMITS, Script, a_world, completes, until

TALK: Script = [[Say("One "), Wait("hold"), Say("two")], [Say("Fine.")]]


@pytest.mark.anyio
async def test_two_blocking_tools_at_once_hold_up_neither_the_loop_nor_a_stop() -> None:
    blocked: list[str] = []
    let_go = threading.Event()

    def block(name: str) -> str:
        """Block in C, and look at nothing."""
        blocked.append(name)
        let_go.wait(30)
        return "late"

    script: Script = [[Call("block", {"name": "a"}), Call("block", {"name": "b"})], [Say("Fine.")]]
    async with a_world(script, tools=[block]) as world:
        session = await world.session()
        try:
            await session.send("go")
            # Both at once, and the loop that waits for them here goes on.
            await until(lambda: len(blocked) == 2)
            with anyio.fail_after(LIMITS.receipt_s):
                receipt = await session.interrupt()
            assert [str(step.status) for step in receipt.steps] == ["abandoned", "abandoned"]
        finally:
            let_go.set()
        await completes(session, "and now?")
        await world.check()


@pytest.mark.anyio
async def test_after_the_receipt_no_effect_happens() -> None:
    """Three calls that have one effect after the other, as fast as they can."""
    effects: list[str] = []

    async def press(name: str, token: Token) -> str:
        """Press a button again and again."""
        while True:
            effects.append(name)
            with token.scope():
                await anyio.sleep(0.001)
            token.check()

    calls = [Call("press", {"name": name}) for name in "abc"]
    async with a_world([calls, [Say("Fine.")]], tools=[press]) as world:
        session = await world.session()
        await session.send("go")
        await until(lambda: set(effects) == set("abc"))
        receipt = await session.interrupt()
        at_the_receipt = len(effects)
        assert [str(step.status) for step in receipt.steps] == ["stopped"] * 3
        await completes(session, "and now?")
        assert len(effects) == at_the_receipt
        await world.check()


def meaning(log: list[Recorded], receipt: Receipt) -> tuple[object, ...]:
    """What a stop meant: to the one who asked, to the model, and in the log, where a cancel from
    another thread may be at work before its session writes of it."""
    steps = [(step.kind, step.name, step.status) for step in receipt.steps]
    told = (receipt.status, receipt.scope, receipt.target, receipt.reason, receipt.by, steps)
    kinds = sorted(type(each.event).__name__ for each in log)
    return told, Transcript.of(log).messages(), kinds


def test_a_stop_means_the_same_through_the_engine_and_without_await() -> None:
    meanings: list[tuple[object, ...]] = []

    async def with_await() -> None:
        async with a_world(TALK) as world:
            session = await world.session()
            await session.send("go")
            await world.model.gate("hold").reached()
            receipt = await session.interrupt()
            assert receipt.status is ReceiptStatus.STOPPED
            await completes(session, "and now?")
            await session.settled()
            meanings.append(meaning(await session.events(), receipt))

    anyio.run(with_await)
    model = ScriptedModel(TALK)
    with sync.Engine(Agent(model=model), store="memory", config=CONFIG, limits=LIMITS) as engine:
        session = engine.session("alice")
        session.send("go")
        engine.call(model.gate("hold").reached)
        receipt = session.interrupt()
        session.send("and now?").result()
        meanings.append(meaning(session.events(), receipt))
    assert meanings[0] == meanings[1]
