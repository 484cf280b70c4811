"""What a row of the table is played on: one session in some phase of a turn, another one beside it
that must not notice, and a look at what the process has before and after."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from bargein.cancel import abandoned
from bargein.contracts.live import TextDelta
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Text
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import CallResult, PlannedCall
from bargein.models.script import Answer, Say, Wait
from bargein.session.hooks import Hooks
from bargein.session.results import TurnResult
from bargein.session.session import Sent, Session
from tests.session.world import Gate, HeldStore, World, answered, until, watching

WORDS = [f"w{n} " for n in range(12)]
BYSTANDER = Answer(
    [Say("".join(WORDS), pace_s=0.001), Wait("bystander"), Say("end")], when="bystander"
)
BYSTANDER_TEXT = "".join(WORDS) + "end"
FALL_BACK = [Answer([Say("Next")]) for _ in range(6)]


class Hold(Gate):
    """A gate for tasks and for threads."""

    def __init__(self) -> None:
        super().__init__()
        self.thread_reached = threading.Event()
        self.thread_opened = threading.Event()

    def reach_in_thread(self) -> None:
        self.thread_reached.set()

    async def wait_reached(self) -> None:
        await until(lambda: self.reached.is_set() or self.thread_reached.is_set())

    def open(self) -> None:
        self.opened.set()
        self.thread_opened.set()


class HeldHooks(Hooks):
    """Waits in one hook of the first turn of the session that the row is about."""

    def __init__(self, held: str, hold: Hold) -> None:
        self._held = held
        self._hold = hold

    async def _wait(self, name: str, session: str) -> None:
        if name == self._held and session == "alice" and not self._hold.reached.is_set():
            await self._hold()

    async def turn_started(self, session: str, turn: str) -> None:
        await self._wait("turn_started", session)

    async def message(self, session: str, message: Message) -> None:
        await self._wait("message", session)

    async def before_tool(self, session: str, planned: PlannedCall) -> None:
        await self._wait("before_tool", session)

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None:
        await self._wait("after_tool", session)

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        await self._wait("enrich", session)
        return (Text("described"),)


@dataclass
class Stage:
    """`hold` is where the phase is held. A cause leaves what it was given in `receipt` and
    `message`."""

    world: World
    tasks: TaskGroup
    hold: Hold
    session: Session
    sent: Sent | None = None
    receipt: Receipt | None = None
    message: Sent | None = None
    bystander: Sent | None = None
    seen: list[object] = field(default_factory=list)

    @property
    def store(self) -> HeldStore:
        return self.world.held_store

    async def send(self) -> None:
        """The message that the first turn is about."""
        photo = Attachment("photo.jpg", "image/jpeg", b"...")
        self.sent = await self.session.send("go", attachments=[photo])

    async def send_in_background(self) -> None:
        self.tasks.start_soon(self.send)
        await self.store.reached.wait()

    def let_go(self) -> None:
        """Of everything that was held, but the bystander."""
        self.hold.open()
        self.world.model.gate("hold").open()
        self.store.release()

    def has_landed(self) -> bool:
        """Whether the turn that runs is cancelled by now, or none runs."""
        inner = self.world.engine._engine
        actor = inner.actor_in_memory("alice") if inner is not None else None
        return actor is None or actor.turn is None or actor.turn.token.cancelled

    async def first_result(self) -> TurnResult:
        await until(lambda: self.sent is not None)
        assert self.sent is not None
        return await answered(self.sent)

    async def start_bystander(self) -> None:
        session = await self.world.session("bob")

        async def watch() -> None:
            async with watching(session) as seen:
                self.seen = seen  # type: ignore[assignment]
                watched.set()
                await anyio.sleep_forever()

        watched = anyio.Event()
        self.tasks.start_soon(watch)
        await watched.wait()
        self.bystander = await session.send("bystander")
        await until(lambda: any(isinstance(each, TextDelta) for each in self.seen))

    async def check_bystander(self) -> None:
        """It was not disturbed: every part of its answer came, once, in order."""
        assert self.bystander is not None
        self.world.model.gate("bystander").open()
        result = await answered(self.bystander)
        assert (result.outcome, result.text) == ("completed", BYSTANDER_TEXT)
        await until(lambda: self.seen_text() == BYSTANDER_TEXT)
        await self.world.check("bob")

    def seen_text(self) -> str:
        return "".join(each.text for each in self.seen if isinstance(each, TextDelta))


Footprint = tuple[frozenset[int], frozenset[threading.Thread], int]

# Made once for the whole process, and kept.
KEPT = ("bargein-clock", "bargein-callbacks", "AnyIO worker thread", "Trio thread")


def footprint() -> Footprint:
    tasks = frozenset(task.id for task in anyio.get_running_tasks())
    threads = frozenset(t for t in threading.enumerate() if not t.name.startswith(KEPT))
    return tasks, threads, len(os.listdir("/proc/self/fd"))


async def check_nothing_left(before: Footprint) -> None:
    def left() -> tuple[object, ...]:
        now = footprint()
        return (now[0] - before[0], now[1] - before[1], max(0, now[2] - before[2]))

    try:
        await until(lambda: left() == (frozenset(), frozenset(), 0) and not abandoned())
    except TimeoutError:
        raise AssertionError(
            f"left: {left()}, {abandoned()}, {anyio.get_running_tasks()}"
        ) from None


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    before = footprint()
    yield
    await check_nothing_left(before)


Act = Callable[[Stage], Awaitable[None]]
