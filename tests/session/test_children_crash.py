"""Sub-agents after a crash: settled once, told of, never run again; at every point of the way."""

from __future__ import annotations

import anyio
import pytest

from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    ChildEnded,
    ChildStarted,
    MessageAccepted,
    SessionCreated,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import ChildState
from bargein.contracts.store import SessionHead
from bargein.contracts.tool import CallStatus
from bargein.models.script import Answer, Say
from bargein.session.children import is_child
from bargein.session.journal import JournalBroken
from bargein.stores.memory import MemoryStore
from bargein.tools.delegate import delegate_tool
from tests.session.family import check_family, delegating, held, holding, saying
from tests.session.laws import events_of
from tests.session.test_crash_points import Filmed
from tests.session.world import (
    WITHIN_S,
    Gate,
    HeldStore,
    World,
    a_while,
    a_world,
    answered,
    completes,
    until,
    until_idle,
    wait_for,
)

pytestmark = pytest.mark.anyio

TOOLS = [delegate_tool()]
SCRIPT = [
    delegating("go", "middle", "ann"),
    delegating("middle", "ben"),
    holding("ann"),
    holding("ben"),
    # In the background of a sub-agent, and so stopped with that: by then its turn is over.
    delegating("middle", "dan", mode="detach"),
    holding("dan"),
    saying("middle", Say("Middle.")),
    saying("go", Say("Went.")),
    delegating("later", "cat", mode="detach"),
    holding("cat"),
    saying("later", Say("Later.")),
    *[Answer([Say("Next.")]) for _ in range(9)],
]


async def film() -> Filmed:
    """A tree that comes to its end, a detached one that does, and all that was durable between."""
    store = Filmed()
    async with a_world(SCRIPT, tools=TOOLS, store=store) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben")
        world.model.gate("ben").open()
        await wait_for(session, ChildEnded, 1)
        world.model.gate("ann").open()
        await answered(sent)
        await completes(session, "later")
        await held(world, "cat")
        world.model.gate("cat").open()
        await wait_for(session, TurnSettled, 3)
        await until_idle(session)
    return store


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_crash_after_every_commit_and_after_every_commit_of_its_recovery() -> None:
    first = await film()
    assert len(first.snapshots) > 20
    for place, snapshot in enumerate(first.snapshots):
        recovering = Filmed.of(snapshot)
        await recover(recovering)
        for again in recovering.snapshots[:: 1 + place % 3]:
            await recover(Filmed.of(again))


async def recover(store: Filmed) -> None:
    """Another program on what is durable: nothing of the tree runs, all of it is settled once."""
    before = {name: len(kept.events) for name, kept in store.snapshot().sessions.items()}
    if "alice" not in before:
        return
    async with a_world([Answer([Say("Next.")]) for _ in range(9)], store=store) as world:
        session = await world.session()
        await until_idle(session)
        logs = await check_family(world)
        for name, log in logs.items():
            new = events_of(log)[before.get(name, 0) :]
            if name != "alice":
                assert not [e for e in new if isinstance(e, TurnStarted | AssistantSaid)], name
                assert len([e for e in events_of(log) if isinstance(e, TurnSettled)]) <= 1
        assert not [e for e in events_of(logs["alice"]) if isinstance(e, ChildStarted)][4:]
        assert (await completes(session, "more")).text == "Next."


async def test_the_call_of_a_crashed_parent_names_its_sub_agents_and_says_unknown() -> None:
    async with a_world(SCRIPT, tools=TOOLS) as world:
        session = await world.session()
        await session.send("go")
        await held(world, "ann", "ben")
        store = MemoryStore()
        store.restore(world.store.snapshot())
    async with a_world(SCRIPT[-3:], tools=TOOLS, store=store) as world:
        session = await world.session()
        await until_idle(session)
        logs = await check_family(world)
        assert len(logs) == 4
        for log in logs.values():
            settled = [e.outcome for e in events_of(log) if isinstance(e, TurnSettled)]
            assert settled == [TurnOutcome.CRASHED]
        ended = next(e for e in events_of(logs["alice"]) if isinstance(e, CallEnded))
        assert ended.result.status is CallStatus.UNKNOWN
        for child in ("alice/t1_1_1.1: crashed", "alice/t1_1_1.2: crashed"):
            assert child in str(ended.result.content)
        assert world.in_memory[0] == "alice"


