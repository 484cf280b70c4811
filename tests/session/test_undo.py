"""Taking back a turn that has settled: the model forgets it, the log does not, effects stay."""

import anyio
import pytest

from bargein.contracts.event import Recorded, TurnHidden, TurnSettled
from bargein.models.script import Call, Expect, Say, Wait
from bargein.session.session import TooLate
from bargein.session.undo import Undone
from tests.session.world import Gate, HeldStore, Script, a_while, a_world, answered, completes

pytestmark = pytest.mark.anyio


class LateReads(HeldStore):
    """What `reads` gates is what the log was before."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Gate | None = None

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        reads, self.reads = self.reads, None
        found = await super().events(session, after=after, limit=limit, bytes_max=bytes_max)
        if reads is not None:
            await reads()
        return found


async def test_the_last_turn_is_hidden_from_the_model_and_then_the_one_before() -> None:
    script: Script = [
        [Say("one")],
        [Say("two")],
        [Expect(user="third", messages=3), Say("three")],
        [Expect(user="fourth", messages=1), Say("four")],
    ]
    async with a_world(script) as world:
        session = await world.session()
        await completes(session, "first")
        await completes(session, "second")
        undone = await session.undo()
        assert (undone.turn, undone.text, undone.effects) == ("t2", "second", ())
        await completes(session, "third")
        assert "second" not in str(world.model.requests[-1].messages)
        assert [(await session.undo()).turn for _ in range(2)] == ["t3", "t1"]
        await completes(session, "fourth")
        assert (await session.undo()).turn == "t4"
        with pytest.raises(TooLate, match="no turn"):
            await session.undo()
        hidden = [e.event.turn for e in await session.events() if isinstance(e.event, TurnHidden)]
        assert hidden == ["t2", "t3", "t1", "t4"]
        assert len(await session.transcript()) == 0
        await world.check()


async def test_what_it_did_is_told_and_not_undone() -> None:
    async def write() -> str:
        """Write."""
        return "written"

    script: Script = [[Call("write")], [Say("done")], [Say("fine")]]
    async with a_world(script, tools=[write]) as world:
        session = await world.session()
        await completes(session, "write it")
        undone = await session.undo()
        assert len(undone.effects) == 1
        assert undone.effects[0].startswith("write")
        assert undone.effects[0].endswith(": finished")
        await completes(session, "go on")
        told = str(world.model.requests[-1].messages)
        assert "What it did was not undone" in told
        assert "write it" not in told
        await world.check()


async def test_a_turn_that_runs_is_stopped_first() -> None:
    script: Script = [[Say("One"), Wait("hold")], [Expect(messages=1), Say("fine")]]
    async with a_world(script) as world:
        session = await world.session()
        first = await session.send("Count")
        await world.model.gate("hold").reached()
        assert (await session.undo()).turn == "t1"
        assert (await answered(first)).outcome == "stopped"
        await completes(session, "Other")
        settled = [e.event for e in await session.events() if isinstance(e.event, TurnSettled)]
        assert [each.outcome for each in settled] == ["stopped", "completed"]
        await world.check()


async def test_a_turn_whose_end_is_on_its_way_to_the_store_is_the_last_one() -> None:
    async with a_world([[Say("one")], [Say("two")]]) as world:
        session = await world.session()
        await completes(session, "first")
        world.held_store.hold(TurnSettled)
        await session.send("second")
        await world.held_store.reached.wait()
        assert not (await session.state()).busy
        undone: list[Undone] = []

        async def undo() -> None:
            undone.append(await session.undo())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(undo)
            await a_while()
            world.held_store.release()
        assert [(each.turn, each.text) for each in undone] == [("t2", "second")]
        assert len(await session.transcript()) == 2
        await world.check()


async def test_two_at_once_take_back_one_turn() -> None:
    """As of an impatient finger, or of two people who look at the same answer."""
    async with a_world([[Say("one")], [Say("two")]]) as world:
        session = await world.session()
        await completes(session, "first")
        await completes(session, "second")
        done: list[str] = []

        async def undo() -> None:
            try:
                done.append((await session.undo()).turn)
            except TooLate as error:
                done.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(undo)
            tasks.start_soon(undo)
        assert sorted(done) == ["t2", "t2 was already taken back"]
        assert len(await session.transcript()) == 2
        await world.check()


async def test_what_an_earlier_one_did_is_told_too_when_another_is_taken_back() -> None:
    async def write() -> str:
        """Write."""
        return "written"

    script: Script = [[Say("one")], [Call("write")], [Say("done")], [Say("fine")]]
    async with a_world(script, tools=[write]) as world:
        session = await world.session()
        await completes(session, "first")
        await completes(session, "write it")
        assert len((await session.undo()).effects) == 1
        assert (await session.undo()).effects == ()
        await completes(session, "go on")
        told = str(world.model.requests[-1].messages)
        assert "What it did was not undone" in told
        assert "write" in told
        await world.check()


async def test_a_turn_that_comes_while_the_log_is_read_is_not_taken_back_with_it() -> None:
    store = LateReads()
    async with a_world([[Say("one")], [Say("two")]], store=store) as world:
        session = await world.session()
        await completes(session, "first")
        store.reads = gate = Gate()

        told: list[str] = []

        async def undo() -> None:
            try:
                told.append((await session.undo()).turn)
            except TooLate as error:
                told.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(undo)
            await gate.reached.wait()
            await completes(session, "second")
            gate.opened.set()
        assert told == ["t2 has begun meanwhile; nothing was taken back"]
        assert len(await session.transcript()) == 4
        assert not [e for e in await session.events() if isinstance(e.event, TurnHidden)]
        await world.check()
