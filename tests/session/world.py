"""An engine with everything around it under control: a store that can be held, slowed and broken, a
scripted model with gates, tools and hooks that wait to be let on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from bargein.contracts.budget import Budget
from bargein.contracts.event import Event, Recorded, TurnOutcome
from bargein.contracts.store import Commit, StoreFailed
from bargein.models.retry import RetryPolicy
from bargein.models.script import Answer, Step
from bargein.models.scripted import ScriptedModel
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.broadcast import Observe, Watched
from bargein.session.engine import SessionEngine
from bargein.session.hooks import Hooks
from bargein.session.limits import Limits
from bargein.session.results import TurnResult
from bargein.session.session import Sent, Session
from bargein.session.turn import AgentFunction
from bargein.stores.memory import MemoryStore
from bargein.testing.seeded import Backend, Seeded, run_seeded
from bargein.tools import ToolRegistry
from tests.session.laws import check_log, check_requests

CONFIG = Config(Path("unused"), ModelSettings(), {})

# So long that nothing is given up because the machine was busy for a moment.
LIMITS = Limits(
    settle_s=10.0,
    call_grace_s=8.0,
    call_grace_s_max=8.0,
    hook_s=20.0,
    store_s=10.0,
    gather_s=0.03,
)

# For tests in which something has to be given up.
SOON = msgspec.structs.replace(LIMITS, settle_s=0.4, call_grace_s=0.25, call_grace_s_max=0.25)

# How long something is waited for that must come. Only a failure takes as long.
WITHIN_S = 30.0

Script = Sequence[Answer | Sequence[Step]]


class HeldStore(MemoryStore):
    """A store in memory whose commits can be held, by what they write, and made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[type[Event], anyio.Event] = {}
        self._failing: list[type[Event]] = []
        self.reached = anyio.Event()
        self.commits: list[Commit] = []

    def hold(self, kind: type[Event]) -> None:
        """Let no commit through that writes such an event, until `release`."""
        self.reached = anyio.Event()
        self._held[kind] = anyio.Event()

    def release(self) -> None:
        held, self._held = self._held, {}
        for event in held.values():
            event.set()

    def fail_next(self, kind: type[Event]) -> None:
        """The next commit that writes such an event fails, and did not happen."""
        self._failing.append(kind)

    async def commit_one(self, commit: Commit) -> None:
        kinds = {type(event) for event in commit.events}
        for kind, let_on in list(self._held.items()):
            if kind in kinds:
                self.reached.set()
                await let_on.wait()
        for kind in list(self._failing):
            if kind in kinds:
                self._failing.remove(kind)
                raise StoreFailed("the disk is full, as the test says", retryable=True)
        self.commits.append(commit)
        await super().commit_one(commit)


@dataclass
class World:
    """One engine. `session` is the one the test is about."""

    engine: Engine
    model: ScriptedModel
    store: Any
    sessions: dict[str, Session] = field(default_factory=dict)

    async def session(self, name: str = "alice") -> Session:
        if name not in self.sessions:
            self.sessions[name] = await self.engine.session(name)
        return self.sessions[name]

    @property
    def held_store(self) -> HeldStore:
        assert isinstance(self.store, HeldStore)
        return self.store

    @property
    def in_memory(self) -> tuple[str, ...]:
        inner = self.engine._engine
        return inner.in_memory if inner is not None else ()

    async def log(self, name: str = "alice") -> list[Recorded]:
        found: list[Recorded] = await self.store.events(name)
        return found

    async def check(self, name: str = "alice", *, busy: bool = False) -> None:
        """The laws that can be read from a log, and from what the model was asked."""
        session = await self.session(name)
        waiting = [item.message.id for item in await session.inbox()]
        check_log(await session.events(), waiting=waiting, busy=busy)
        check_requests(self.model.requests)


