"""A crash after every single commit of an eventful session, and after every commit of the recovery
from each of them: what is durable is always enough to go on."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec
import pytest

from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallEnded,
    CallStarted,
    MessageAccepted,
    QuestionAsked,
    Recorded,
    TextCheckpoint,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.tool import CallStatus, Effect
from bargein.models.script import Answer, Call, Say, Step, Wait
from bargein.stores.memory import MemorySnapshot, MemoryStore
from bargein.tools import Decision, Policy, Rule, tool
from tests.session.laws import check_log, check_requests, events_of, statuses
from tests.session.world import (
    LIMITS,
    Gate,
    a_world,
    answered,
    completes,
    until,
    until_idle,
    wait_for,
)

pytestmark = pytest.mark.anyio


class Filmed(MemoryStore):
    """Remembers what was durable after each write."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[MemorySnapshot] = []
        self.after_commit = self._film

    async def _film(self, operation: str, session: str) -> None:
        self.snapshots.append(self.snapshot())

    @classmethod
    def of(cls, snapshot: MemorySnapshot) -> Filmed:
        store = cls()
        store.restore(snapshot)
        return store


SCRIPT: Sequence[Answer | Sequence[Step]] = [
    [Say("I read. "), Call("read"), Call("write", {"name": "a"})],
    [Say("Written. "), Wait("steer")],
    [Say("And more. "), Call("long"), Call("write", {"name": "b"})],
    [Say("In the background. "), Wait("stop")],
    [Say("Careful. "), Call("ask")],
    [Say("Enough. "), Wait("redirect")],
    [Say("Redirected.")],
    [Say("Queued.")],
    *([Say("Told.")] for _ in range(3)),
]
POLICY = Policy((Rule(Decision.ASK, "ask"),))


async def film() -> list[MemorySnapshot]:
    """Steers, calls with and without effects, one detached, a stop, a hold, a question, a redirect,
    a queue."""
    store = Filmed()
    long_gate = Gate()

    @tool(effect=Effect.NONE)
    async def read() -> str:
        """Read."""
        return "read"

    async def write(name: str) -> str:
        """Write."""
        return f"wrote {name}"

    async def long() -> str:
        """Take long."""
        await long_gate()
        return "long"

    async def ask() -> str:
        """Ask."""
        return "asked"

    tools = [read, write, long, ask]
    # Nothing is saved up to be written with more, so that there are as many moments as can be.
    limits = msgspec.structs.replace(LIMITS, checkpoint_s=0.0, linger_s=0.0)
    async with a_world(SCRIPT, tools=tools, store=store, policy=POLICY, limits=limits) as world:
        session = await world.session()
        await session.send("1", client_id="c1")
        await world.model.gate("steer").reached()
        await session.send("2, steering")
        await long_gate.reached.wait()
        await session.detach("t1_3_1")
        await world.model.gate("stop").reached()
        queued = await session.send("3, queued", mode="queue")
        await session.interrupt()
        await session.edit(queued.message, "3, edited")
        await session.continue_()
        await wait_for(session, QuestionAsked)
        await session.answer("t2_1_1_q1", "allow")
        await world.model.gate("redirect").reached()
        last = await session.send("4, queued", mode="queue")
        await session.send("5, instead", mode="interrupt")
        await answered(last)
        long_gate.opened.set()
        await wait_for(session, BackgroundEnded)
        await until_idle(session)
        await world.check()
    return store.snapshots


