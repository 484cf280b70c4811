"""Scripts for trees of sub-agents, and what must be true of all their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from bargein.contracts.event import ChildEnded, ChildStarted, Recorded
from bargein.contracts.live import ChildState
from bargein.models.script import Answer, Call, Say, Step, Wait
from bargein.session.session import Session
from bargein.testing.engine_invariants import check_log
from tests.session.world import WITHIN_S, World, wait_for


def delegating(when: str, *tasks: str | Mapping[str, object], mode: str = "cascade") -> Answer:
    """Asked for `when`, it gives these tasks to sub-agents."""
    given = [{"task": each} if isinstance(each, str) else each for each in tasks]
    arguments: dict[str, object] = {"tasks": given, "mode": mode}
    return Answer([Say("Delegating. "), Call("delegate", arguments)], when=when)


def saying(when: str, *steps: Step) -> Answer:
    return Answer(steps, when=when)


def holding(when: str) -> Answer:
    """It says something, and then waits at the gate of its name."""
    return Answer([Say(f"{when} began. "), Wait(when), Say(f"{when} done.")], when=when)


async def started(session: Session, count: int) -> list[str]:
    """The ids of so many sub-agents of a session, as soon as they are in its log."""
    found = await wait_for(session, ChildStarted, count)
    return [each.event.child for each in found if isinstance(each.event, ChildStarted)]


async def held(world: World, *gates: str) -> None:
    with anyio.fail_after(WITHIN_S):
        for gate in gates:
            await world.model.gate(gate).reached()


async def check_family(world: World, name: str = "alice") -> dict[str, Sequence[Recorded]]:
    """The laws over the logs of a session and of all below it, at rest: each sub-agent that was
    begun has ended, in its parent's log and in its own."""
    logs: dict[str, Sequence[Recorded]] = {}
    waiting = [name]
    while waiting:
        session = await world.engine.session(waiting.pop())
        logs[session.id] = log = await session.events()
        check_log(log, session.id).check_all_ran()
        views = await session.children()
        assert all(view.state is ChildState.ENDED for view in views), views
        begun = [e.event.child for e in log if isinstance(e.event, ChildStarted)]
        ended = [e.event.child for e in log if isinstance(e.event, ChildEnded)]
        assert sorted(begun) == sorted(ended)
        for view in views:
            if await world.store.head(view.id) is not None:
                waiting.append(view.id)
            else:
                assert "before it began" in view.summary or "not started" in view.summary, view
    assert (await world.session(name)).id in world.in_memory
    return logs
