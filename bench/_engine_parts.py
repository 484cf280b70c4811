"""What the parts of the engine's bench share: a model that talks on until it is stopped, the least
that does the same without an engine, and a thread that stops either."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import anyio

from bargein.cancel import Token
from bargein.contracts.model import (
    ModelRequest,
    ModelStream,
    Part,
    TextPart,
    ToolCall,
    ToolSchema,
    Usage,
)
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.contracts.tool import CallContext, CallResult, PlannedCall, Refused
from bargein.session.abort import Interrupt
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.limits import Limits
from bargein.session.session import Session
from bargein.session.turn import AgentFunction
from bench.stores import BareGroupCommit

PACE_S = 0.002
"""Between two words of an answer, as a fast provider sends them."""


async def words(pace_s: float) -> AsyncIterator[TextPart]:
    """The stream for both sides."""
    for number in count():
        await anyio.sleep(pace_s)
        yield TextPart(f"word {number} ")


class Talker:
    """A model that talks until it is cancelled. `on_word` is called with the number of words so
    far: 0 when it is asked."""

    name = "talker"
    context_tokens = None

    def __init__(self, pace_s: float, on_word: Callable[[int], object]) -> None:
        self._pace_s = pace_s
        self._on_word = on_word

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:
        self._on_word(0)
        yield _Talk(self._pace_s, token, self._on_word)

    async def aclose(self) -> None:
        """Nothing is held between requests."""


class _Talk:
    usage = Usage()

    def __init__(self, pace_s: float, token: Token, on_word: Callable[[int], object]) -> None:
        self._words = words(pace_s)
        self._token = token
        self._on_word = on_word
        self._count = 0

    def __aiter__(self) -> AsyncIterator[Part]:
        return self

    async def __anext__(self) -> Part:
        with self._token.scope():
            word = await anext(self._words)
            self._count += 1
            self._on_word(self._count)
            return word
        self._token.check()
        raise AssertionError("a scope ended early, and its token is not cancelled")


class NoTools:
    def schemas(self) -> tuple[ToolSchema, ...]:
        return ()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        return Refused("there are no tools")

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        raise AssertionError("a call that was refused is run")


def talking_agent(pace_s: float, on_word: Callable[[int], object]) -> AgentFunction:
    return loop_agent(Talker(pace_s, on_word), NoTools(), LoopSettings())


class Heard:
    """Waits for the n-th word of the only answer that is being given."""

    def __init__(self) -> None:
        self._at = -1
        self._event = anyio.Event()
        self.at = 0.0

    def begin(self, number: int) -> None:
        self._at, self._event = number, anyio.Event()

    def word(self, number: int) -> None:
        if number == self._at:
            self.at = time.perf_counter()
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class OtherThread:
    """Calls a function at once in another thread, and returns when it began."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.began_at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, order: Callable[[], object]) -> None:
        self._orders.put(order)

    def end(self) -> None:
        self._orders.put(None)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            # So that the loop rests in its selector, as it does when a person presses a key.
            time.sleep(0.0005)
            self.began_at = time.perf_counter()
            order()


class BareStop:
    """The baseline: a task that reads the same stream is cancelled, then one commit."""

    def __init__(self, path: Path, thread: OtherThread) -> None:
        self.store = BareGroupCommit(path)
        self._thread = thread

    async def sample(self) -> float:
        loop = asyncio.get_running_loop()
        said: list[str] = []
        enough = anyio.Event()

        async def read() -> None:
            async for part in words(PACE_S):
                said.append(part.text)
                if len(said) == 3:
                    enough.set()

        task = asyncio.create_task(read())
        await enough.wait()
        self._thread.do(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            await task
        except asyncio.CancelledError:
            pass
        await self.store.write(0, 0)
        return time.perf_counter() - self._thread.began_at


async def stop_from(thread: OtherThread, session: Session) -> tuple[float, Receipt]:
    """Stops the running turn of a session from another thread, as `bargein.sync` does. Returns the
    seconds until the receipt."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[Interrupt] = loop.create_future()

    def stop() -> None:
        loop.call_soon_threadsafe(asked.set_result, session.interrupt_now(by="bench"))

    thread.do(stop)
    receipt = await (await asked).receipt()
    return time.perf_counter() - thread.began_at, receipt


def is_settled(receipt: Receipt) -> bool:
    return receipt.status is ReceiptStatus.STOPPED and receipt.stored


NO_LIMITS = Limits(waiting_max=1_000_000, idle_s=3600.0)