async def test_a_detached_one_that_crashed_is_told_as_a_message() -> None:
    script = SCRIPT[8:11]
    async with a_world(script, tools=TOOLS) as world:
        session = await world.session()
        await completes(session, "later")
        await held(world, "cat")
        store = MemoryStore()
        store.restore(world.store.snapshot())
    async with a_world([Answer([Say("Heard.")])], tools=TOOLS, store=store) as world:
        session = await world.session()
        # A restart is not the user's word to go on: it is told with their next message.
        await wait_for(session, ChildEnded)
        assert (await completes(session, "And?")).text == "Heard."
        log = events_of(await session.events())
        news = [e.message for e in log if isinstance(e, MessageAccepted)][-2]
        assert news.sender == "background"
        assert news.text.startswith("[The sub-agent in the background that was to: cat]\n")
        assert "crashed" in news.text
        await check_family(world)


@pytest.fixture
async def held_store() -> HeldStore:
    return HeldStore()


async def test_a_store_that_fails_for_a_sub_agent_alone_ends_that_one_and_the_parent_goes_on(
    held_store: HeldStore,
) -> None:
    async with a_world(SCRIPT, tools=TOOLS, store=held_store) as world:
        session = await world.session()
        held_store.fail_next(SessionCreated)
        sent = await session.send("go")
        await until(lambda: not held_store._failing)
        await wait_for(session, ChildEnded)
        for gate in ("ann", "ben"):
            world.model.gate(gate).open()
        assert (await answered(sent)).text == "Went."
        outcomes = [
            e.outcome for e in events_of(await session.events()) if isinstance(e, ChildEnded)
        ]
        assert TurnOutcome.CRASHED in outcomes
        await until(lambda: world.in_memory == ("alice",))
        await check_family(world)


async def test_a_store_that_fails_for_the_root_stops_the_tree_and_settles_all_of_it(
    held_store: HeldStore,
) -> None:
    async with a_world(SCRIPT, tools=TOOLS, store=held_store) as world:
        session = await world.session()
        await session.send("go")
        await held(world, "ann", "ben")
        held_store.fail_next(MessageAccepted)
        with anyio.fail_after(WITHIN_S), pytest.raises(Exception, match="could not be stored"):
            await session.send("one more")
        await wait_for(session, TurnSettled)
        await until(lambda: [n for n in world.in_memory if n != "alice"] == [])
        logs = await check_family(world)
        assert len(logs) == 4
        assert not [play for play in world.model.plays if play.outcome == "playing"]


