"""The phases of a request, each as a scene: a model that is brought there and held."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from bargein.cancel import CancelSource
from bargein.contracts.model import Image, ModelRequest, Part, UserMessage
from bargein.models.retrying import RetryingModel
from bargein.models.watchdog import Timeouts
from bargein.net.resolver import Found
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer, full_listener, make_tls
from bargein.testing.fault_steps import Body, Gate, Hang, Head, Reply, Stall, Step
from bargein.testing.fault_zoo import refusal, whole
from tests.models.harness import HELLO, ManualClock, connections_to, endpoint, until

SceneMaker = Callable[[], "AbstractAsyncContextManager[Scene]"]
BIG = ModelRequest(messages=(UserMessage((Image("image/png", bytes(16 * 1024 * 1024)),)),))
HALF = b"".join(events_of("openai")[:3]) + b'data: {"choices": [{"del'


@dataclass
class Scene:
    """`ready` returns when the request is in the phase. `visits` is how many the server has had
    by then, `server_sees` whether one of them is connected and will be seen to go."""

    model: RetryingModel
    ready: Callable[[], Awaitable[None]]
    request: ModelRequest = HELLO
    server: FaultServer | None = None
    server_sees: bool = True
    visits: int = 1
    parts_before: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    seen: list[Part] = field(default_factory=list)
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.source = CancelSource("request", clock=self.clock)

    async def consume(self) -> None:
        async with self.model.open(self.request, self.source.token) as stream:
            async for part in stream:
                self.seen.append(part)
                if len(self.seen) >= self.parts_before:
                    self.progress.set()

    def is_limited_to(self, seconds: float) -> bool:
        return any(timer.when == self.clock.time + seconds for timer in self.clock.pending())

    async def said(self) -> None:
        """Wait for the parts that come before the phase."""
        if self.parts_before:
            async with asyncio.timeout(30):
                await self.progress.wait()


@asynccontextmanager
async def resolving() -> AsyncIterator[Scene]:
    asked, release = threading.Event(), threading.Event()

    def lookup(*_: object, **__: object) -> Found:
        asked.set()
        release.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "too late")

    async def ready() -> None:
        await asyncio.to_thread(asked.wait, 30)

    target = endpoint("http://model.invalid", lookup=lookup)
    try:
        yield Scene(RetryingModel([target]), ready, server_sees=False, visits=0)
    finally:
        release.set()


@asynccontextmanager
async def connecting() -> AsyncIterator[Scene]:
    with full_listener() as port:

        async def ready() -> None:
            await until(lambda: "SYN_SENT" in connections_to(port), "a connection is tried")

        model = RetryingModel([endpoint(f"http://127.0.0.1:{port}")])
        yield Scene(model, ready, server_sees=False, visits=0)


@asynccontextmanager
async def in_handshake() -> AsyncIterator[Scene]:
    """The server speaks no TLS and waits for a plain request."""
    async with FaultServer([[Hang()]]) as server:

        async def ready() -> None:
            await server.visit(0)

        model = RetryingModel([endpoint(server.url.replace("http:", "https:"))])
        yield Scene(model, ready, server=server)


def held(
    reply: Reply,
    *,
    tls: bool,
    request: ModelRequest = HELLO,
    parts: int = 0,
    limit_s: float | None = None,
) -> SceneMaker:
    """A scene in which the server holds the answer at a gate, or hangs, or does not read.

    `limit_s` is the time-out of the phase, which tells that the client has come to it too.
    """

    @asynccontextmanager
    async def scene() -> AsyncIterator[Scene]:
        server_tls, client_tls = make_tls() if tls else (None, None)
        # What follows the first visit is a good answer, for attempts that are retried.
        replies = [reply, whole("openai")]
        async with FaultServer(replies, tls=server_tls, receive_buffer_bytes=4096) as server:

            async def ready() -> None:
                visit = await server.visit(0)
                await visit.requested.wait_async()
                if any(isinstance(step, Gate) for step in reply):
                    await visit.at("hold").wait_async()
                await made.said()
                if limit_s is not None:
                    await until(lambda: made.is_limited_to(limit_s), "the client is in the phase")

            model = RetryingModel([endpoint(server.url, tls=client_tls)], random=lambda: 0.0)
            made = Scene(model, ready, request=request, server=server, parts_before=parts)
            yield made

    return scene


@asynccontextmanager
async def backing_off() -> AsyncIterator[Scene]:
    async with FaultServer([refusal(503, "busy")]) as server:
        sleeping = asyncio.Event()

        async def sleep(_: float) -> None:
            sleeping.set()
            await asyncio.sleep(3600)

        async def ready() -> None:
            async with asyncio.timeout(30):
                await sleeping.wait()

        model = RetryingModel([endpoint(server.url)], sleep=sleep)
        yield Scene(model, ready, server=server, server_sees=False, parts_before=1)


def held_at(*steps: Step) -> Reply:
    return [*steps, Gate("hold"), Hang()]


JSON = {"Content-Type": "application/json"}
SILENT_BEFORE_HEADERS = held_at()
SILENT_AFTER_HEADERS = held_at(Head())
MID_CHUNK = held_at(Head(), Body(HALF))
ERROR_BODY = held_at(Head(500, JSON), Body(b'{"error": {"mess'))

SCENES: dict[str, SceneMaker] = {
    "resolving": resolving,
    "connecting": connecting,
    "in the TLS handshake": in_handshake,
    "sending the body": held([Stall()], tls=False, request=BIG),
    "before headers": held(SILENT_BEFORE_HEADERS, tls=False),
    "silent after headers": held(SILENT_AFTER_HEADERS, tls=False),
    "mid-chunk": held(MID_CHUNK, tls=False, parts=2),
    "in an error body": held(ERROR_BODY, tls=False, limit_s=Timeouts().error_body_s),
    "backing off": backing_off,
    "before headers, TLS": held(SILENT_BEFORE_HEADERS, tls=True),
    "mid-chunk, TLS": held(MID_CHUNK, tls=True, parts=2),
    "sending the body, TLS": held([Stall()], tls=True, request=BIG),
}
