"""How a session writes: what belongs together is one commit, and nobody waits longer for it."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from bargein.contracts.event import (
    AgentEvent,
    AssistantSaid,
    InterruptLanded,
    ModelUsed,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Text
from bargein.models.script import Answer, Call, Say, Wait
from bargein.session import snapshot
from bargein.session.budget import Accounts
from bargein.session.snapshot import Run, SessionSnapshot, WaitingRef, WaitingRuns
from bargein.session.state import Lane, SessionState, WaitingMessage
from bargein.session.turn import Turn
from bargein.tools import tool
from tests.session.world import WITHIN_S, HeldStore, World, a_world, answered, completes, wait_for


def commits(world: World) -> list[list[type]]:
    assert isinstance(world.store, HeldStore)
    return [[type(event) for event in commit.events] for commit in world.store.commits]


@pytest.mark.anyio
async def test_a_stop_and_the_end_of_its_turn_are_one_commit() -> None:
    async with a_world([Answer([Say("Once upon"), Wait("never")])], linger_s=60.0) as world:
        session = await world.session()
        await session.send("go")
        await world.model.gate("never").reached()
        receipt = await session.interrupt()
        assert receipt.stored
        last = commits(world)[-1]
        assert {InterruptLanded, ModelUsed, AssistantSaid, TurnSettled} == set(last)
        await world.check()


@pytest.mark.anyio
async def test_a_stop_is_written_though_the_turn_takes_its_time() -> None:
    runs, let_go = anyio.Event(), anyio.Event()

    @tool
    async def slow() -> str:
        """Takes its time to stop."""
        runs.set()
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        return ""

    async with (
        a_world([Answer([Call("slow", {})])], tools=[slow]) as world,
        anyio.create_task_group() as group,
    ):
        session = await world.session()
        await session.send("go")
        await runs.wait()
        group.start_soon(session.interrupt)
        await wait_for(session, InterruptLanded)
        assert TurnSettled not in {kind for kinds in commits(world) for kind in kinds}
        let_go.set()


@pytest.mark.anyio
async def test_the_end_of_a_turn_is_one_commit() -> None:
    async with a_world([Answer([Say("Yes.")])], linger_s=60.0) as world:
        session = await world.session()
        with anyio.fail_after(WITHIN_S):
            await completes(session, "go")
        assert [TurnStarted in kinds for kinds in commits(world)] == [True, False]
        assert commits(world)[-1] == [ModelUsed, AssistantSaid, TurnSettled]


@pytest.mark.anyio
async def test_whoever_waits_has_it_written_at_once() -> None:

    async def agent(turn: Turn) -> None:
        turn.tell("by the way")
        await turn.keep("note", b"")

    async with a_world(agent=agent, linger_s=60.0) as world:
        session = await world.session()
        with anyio.fail_after(WITHIN_S):
            await answered(await session.send("go"))
        assert commits(world)[1] == [UserSaid, AgentEvent]


@pytest.mark.anyio
async def test_what_nobody_waits_for_is_written_soon() -> None:
    async def agent(turn: Turn) -> None:
        turn.tell("by the way")
        await turn.token.wait_async()

    async with a_world(agent=agent) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, UserSaid, 2)
        await session.interrupt()


def test_the_places_of_what_waits_follow_every_change() -> None:
    seqs = {"m1": 10, "m2": 11, "m3": 12, "m4": 14, "m5": 15, "bg-t1_3_1": 16}
    runs = WaitingRuns()

    def waiting(*numbers: int, lane: Lane = Lane.QUEUE) -> tuple[WaitingMessage, ...]:
        said = (Text("x"),)
        return tuple(WaitingMessage(Message(f"m{n}", "", Mode.QUEUE, said), lane) for n in numbers)

    told = WaitingMessage(Message("bg-t1_3_1", "", Mode.QUEUE, (Text("x"),)), Lane.QUEUE)

    for now in (
        waiting(1),
        waiting(1, 2, 3),
        waiting(1, 2, 3, 4),
        waiting(1, 3, 4),
        waiting(3, 1, 4, 5),
        waiting(3, 1, lane=Lane.NEXT),
        waiting(3),
        (),
        waiting(5),
        (*waiting(5), told),
        (told, *waiting(5)),
        (*waiting(1), *waiting(2, lane=Lane.NEXT), *waiting(3)),
    ):
        stored = msgspec.msgpack.encode(runs.of(now, seqs))
        read = SessionSnapshot(SessionState(), msgspec.msgpack.decode(stored, type=tuple[Run, ...]))
        assert read.waiting == tuple(
            WaitingRef(w.message.id, w.lane, seqs[w.message.id]) for w in now
        )


def test_what_waits_takes_no_more_room_the_more_it_is() -> None:
    said = (Text("x"),)
    waiting = tuple(
        WaitingMessage(Message(f"m{n}", "", Mode.QUEUE, said), Lane.QUEUE) for n in range(500)
    )
    seqs = {each.message.id: place for place, each in enumerate(waiting, 7)}
    runs = WaitingRuns()
    for count in range(1, 500):
        assert runs.of(waiting[:count], seqs) == [Run("m0", Lane.QUEUE, 7, count)]


def test_what_waits_as_it_was_stored_one_by_one_is_read() -> None:
    before = {"state": {"phase": "idle"}, "inbox": [["m2", "queue", 5], ["m3", "next", 6]]}
    read = snapshot.decode(msgspec.msgpack.encode(before))
    assert read.waiting == (WaitingRef("m2", Lane.QUEUE, 5), WaitingRef("m3", Lane.NEXT, 6))


def test_a_state_that_was_stored_with_names_is_read() -> None:
    before = {
        "state": {"phase": "running", "turn": "t1", "turns": 1, "messages": 2},
        "waiting": [{"message": "m2", "lane": "queue", "seq": 5}],
        "turn_seq": 2,
    }
    read = snapshot.decode(msgspec.msgpack.encode(before))
    assert read.waiting == (WaitingRef("m2", Lane.QUEUE, 5),)
    assert read.log_begins_at == 2


def test_what_waits_is_stored_and_read_again() -> None:
    runs = WaitingRuns()
    message = Message("m2", "", Mode.QUEUE, (Text("x"),))
    raw = runs.of((WaitingMessage(message, Lane.QUEUE),), {"m2": 5})
    stored = snapshot.encode(SessionState(turns=1), raw, 2, b"kept", Accounts())
    read = snapshot.decode(stored)
    assert read.waiting == (WaitingRef("m2", Lane.QUEUE, 5),)
    assert (read.state.turns, read.turn_seq, read.agent_state) == (1, 2, b"kept")
