"""The interface of a chat platform under test, and a platform in memory that has it.

`FakePlatform` behaves like the difficult ones: it delivers an update at least once, until the
cursor has moved, and on command again and in another order; it refuses calls above its rate; a
connection may break after a message was taken.
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
    restart of the program; the platform lives on.

    `name` is the name of its channels. Alice and Bob are in `group` together; Alice and the bot in
    `private`, the stranger and the bot in `theirs`. `limit_s` is a short rate limit."""

    name: str
    alice: Person
    bob: Person
    stranger: Person
    private: ChatAddress
    group: ChatAddress
    theirs: ChatAddress
    limit_s: float

    def open_channel(self) -> Channel: ...

    async def chats(self, count: int) -> Sequence[ChatAddress]:
        """So many chats of Alice's with the bot; fewer if the platform cannot have so many."""
        ...

    async def is_delivered(self) -> bool:
        """Whether the channel has confirmed everything that people did, and `shown` is what they
        see now."""
        ...

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

    def hold(self) -> None:
        """Deliver nothing until `release`."""
        ...

    def release(self) -> None:
        """Deliver all at once that people did meanwhile."""
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
    name = "fake"
    alice = Person("1", "Alice")
    bob = Person("2", "Bob")
    stranger = Person("666", "Alice")
    private = ChatAddress("c1")
    group = ChatAddress("g1", ChatKind.GROUP)
    theirs = ChatAddress("c666")
    limit_s = 3.0

    def __init__(
        self,
        *,
        keyed: bool = True,
        key_lasts_s: float = float("inf"),
        rate: ChatRate | None = None,
    ) -> None:
        self.traits = Traits(
            text_max=200,
            keyed=keyed,
            key_lasts_s=key_lasts_s,
            rate=rate or ChatRate(per_s=50.0, burst=20),
        )
        self.limit_after_break_s = 0.0
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[float, str, str]] = []
        self.pollers = 0
        self._updates: list[Update] = []
        self._fresh: list[Update] = []
        self._more = anyio.Event()
        self._messages: dict[str, list[BotMessage]] = {}
        self._keys: dict[str, tuple[str, float]] = {}
        self._number = 0
        self._limited_until = 0.0
        self._breaks = 0
        self._held = False

    def open_channel(self) -> "FakeChannel":
        return FakeChannel(self)

    async def chats(self, count: int) -> list[ChatAddress]:
        return [ChatAddress(f"many{number}") for number in range(count)]

    async def is_delivered(self) -> bool:
        return not self._fresh

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

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
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
        while self._held or not self._fresh:
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
        known, at = self._keys.get(message.key, ("", 0.0)) if self.traits.keyed else ("", 0.0)
        if not known or anyio.current_time() - at > self.traits.key_lasts_s:
            known = self._next("m")
            self._keys[message.key] = known, anyio.current_time()
            shown = BotMessage(
                known, message.text, message.buttons, [message.text], anyio.current_time()
            )
            self._messages.setdefault(_place(chat), []).append(shown)
        if self._breaks:
            self._breaks -= 1
            if self.limit_after_break_s:
                self.limit(self.limit_after_break_s)
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

    async def check(self) -> str:
        return "a platform in memory"

    async def aclose(self) -> None:
        pass

    async def run(self, desk: Desk) -> None:
        self._platform.pollers += 1
        await desk.reached()
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

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        return None

    async def typing(self, chat: ChatAddress) -> None:
        self._platform.call("typing", chat)

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        return self._platform.files[offer.id]


def _place(chat: ChatAddress) -> str:
    return f"{chat.id}/{chat.thread}"