class Recovered:
    """An engine after a crash. No call that was asked for before is run by it."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def go_on(self, snapshot: MemorySnapshot) -> tuple[list[Recorded], list[MemorySnapshot]]:
        store = Filmed.of(snapshot)

        async def again(name: str = "") -> str:
            """Must not run."""
            self.ran.append(name)
            return ""

        tools = [tool(name=name)(again) for name in ("read", "write", "long", "ask")]
        answers = [[Say(f"Going on {n}.")] for n in range(12)]
        async with a_world(answers, tools=tools, store=store, linger_s=0.0) as world:
            session = await world.session()
            await until_idle(session)
            if (await session.state()).held:
                await session.continue_()
                await until_idle(session)
            assert await session.inbox() == ()
            assert (await completes(session, "And now?")).outcome is TurnOutcome.COMPLETED
            check_requests(world.model.requests)
            log = await session.events()
        return log, store.snapshots


def has_messages(snapshot: MemorySnapshot) -> bool:
    return "alice" in snapshot.sessions and bool(snapshot.sessions["alice"].events)


def check(log: list[Recorded], before: list[Recorded]) -> None:
    """The recovered log goes on from the durable one, and lost none of it."""
    check_log(log)
    assert log[: len(before)] == before
    events = events_of(before)
    started = {e.turn for e in events if isinstance(e, TurnStarted)}
    settled = {e.turn for e in events if isinstance(e, TurnSettled)}
    crashed = started - settled
    later = {e.turn: e for e in events_of(log[len(before) :]) if isinstance(e, TurnSettled)}
    for turn in crashed:
        assert later[turn].outcome is TurnOutcome.CRASHED
        check_text(turn, before, log)
    begun = {e.call.id for e in events if isinstance(e, CallStarted)}
    ended = {e.call_id for e in events if isinstance(e, CallEnded)}
    for call, status in statuses(log[len(before) :]).items():
        expected = CallStatus.UNKNOWN if call in begun - ended else CallStatus.NOT_STARTED
        assert status is expected, (call, status)


def check_text(turn: str, before: list[Recorded], log: list[Recorded]) -> None:
    """What had been checkpointed of an answer that was streaming is kept, and marked."""
    text = ""
    for event in events_of(before):
        if isinstance(event, TextCheckpoint) and event.turn == turn:
            text += event.text
        elif isinstance(event, AssistantSaid):
            text = ""
    if text:
        after = events_of(log[len(before) :])
        kept = [e for e in after if isinstance(e, AssistantSaid) and e.turn == turn]
        assert [e.partial for e in kept] == [True]
        assert text in str(kept[0].message)


async def test_every_crash_and_every_crash_of_its_recovery_is_recovered_from() -> None:
    snapshots = [each for each in await film() if has_messages(each)]
    assert len(snapshots) > 20
    twice = 0
    for snapshot in snapshots:
        recovered = Recovered()
        before = await Filmed.of(snapshot).events("alice")
        log, films = await recovered.go_on(snapshot)
        check(log, before)
        assert recovered.ran == []
        # Only the beginning: what comes after it is a session like any other.
        for again in films[:4]:
            half = await Filmed.of(again).events("alice")
            if len(half) > len(before):
                twice += 1
                check_twice((await recovered.go_on(again))[0], before, half)
                assert recovered.ran == []
    assert twice > 20


def check_twice(log: list[Recorded], before: list[Recorded], half: list[Recorded]) -> None:
    """A recovery that crashed and was recovered from: still one end for each turn."""
    check_log(log)
    assert log[: len(half)] == half
    assert half[: len(before)] == before


async def test_what_waited_is_answered_after_a_crash_and_the_crashed_turn_is_not_run_again() -> (
    None
):
    gate = Gate()

    async def write() -> str:
        """Write."""
        await gate()
        return "written"

    store = Filmed()
    async with a_world([[Call("write")]], tools=[write], store=store) as world:
        session = await world.session()
        await session.send("1")
        await gate.reached.wait()
        await session.send("2", mode="queue")
        crash = store.snapshot()
    async with a_world([[Say("Two")]], store=Filmed.of(crash)) as world:
        session = await world.session()
        await until_idle(session)
        asked = world.model.requests[0].messages
        assert "Outcome unknown: the program ended while this ran" in str(asked)
        assert "The program ended while you were answering" in str(asked[-1])
        assert str(asked[-1]).endswith("Text(text='2')))")
        assert (
            len([e for e in events_of(await session.events()) if isinstance(e, TurnStarted)]) == 2
        )
        await world.check()


async def test_a_call_that_was_in_the_background_at_a_crash_is_told_as_unknown() -> None:
    gate = Gate()

    async def write() -> str:
        """Write."""
        await gate()
        return "written"

    store = Filmed()
    async with a_world([[Call("write")], [Say("Moved")]], tools=[write], store=store) as world:
        session = await world.session()
        await session.send("1")
        await gate.reached.wait()
        await session.detach("t1_1_1")
        await wait_for(session, TurnSettled)
        crash = store.snapshot()
    async with a_world([[Say("I see")]], store=Filmed.of(crash)) as world:
        session = await world.session()
        # A restart is not the user's word to go on: it is told with their next message.
        await wait_for(session, BackgroundEnded)
        assert (await completes(session, "And?")).text == "I see"
        told = str(world.model.requests[0].messages[-1])
        assert "[The call t1_1_1 (write) in the background: unknown]" in told
        (ended,) = [e for e in events_of(await session.events()) if isinstance(e, BackgroundEnded)]
        assert ended.result.status is CallStatus.UNKNOWN
        await world.check()


async def test_two_who_recover_at_once_settle_it_once() -> None:
    gate = Gate()

    async def write() -> str:
        """Write."""
        await gate()
        return "written"

    store = Filmed()
    async with a_world([[Call("write")]], tools=[write], store=store) as world:
        await (await world.session()).send("1")
        await gate.reached.wait()
        crash = store.snapshot()
    shared = Filmed.of(crash)
    async with anyio.create_task_group() as group:

        async def recover() -> None:
            async with a_world([[Say("x")]], store=shared):
                await until(lambda: True)

        for _ in range(2):
            group.start_soon(recover)
    log = await shared.events("alice")
    check_log(log)
    assert len([e for e in events_of(log) if isinstance(e, TurnSettled)]) == 1
    assert len([e for e in events_of(log) if isinstance(e, MessageAccepted)]) == 1