@asynccontextmanager
async def a_world(
    script: Script = (),
    *,
    tools: Sequence[Callable[..., Any] | Any] = (),
    agent: AgentFunction | None = None,
    store: Any = None,
    hooks: Hooks | None = None,
    limits: Limits = LIMITS,
    policy: Any = None,
    retry: RetryPolicy | None = None,
    sleep: Callable[[float], Any] = anyio.sleep,
    wrap: Callable[[AgentFunction], AgentFunction] | None = None,
    context_tokens: int | None = None,
    budget: Budget | None = None,
    titles: bool = False,
    observe: Observe | None = None,
    **changes: Any,
) -> AsyncIterator[World]:
    """`wrap` makes an agent of one's own from the built-in one. `store`: in memory unless given."""
    # A model by the name of a script is not asked for titles.
    name = "model" if titles else "scripted"
    model = ScriptedModel(
        script, name=name, policy=retry, sleep=sleep, context_tokens=context_tokens
    )
    store = store or HeldStore()
    limits = msgspec.structs.replace(limits, **changes)
    if wrap is not None:
        agent = wrap(loop_agent(model, ToolRegistry(tools), LoopSettings()))
    budget = budget or LoopSettings().budget
    engine = Engine(
        agent or Agent(model=model, tools=tools, policy=policy, budget=budget, titles=titles),
        store=store,
        config=CONFIG,
        hooks=hooks,
        limits=limits,
        observe=observe,
    )
    async with engine:
        yield World(engine, model, store)


def on_virtual_time(
    play: Callable[[Session, ScriptedModel], Awaitable[None]],
    script: Script,
    *,
    backend: Backend,
    tools: Sequence[Callable[..., Any]] = (),
    settings: LoopSettings | None = None,
    limits: Limits = LIMITS,
) -> None:
    """For what is about time itself: here it passes only while nothing can be done, so that a
    machine which is busy for a moment changes nothing."""

    async def main(run: Seeded) -> None:
        model = ScriptedModel(script)
        agent = loop_agent(model, ToolRegistry(tools), settings or LoopSettings())
        async with SessionEngine(agent, HeldStore(), limits=limits, clock=run.clock) as engine:
            session = await engine.session("alice")
            await play(session, model)
            check_requests(model.requests)

    run_seeded(main, 1, backend=backend)


class Gate:
    """A place where the code under test waits until the test lets it on."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.opened = anyio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def answered(sent: Sent, within_s: float = WITHIN_S) -> TurnResult:
    with anyio.fail_after(within_s):
        return await sent.result()


async def completes(session: Session, text: str, **options: Any) -> TurnResult:
    """Send a message and see it answered as if nothing had ever happened (law 9)."""
    with anyio.fail_after(WITHIN_S):
        result: TurnResult = await (await session.send(text, **options)).result()
    assert result.outcome is TurnOutcome.COMPLETED, result
    return result


async def wait_for(session: Session, kind: type[Any], count: int = 1) -> list[Recorded]:
    """Until the log of the session has so many events of this kind."""
    found: list[Recorded] = []
    with anyio.fail_after(WITHIN_S):
        async with aclosing(session.watch(after=0)) as events:
            async for each in events:
                if isinstance(each, Recorded) and isinstance(each.event, kind):
                    found.append(each)
                    if len(found) >= count:
                        return found
    raise AssertionError(f"the session ended before a {kind.__name__}")


@asynccontextmanager
async def watching(session: Session, after: int | None = None) -> AsyncIterator[list[Watched]]:
    """What is seen of a session while the block runs."""
    seen: list[Watched] = []

    async def watch() -> None:
        async with aclosing(session.watch(after=after)) as events:
            async for each in events:
                seen.append(each)  # noqa: PERF401 - to be looked at while it grows

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await a_while()
        yield seen
        group.cancel_scope.cancel()


async def a_while() -> None:
    """Long enough for all that can go on without us to have gone on."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait for something that has no event of its own, such as a thread."""
    with anyio.fail_after(within_s):
        while not condition():
            with anyio.move_on_after(0.002):
                await anyio.sleep_forever()


async def until_idle(session: Session) -> None:
    """Until no turn runs and the end of the last one is in the log."""
    with anyio.fail_after(WITHIN_S):
        while (await session.state()).busy:
            with anyio.move_on_after(0.002):
                await anyio.sleep_forever()
        await session.settled()
