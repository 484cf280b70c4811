"""A check at work: an engine with a scripted model, a channel on a platform, and a restart."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from bargein.channels.access import ChannelAccess
from bargein.channels.contract import ChatAddress, Person
from bargein.channels.hub import ChannelHub
from bargein.channels.rows import Ledger, MemoryRows, Rows
from bargein.contracts.event import MessageAccepted, MessagesTaken, Recorded, TurnStarted
from bargein.models.script import Answer, Script, Step
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.stores.memory import MemoryStore
from bargein.testing.channel_conformance.platform import (
    ALICE,
    GROUP,
    PRIVATE,
    BotMessage,
    PlatformUnderTest,
)
from bargein.testing.engine_invariants import check_log
from bargein.tools import DEFAULT_POLICY, Policy, ToolRegistry

CHECK_S = 50.0
SOON_S = 20.0


class ChannelScene:
    """`model` is the one of the program that runs now."""

    def __init__(self, platform: PlatformUnderTest, clock: Any = None) -> None:
        self.platform = platform
        self.clock = clock
        self.store = MemoryStore()
        self.rows: Rows = MemoryRows()
        self.name = platform.open_channel().name
        self.model: ScriptedModel
        self.engine: SessionEngine

    @asynccontextmanager
    async def program(
        self,
        script: Sequence[Answer | Sequence[Step]],
        *,
        tools: Iterable[Any] = (),
        policy: Policy = DEFAULT_POLICY,
        repeat: bool = False,
    ) -> AsyncIterator[None]:
        """The program runs inside; it ends at once at the end, in whatever it is doing."""
        self.model = ScriptedModel(Script(list(script), repeat=repeat))
        agent = loop_agent(self.model, ToolRegistry(list(tools), policy=policy), LoopSettings())
        options = {} if self.clock is None else {"clock": self.clock}
        limits = Limits(settle_s=10.0, call_grace_s=8.0, gather_s=0.05)
        engine = SessionEngine(agent, self.store, limits=limits, **options)
        async with engine:
            self.engine = engine
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ChannelHub(engine, self.rows).run, self.platform.open_channel())
                yield
                tasks.cancel_scope.cancel()

    def crash(self) -> "ChannelScene":
        """The same data as it is on the disk at this moment, for a program that begins anew."""
        after = ChannelScene(self.platform, self.clock)
        after.store.restore(self.store.snapshot())
        rows = MemoryRows()
        assert isinstance(self.rows, MemoryRows)
        rows._rows = dict(self.rows._rows)
        after.rows = rows
        return after

    async def pair(self, chat: ChatAddress = PRIVATE, person: Person = ALICE) -> None:
        access = ChannelAccess(Ledger(self.rows, self.name))
        code = await access.make_code(chat.kind)
        assert await access.try_code(code, chat, person)

    # Waiting, for what must come

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Looks again whenever others have had their turn; time may be virtual."""
        with anyio.move_on_after(SOON_S):
            while not holds():  # noqa: ASYNC110 - a platform has no event for what it shows
                await anyio.sleep(0.005)
            return
        seen = [message.texts for message in self.platform.shown(PRIVATE)]
        raise AssertionError(f"{what}: not within {SOON_S:g} s. Shown: {seen}")

    async def sees(
        self, words: str, chat: ChatAddress = PRIVATE, *, count: int = 1
    ) -> list[BotMessage]:
        """Waits until so many messages of the bot's have these words; there must not be more."""
        await self.until(lambda: len(self._with(words, chat)) >= count, f"{words!r} is shown")
        return self._with(words, chat)

    def _with(self, words: str, chat: ChatAddress) -> list[BotMessage]:
        return [each for each in self.platform.shown(chat) if words in each.text]

    async def quiet(self, seconds: float = 5.0) -> None:
        """Long enough for everything that would come."""
        await anyio.sleep(seconds)

    async def sessions(self) -> list[str]:
        return [head.id for head in await self.store.sessions(limit=10_000)]

    # What must be true

    async def check_session(self, session: str, *, messages: int, turns: int | None = None) -> None:
        """The laws; so many messages, none twice; so many turns that took them."""
        log = await self.store.events(session)
        check_log(log, session)
        accepted = [each.event.message for each in log if isinstance(each.event, MessageAccepted)]
        ids = [message.client_id for message in accepted]
        assert len(ids) == len(set(ids)) == messages, f"{messages} messages expected: {ids}"
        started = [each for each in log if isinstance(each.event, TurnStarted)]
        assert turns is None or len(started) == turns, f"{turns} turns expected: {started}"

    async def taken(self, session: str) -> list[tuple[str, ...]]:
        log: list[Recorded] = await self.store.events(session)
        kinds = (TurnStarted, MessagesTaken)
        return [each.event.messages for each in log if isinstance(each.event, kinds)]


class ChannelCheck:
    """A named check. `await check(platform)`; on virtual time pass the run's clock."""

    def __init__(self, function: Callable[[ChannelScene], Awaitable[None]]) -> None:
        self._function = function
        self.name = getattr(function, "__name__", "check")

    def __str__(self) -> str:
        return self.name

    async def __call__(self, platform: PlatformUnderTest, clock: Any = None) -> None:
        with anyio.fail_after(CHECK_S * 100):
            scene = ChannelScene(platform, clock)
            await scene.pair()
            await self._function(scene)


__all__ = ["ALICE", "GROUP", "PRIVATE", "ChannelCheck", "ChannelScene"]
