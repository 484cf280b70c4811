"""Shared by the tests of models: endpoints at a fault server, a clock moved by hand, scenes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from bargein.cancel import CancelSource, Token
from bargein.contracts.model import (
    CallPart,
    ModelRequest,
    Part,
    ReasoningPart,
    Text,
    TextPart,
    UserMessage,
)
from bargein.models.dialects import Dialect
from bargein.models.dialects.anthropic import AnthropicDialect
from bargein.models.dialects.chat import ChatDialect
from bargein.models.dialects.responses import ResponsesDialect
from bargein.models.errors import Secret
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.watchdog import Timeouts
from bargein.net.resolver import Lookup

KEY = "sk-very-secret-0123456789"
HELLO = ModelRequest(messages=(UserMessage((Text("hello"),)),))
DIALECTS: dict[str, Callable[[], Dialect]] = {
    "openai": ChatDialect,
    "openai-responses": ResponsesDialect,
    "anthropic": AnthropicDialect,
}


@dataclass
class ManualTimer:
    when: float
    callback: Callable[[], object] | None

    def cancel(self) -> None:
        self.callback = None


@dataclass
class ManualClock:
    """A clock that moves only when told; timers fire in the thread that moves it."""

    time: float = 1000.0
    timers: list[ManualTimer] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], object]) -> ManualTimer:
        timer = ManualTimer(when, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for timer in sorted(self.timers, key=lambda timer: timer.when):
            if timer.when <= self.time and timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()
        self.timers = self.pending()

    def pending(self) -> list[ManualTimer]:
        return [timer for timer in self.timers if timer.callback is not None]


def endpoint(
    url: str,
    dialect: str = "openai",
    *,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    lookup: Lookup = socket.getaddrinfo,
    name: str | None = None,
    proxy: str | None = None,
) -> HttpEndpoint:
    base = url if dialect == "anthropic" else f"{url}/v1"
    return HttpEndpoint(
        name=name or f"{dialect}:m",
        model="m",
        base_url=base,
        dialect=DIALECTS[dialect](),
        key=Secret(KEY),
        timeouts=timeouts or Timeouts(),
        tls=tls,
        lookup=lookup,
        proxy=proxy,
    )


def one_try(target: HttpEndpoint) -> RetryingModel:
    return RetryingModel([target], policy=RetryPolicy(attempts_max=1))


async def collect(
    model: RetryingModel, token: Token | None = None, request: ModelRequest = HELLO
) -> list[Part]:
    parts: list[Part] = []
    async with model.open(request, token or CancelSource("request").token) as stream:
        async for part in stream:
            parts.append(part)  # noqa: PERF401 - kept so far, also if the rest fails
    return parts


def joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring pieces of the same thing as one, because providers cut where they like."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        match last, part:
            case TextPart(text=before), TextPart(text=text):
                whole[-1] = TextPart(before + text)
            case ReasoningPart(text=before, signature=None), ReasoningPart(text=text, signature=s):
                whole[-1] = ReasoningPart(before + text, s)
            case CallPart() as before, CallPart() if before.index == part.index and not part.id:
                whole[-1] = CallPart(
                    before.index, before.id, before.name, before.arguments + part.arguments
                )
            case _:
                whole.append(part)
    return whole


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def open_sockets() -> int:
    """How many sockets this process holds, whatever their state."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def connections_to(port: int) -> list[str]:
    """The states of this process's TCP connections to a port."""
    return [
        connection.status
        for connection in psutil.Process().net_connections(kind="tcp")
        if connection.raddr and connection.raddr.port == port
    ]


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Wait for something outside the loop that sends no event, such as the kernel's tables."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
    assert condition(), what
