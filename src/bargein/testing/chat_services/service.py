"""What the services share: a server on loopback, what the bot has said, and how they fail."""

from collections import defaultdict, deque
from types import TracebackType
from typing import Self

import anyio
from aiohttp import web

from bargein.channels.contract import Button, ChatAddress, ChatRate
from bargein.testing.channel_conformance.platform import BotMessage

RATE = ChatRate(per_s=500.0, burst=500)
"""How fast the services let a bot speak in a chat, unless a test says otherwise."""


class ChatService:
    """A server that a bot of one token speaks to. `calls` has each call that was not refused for
    its rate: when, what, where."""

    limit_s = 1.0
    chats_max = 100
    """How many chats `chats` gives at most: with sockets, a thousand take a while."""

    def __init__(self, rate: ChatRate = RATE) -> None:
        self.rate = rate
        self.address = ""
        self.held = False
        self.calls: list[tuple[float, str, str]] = []
        self._messages: dict[str, list[BotMessage]] = defaultdict(list)
        self._recent: dict[str, deque[float]] = defaultdict(deque)
        self._limited_until = 0.0
        self._breaks = 0
        self._hangs = 0
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(
            app, shutdown_timeout=0, access_log=None, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        with anyio.CancelScope(shield=True):
            await self._runner.cleanup()

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False
        self.wake()

    def wake(self) -> None:
        """Deliver what waits."""
        raise NotImplementedError

    # How it fails

    def limit(self, seconds: float) -> None:
        self._limited_until = anyio.current_time() + seconds

    def break_after_next_send(self) -> None:
        self._breaks += 1

    def hang_after_next_send(self) -> None:
        """The next message is taken, and the bot gets no answer."""
        self._hangs += 1

    async def break_if_asked(self, request: web.Request) -> None:
        """Drops the connection after a message was taken, before the answer, or gives none."""
        if self._hangs:
            self._hangs -= 1
            await anyio.sleep_forever()
        if self._breaks:
            self._breaks -= 1
            assert request.transport is not None
            request.transport.abort()

    def wait_s(self, what: str, place: str) -> float:
        """How long the bot must wait before it may make this call; 0 if it may now."""
        now = anyio.current_time()
        if now < self._limited_until:
            return self._limited_until - now
        window_s = self.rate.burst / self.rate.per_s
        recent = self._recent[place]
        while recent and recent[0] <= now - window_s:
            recent.popleft()
        if len(recent) > 2 * self.rate.burst:
            return window_s
        recent.append(now)
        self.calls.append((now, what, place))
        return 0.0

    # What people see

    def shown(self, chat: ChatAddress) -> list[BotMessage]:
        return self._messages[place_of(chat.id, chat.thread)]

    def show(self, place: str, id_: str, text: str, labels: list[str]) -> BotMessage:
        buttons = tuple(Button(label) for label in labels)
        shown = BotMessage(id_, text, buttons, [text], anyio.current_time())
        self._messages[place].append(shown)
        return shown

    def message(self, place: str, id_: str) -> BotMessage | None:
        return next((each for each in self._messages[place] if each.id == id_), None)

    def messages(self) -> list[BotMessage]:
        return [each for place in self._messages.values() for each in place]


def place_of(chat: str, thread: str = "") -> str:
    return f"{chat}/{thread}"