class HeldHeads(HeldStore):
    """Its looks at the head of a sub-agent can be held, each at a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[Gate] = []

    async def head(self, session: str) -> SessionHead | None:
        if is_child(session) and self.gates:
            await self.gates.pop(0)()
        return await super().head(session)

    async def is_at(self, session: str) -> tuple[int, int]:
        """The epoch and the end of its log."""
        head = await super().head(session)
        assert head is not None
        return head.epoch, head.seq


TWO = [delegating("go", "ann", "ben"), holding("ann"), holding("ben")]


async def fail_one_of_two(world: World, store: HeldHeads) -> str:
    """One of two sub-agents cannot be stored, and the engine begins to bring it back. Its id."""
    store.fail_next(SessionCreated)
    gate = store.gates[0]
    session = await world.session()
    await session.send("go")
    with anyio.fail_after(WITHIN_S):
        await gate.reached.wait()
        await wait_for(session, ChildEnded)
    return next(v.id for v in await session.children() if v.state is ChildState.ENDED)


async def test_a_sub_agent_that_is_brought_back_takes_no_root_from_another_owner() -> None:
    store = HeldHeads()
    gate = Gate()
    store.gates = [gate]
    async with a_world(TWO, tools=TOOLS, store=store) as world:
        child = await fail_one_of_two(world, store)
        await store.claim("alice")
        with pytest.raises(JournalBroken):
            await (await world.session()).send("one more")
        await until(lambda: world.in_memory == ())
        before = await store.is_at(child)
        gate.opened.set()
        await a_while()
        assert await store.is_at(child) == before
        assert world.in_memory == ()


async def test_a_sub_agent_is_brought_back_under_the_epoch_of_its_own_root_alone() -> None:
    store = HeldHeads()
    first, second = Gate(), Gate()
    store.gates = [first, second]
    async with a_world(TWO, tools=TOOLS, store=store) as world:
        child = await fail_one_of_two(world, store)
        first.opened.set()
        await second.reached.wait()
        await store.claim("alice")
        before = await store.is_at(child)
        second.opened.set()
        await a_while()
        assert await store.is_at(child) == before
        assert child not in world.in_memory


async def test_what_another_owner_claims_while_it_is_recovered_is_left_to_that_one() -> None:
    store = HeldHeads()
    async with a_world(TWO, tools=TOOLS, store=store) as world:
        await (await world.session()).send("go")
        await held(world, "ann", "ben")
        crashed = store.snapshot()
    store.restore(crashed)
    gate = Gate()
    store.gates = [gate]
    before = dict[str, tuple[int, int]]()

    async def take_over() -> None:
        await gate.reached.wait()
        await store.claim("alice")
        before.update({name: await store.is_at(name) for name in crashed.sessions})
        gate.opened.set()

    async with anyio.create_task_group() as group:
        group.start_soon(take_over)
        with anyio.fail_after(WITHIN_S):
            async with a_world(store=store) as world:
                assert world.in_memory == ()
    assert {name: await store.is_at(name) for name in crashed.sessions} == before


class HeldCreation(HeldStore):
    """The next sub-agent is made when `gate` is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        if self.gate is not None and is_child(session):
            gate, self.gate = self.gate, None
            await gate()
        return await super().create(session, root=root, at=at, epoch=epoch)


async def check_all_stop(world: World) -> None:
    """Whoever wrote first was told, and the root, whose own write is held, need not be."""
    try:
        await until(lambda: world.in_memory == ())
        await until(lambda: not [p for p in world.model.plays if p.outcome == "playing"])
    finally:
        world.held_store.release()


async def test_a_sub_agent_that_is_told_of_another_owner_stops_the_whole_tree() -> None:
    async with a_world(TWO, tools=TOOLS) as world:
        await (await world.session()).send("go")
        await held(world, "ann", "ben")
        world.held_store.hold(ChildEnded)
        await world.store.claim("alice")
        world.model.gate("ann").open()
        await check_all_stop(world)


async def test_a_sub_agent_that_cannot_be_made_under_another_owner_stops_the_whole_tree() -> None:
    store = HeldCreation()
    gate = store.gate = Gate()
    async with a_world(TWO, tools=TOOLS, store=store) as world:
        await (await world.session()).send("go")
        with anyio.fail_after(WITHIN_S):
            await gate.reached.wait()
        await until(lambda: len(world.model.plays) == 2)
        store.hold(ChildEnded)
        await store.claim("alice")
        gate.opened.set()
        await check_all_stop(world)


async def test_a_root_on_its_way_back_stays_away_if_a_sub_agent_is_told_of_another_owner() -> None:
    async with a_world(TWO, tools=TOOLS) as world:
        session = await world.session()
        await session.send("go")
        await held(world, "ann", "ben")
        world.held_store.hold(TurnSettled)
        world.held_store.fail_next(MessageAccepted)
        with anyio.fail_after(WITHIN_S), pytest.raises(JournalBroken):
            await session.send("one more")
        with anyio.fail_after(WITHIN_S):
            await world.held_store.reached.wait()
        taken = await world.store.claim("alice")
        world.held_store.release()
        await until(lambda: world.in_memory == ())
        await a_while()
        assert world.in_memory == ()
        now = await world.store.head("alice")
        assert taken is not None
        assert now is not None
        assert now.epoch == taken.epoch
