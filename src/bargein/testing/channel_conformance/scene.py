"""A check at work: an engine with a scripted model, a channel on a platform, and a restart."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from bargein.channels.access import ChannelAccess
from bargein.channels.contract import ChatAddress, Person
from bargein.channels.conversation import session_id_of
from bargein.channels.hub import ChannelHub
from bargein.channels.rows import Ledger, MemoryRows, Rows
from bargein.contracts.event import (
    MessageAccepted,
    MessagesTaken,
    Recorded,
    TurnSettled,
    TurnStarted,
)
from bargein.models.script import Answer, Script, Step
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.stores.memory import MemoryStore
from bargein.testing.channel_conformance.platform import (
    BotMessage,
    PlatformUnderTest,
)
from bargein.testing.engine_invariants import check_log
from bargein.tools import DEFAULT_POLICY, Policy, ToolRegistry

CHECK_S = 50.0
SOON_S = 20.0
STILL = 5


class ChannelScene:
    """`model` is the one of the program that runs now."""

    def __init__(self, platform: PlatformUnderTest, clock: Any = None) -> None:
        self.platform = platform
        self.clock = clock
        self.store = MemoryStore()
        self.rows: Rows = MemoryRows()
        self.name = platform.name
        self.hub: ChannelHub
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
                self.hub = ChannelHub(engine, self.rows, now=self.now)
                tasks.start_soon(self.hub.run, self.platform.open_channel())
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

    def now(self) -> float:
        """The time of day, also on virtual time."""
        return time.time() if self.clock is None else float(self.clock.now())

    @property
    def session(self) -> str:
        """The session of Alice's private chat."""
        return self.session_of(self.platform.private)

    def session_of(self, chat: ChatAddress, number: int = 1) -> str:
        return session_id_of(self.name, chat, number)

    async def pair(self, chat: ChatAddress | None = None, person: Person | None = None) -> None:
        """Alice in private, if nothing else is said."""
        chat, person = chat or self.platform.private, person or self.platform.alice
        access = ChannelAccess(Ledger(self.rows, self.name), self.now)
        code = await access.make_code(chat.kind)
        assert await access.try_code(code, chat, person)

    # Waiting, for what must come

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Looks again whenever others have had their turn; time may be virtual."""
        with anyio.move_on_after(SOON_S):
            while not holds():  # noqa: ASYNC110 - a platform has no event for what it shows
                await anyio.sleep(0.005)
            return
        seen = [message.texts for message in self.platform.shown(self.platform.private)]
        raise AssertionError(f"{what}: not within {SOON_S:g} s. Shown: {seen}")

    async def until_settled(self, turns: int) -> None:
        """Waits until so many turns of Alice's private chat have settled, durably."""
        with anyio.fail_after(SOON_S):
            while True:
                log = await self.store.events(self.session)
                if sum(isinstance(each.event, TurnSettled) for each in log) >= turns:
                    return
                await anyio.sleep(0.005)

    async def sees(
        self, words: str, chat: ChatAddress | None = None, *, count: int = 1
    ) -> list[BotMessage]:
        """Waits until so many messages of the bot's have these words."""
        chat = chat or self.platform.private
        await self.until(lambda: len(self._with(words, chat)) >= count, f"{words!r} is shown")
        return self._with(words, chat)

    def _with(self, words: str, chat: ChatAddress) -> list[BotMessage]:
        return [each for each in self.platform.shown(chat) if words in each.text]

    async def quiet(self) -> None:
        """Until everything has come that would come. On virtual time that is a while. On real time
        it is when the platform has delivered everything, nothing waits to be handled or sent, and
        all of that is still so a moment later."""
        if self.clock is not None:
            await anyio.sleep(5.0)
            return
        still, status, is_delivered = 0, None, False
        with anyio.move_on_after(SOON_S):
            while still < STILL:
                await anyio.sleep(0.02)
                status = self.hub.statuses().get(self.name)
                is_delivered = await self.platform.is_delivered()
                busy = status is not None and (status.unhandled or status.unsent)
                still = 0 if busy or not is_delivered else still + 1
            return
        raise AssertionError(f"no rest within {SOON_S:g} s: {status}, {is_delivered=}")

    async def quiet_out(self) -> None:
        """Until nothing waits to be sent, while a turn may run."""
        with anyio.fail_after(SOON_S):
            while (status := self.hub.statuses().get(self.name)) is None or status.unsent:  # noqa: ASYNC110
                await anyio.sleep(0.005)

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


__all__ = ["ChannelCheck", "ChannelScene"]
