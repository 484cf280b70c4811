"""What a check needs of a chat platform, and a platform in memory that does it.

`FakePlatform` behaves like the difficult ones: it delivers at least once, until its cursor is
moved, again and in another order if a check says so; it refuses calls above its rate; a connection
may break after a message was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.lowlevel

from bargein.channels.contract import (
    Button,
    Channel,
    ChatAddress,
    ChatKind,
    ChatMessage,
    ChatRate,
    Desk,
    NotDelivered,
    Offer,
    Person,
    RetryLater,
    Traits,
    Update,
    UpdateKind,
)
from bargein.errors import WorldError


@dataclass
class BotMessage:
    """A message of the bot's, as people see it now. `texts` are all that it ever said."""

    id: str
    text: str
    buttons: tuple[Button, ...] = ()
    texts: list[str] = field(default_factory=list)
    at: float = 0.0


class PlatformUnderTest(Protocol):
    """Acts as the people of a platform, and breaks it. `open_channel` is called again after a
    restart of the program; the platform lives on."""

    def open_channel(self) -> Channel: ...

    async def say(
        self,
        chat: ChatAddress,
        person: Person,
        text: str,
        *,
        album: str | None = None,
        reply_to: str = "",
        addressed: bool = True,
    ) -> str:
        """Returns the platform's id of the message."""
        ...

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None: ...

    async def press(self, chat: ChatAddress, person: Person, message: str, data: str) -> None: ...

    async def redeliver(self) -> None:
        """Deliver everything again that was ever delivered, the newest first."""
        ...

    def shown(self, chat: ChatAddress) -> Sequence[BotMessage]: ...

    def limit(self, seconds: float) -> None:
        """Refuse every call for so long, and say so."""
        ...

    def break_after_next_send(self) -> None:
        """The next message is taken, and the connection breaks before the answer."""
        ...


class ConnectionBroke(WorldError):
    def __init__(self) -> None:
        super().__init__("the connection broke", retryable=True)


class FakePlatform:
    def __init__(self, *, keyed: bool = True, rate: ChatRate | None = None) -> None:
        self.traits = Traits(text_max=200, keyed=keyed, rate=rate or ChatRate(per_s=50.0, burst=20))
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[float, str, str]] = []
        self.pollers = 0
        self._updates: list[Update] = []
        self._fresh: list[Update] = []
        self._more = anyio.Event()
        self._messages: dict[str, list[BotMessage]] = {}
        self._keys: dict[str, str] = {}
        self._number = 0
        self._limited_until = 0.0
        self._breaks = 0

    def open_channel(self) -> "FakeChannel":
        return FakeChannel(self)

    # People

    async def say(
        self,
        chat: ChatAddress,
        person: Person,
        text: str,
        *,
        album: str | None = None,
        reply_to: str = "",
        addressed: bool = True,
        files: Sequence[Offer] = (),
    ) -> str:
        key = self._next("p")
        update = Update(
            key,
            chat,
            person,
            text=text,
            group=album,
            target=reply_to,
            addressed=addressed,
            attachments=tuple(files),
        )
        self._happened(update)
        return key

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None:
        self._number += 1
        version = float(self._number)
        self._happened(Update(message, chat, person, UpdateKind.EDITED, text, version=version))

    async def press(self, chat: ChatAddress, person: Person, message: str, data: str) -> None:
        key = self._next("b")
        self._happened(Update(key, chat, person, UpdateKind.PRESSED, data, target=message))

    async def press_stop(self, chat: ChatAddress, person: Person, preview: str = "") -> None:
        key = self._next("s")
        self._happened(Update(key, chat, person, UpdateKind.PRESSED_STOP, target=preview))

    async def redeliver(self) -> None:
        self._fresh += reversed(self._updates)
        self._more.set()

    def _happened(self, update: Update) -> None:
        self._updates.append(update)
        self._fresh.append(update)
        self._more.set()

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    # Seeing and breaking it

    def shown(self, chat: ChatAddress) -> list[BotMessage]:
        return self._messages.get(_place(chat), [])

    def limit(self, seconds: float) -> None:
        self._limited_until = anyio.current_time() + seconds

    def break_after_next_send(self) -> None:
        self._breaks += 1

    # For the channel

    async def updates(self) -> list[Update]:
        """What was not confirmed, as soon as there is something."""
        while not self._fresh:
            self._more = anyio.Event()
            await self._more.wait()
        return list(self._fresh)

    def confirm(self, count: int) -> None:
        del self._fresh[:count]

    def call(self, what: str, chat: ChatAddress) -> None:
        now = anyio.current_time()
        if now < self._limited_until:
            raise RetryLater(self._limited_until - now)
        self.calls.append((now, what, _place(chat)))

    def take(self, chat: ChatAddress, message: ChatMessage) -> str:
        self.call("send", chat)
        if len(message.text) > self.traits.text_max:
            raise NotDelivered("the message is too long")
        known = self._keys.get(message.key) if self.traits.keyed else None
        if known is None:
            known = self._next("m")
            self._keys[message.key] = known
            shown = BotMessage(
                known, message.text, message.buttons, [message.text], anyio.current_time()
            )
            self._messages.setdefault(_place(chat), []).append(shown)
        if self._breaks:
            self._breaks -= 1
            raise ConnectionBroke
        return known

    def change(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        self.call("edit", chat)
        found = next((each for each in self.shown(chat) if each.id == platform_id), None)
        if found is None or len(message.text) > self.traits.text_max:
            raise NotDelivered("the message cannot be edited")
        found.text, found.buttons = message.text, message.buttons
        found.texts.append(message.text)


class FakeChannel:
    """An adapter for `FakePlatform`: all that an adapter is, in a few lines."""

    name = "fake"

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform
        self.traits = platform.traits

    async def run(self, desk: Desk) -> None:
        self._platform.pollers += 1
        try:
            while True:
                updates = await self._platform.updates()
                await desk.receive(updates)
                self._platform.confirm(len(updates))
        finally:
            self._platform.pollers -= 1

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        await anyio.lowlevel.checkpoint()
        return self._platform.take(chat, message)

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        await anyio.lowlevel.checkpoint()
        self._platform.change(chat, platform_id, message)

    async def preview(self, chat: ChatAddress, key: str, text: str) -> bool:
        return False

    async def typing(self, chat: ChatAddress) -> None:
        self._platform.call("typing", chat)

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        return self._platform.files[offer.id]


def _place(chat: ChatAddress) -> str:
    return f"{chat.id}/{chat.thread}"


ALICE = Person("1", "Alice")
BOB = Person("2", "Bob")
PRIVATE = ChatAddress("c1")
GROUP = ChatAddress("g1", ChatKind.GROUP)
