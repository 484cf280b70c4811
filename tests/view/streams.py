"""What readers of real sessions see, recorded and live, in order: the material of these tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial

import anyio
import msgspec

from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    QuestionAsked,
    Recorded,
    TurnSettled,
)
from bargein.models.script import Answer, Call, Say, Think, Wait
from bargein.session.broadcast import Watched
from bargein.session.engine import SessionEngine
from bargein.session.session import Session
from bargein.stores.memory import MemoryStore
from bargein.testing.seeded import Backend, Seeded
from bargein.testing.simulate import simulate
from bargein.testing.simulation.agent import SimulatedAgent
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.world import World as SimulatedWorld
from bargein.tools import Decision, Policy, Rule, ToolContext
from bargein.tools.delegate import delegate_tool
from tests.session.world import Gate, Script, World, a_world, answered, until_idle, wait_for

Stream = list[Watched]
Streams = dict[str, Stream]


class Recorder:
    """An observer that keeps everything, by session."""

    def __init__(self) -> None:
        self.streams: Streams = {}

    def __call__(self, session: str, shown: Watched) -> None:
        self.streams.setdefault(session, []).append(shown)

    def whole(self, session: str, log: list[Recorded]) -> Stream:
        """With what a reader that comes back after a crash gets from the log in between."""
        known = {each.seq for each in self.streams[session] if isinstance(each, Recorded)}
        missed = {each.seq: each for each in log if each.seq not in known}
        stream: Stream = []
        last = 0
        for each in self.streams[session]:
            if isinstance(each, Recorded):
                stream += [missed[seq] for seq in range(last + 1, each.seq) if seq in missed]
                last = each.seq
            stream.append(each)
        return stream + [each for seq, each in missed.items() if seq > last]


@cache
def simulated(seed: int, backend: Backend = "trio") -> tuple[tuple[str, Stream], ...]:
    """The sessions of one world from a seed, their crashes and recoveries included."""
    recorder = Recorder()
    worlds: list[SimulatedWorld] = []

    class Observed(SimulatedWorld):
        def __init__(self, plan: Plan, run: Seeded) -> None:
            super().__init__(plan, run)
            worlds.append(self)

        def make_engine(self, life: Life) -> SessionEngine:
            def observe(session: str, shown: Watched) -> None:
                if not life.dead:
                    recorder(session, shown)

            return SessionEngine(
                self.make_agent(life),
                life.store,
                limits=self.engine_limits,
                compact=SimulatedAgent(life).compact,
                titles=self.make_titles(life),
                clock=self.clock,
                now=self.now,
                decide=partial(self._watched, life),
                observe=observe,
            )

    simulate(seed, backend=backend, make_world=Observed)
    disk = worlds[0].disk
    assert isinstance(disk, MemoryStore)
    logs = anyio.run(_logs, disk, list(recorder.streams))
    return tuple((name, recorder.whole(name, logs[name])) for name in recorder.streams)


async def _logs(disk: MemoryStore, sessions: list[str]) -> dict[str, list[Recorded]]:
    return {session: await disk.events(session) for session in sessions}


# One session in which much happens, by the scripted engine.

SCRIPT: Script = [
    [Think("Hm. "), Say("I read. "), Call("read", {"path": "a.txt"}), Call("write", {"name": "a"})],
    [Say("Written. "), Wait("steer")],
    [Say("More. "), Call("long", {"text": "three lines"}), Call("absent", {})],
    [Say("In the background. "), Wait("stop")],
    [Say("Careful. "), Call("careful", {})],
    [Say("Asked once more. "), Call("careful", {})],
    [Say("Enough. "), Wait("redirect")],
    [Say("Redirected. "), Wait("rollback")],
    [Say("Rolled back.")],
    [Say("Queued.")],
    *([Say("Told.")] for _ in range(6)),
]


class CallGate(Gate):
    call_id = ""


POLICY = Policy((Rule(Decision.ASK, "careful"),))


async def much() -> Streams:
    """Steers, calls with and without effects, a refused one, a detached one, stops, holds, edits,
    questions that are answered and dropped, a redirect, a rollback, a queue, an undo."""
    recorder, gate = Recorder(), CallGate()

    async def read(path: str) -> str:
        """Read."""
        return f"read {path}"

    async def write(name: str) -> str:
        """Write."""
        return f"wrote {name}"

    async def long(text: str, context: ToolContext) -> str:
        """Take long."""
        for number in range(3):
            context.emit(f"line {number}\n")
        gate.call_id = context.call_id
        await gate()
        return text

    async def careful() -> str:
        """Needs a yes."""
        return "done"

    async with a_world(
        SCRIPT, tools=[read, write, long, careful], policy=POLICY, observe=recorder
    ) as world:
        session = await world.session()
        await _steer_and_detach(world, session, gate)
        await _stop_and_hold(world, session)
        await _ask(session)
        await _redirect_and_roll_back(world, session)
        gate.opened.set()
        await wait_for(session, BackgroundEnded)
        await until_idle(session)
        if (await session.state()).held:
            await session.continue_()
            await until_idle(session)
        await session.undo()
        await session.rename("A title")
    return recorder.streams


async def _steer_and_detach(world: World, session: Session, gate: CallGate) -> None:
    await session.send("go")
    await world.model.gate("steer").reached()
    await session.send("this way")
    with anyio.fail_after(20):
        await gate.reached.wait()
    await session.detach(gate.call_id)
    await wait_for(session, CallDetached)
    await world.model.gate("stop").reached()


async def _stop_and_hold(world: World, session: Session) -> None:
    for words in ("one", "two", "three"):
        await session.send(words, mode="queue")
    first, second, third = [item.message.id for item in await session.inbox()]
    await session.move(third, before=first)
    await session.edit(second, "two, edited")
    await session.interrupt()
    await session.withdraw(first)
    await until_idle(session)
    await session.continue_()


async def _ask(session: Session) -> None:
    (asked,) = await wait_for(session, QuestionAsked)
    assert isinstance(asked.event, QuestionAsked)
    await session.answer(asked.event.id, "allow")
    await wait_for(session, QuestionAsked, 2)
    await session.interrupt()
    await until_idle(session)


async def _redirect_and_roll_back(world: World, session: Session) -> None:
    await session.send("enough")
    await world.model.gate("redirect").reached()
    await session.send("instead", mode="interrupt")
    await world.model.gate("rollback").reached()
    sent = await session.send("forget that", mode="rollback")
    await answered(sent)
    await until_idle(session)


async def family() -> Streams:
    """Sub-agents of sub-agents, one of them stopped; and a compression."""
    recorder = Recorder()
    tasks: dict[str, object] = {"tasks": [{"task": "left"}, {"task": "right"}]}
    below: dict[str, object] = {"tasks": [{"task": "below"}]}
    script = [
        Answer([Say("I delegate. "), Call("delegate", tasks)], when="go"),
        Answer([Say("Left. "), Call("delegate", below)], when="left"),
        Answer([Say("Right."), Wait("right")], when="right"),
        Answer([Say("Below.")], when="below"),
        *(Answer([Say("Done.")]) for _ in range(8)),
    ]
    async with a_world(script, tools=[delegate_tool()], observe=recorder) as world:
        session = await world.session()
        sent = await session.send("go")
        await world.model.gate("right").reached()
        await wait_for(session, AssistantSaid)
        children = await session.children()
        right = next(child for child in children if child.task == "right")
        await session.interrupt(scope="child", target=right.id)
        await answered(sent)
        await session.compact()
        await wait_for(session, TurnSettled, 2)
        await until_idle(session)
    return recorder.streams


SCENES: dict[str, Callable[[], Awaitable[Streams]]] = {"much": much, "family": family}


def encoded(stream: Stream) -> list[object]:
    from bargein.server.references import event_ref

    return [msgspec.json.decode(msgspec.json.encode(event_ref(each))) for each in stream]
