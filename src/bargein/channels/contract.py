"""What a chat platform brings and what it is asked for. An adapter is one class with `Channel`.

An adapter reads the platform's updates and hands them to its `Desk`, and does what it is asked:
send, edit, preview, fetch a file. It decides nothing: who may speak, what a command is, what is
shown and when is the same on every platform and stands in this folder.

What an adapter must keep:

- `run` moves the platform's cursor only after `Desk.receive` has returned: then the messages are
  durable. It hands over all updates that it has at once, in the platform's order.
- `send` and `edit` raise `RetryLater` or `NotDelivered` only if the platform said so,
  `NotReached` only if there was no connection, and `Crowded` only if the call was not made.
  Whatever else they raise means that nobody knows whether the message is there.
- No call retries by itself, and none sleeps for a rate limit.
- What strangers send ends nothing: an event that is not like the platform's documentation is
  logged (`not_understood`) and left out.
"""

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from bargein.contracts.value import Value
from bargein.errors import WorldError

__all__ = [
    "MALFORMED",
    "Button",
    "Channel",
    "ChatAddress",
    "ChatKind",
    "ChatMessage",
    "ChatRate",
    "Crowded",
    "Desk",
    "HookAnswer",
    "HookChannel",
    "NotDelivered",
    "NotReached",
    "Offer",
    "Person",
    "RetryLater",
    "Traits",
    "Update",
    "UpdateKind",
    "not_understood",
]

_log = logging.getLogger("bargein.channels")

MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
"""What reading an event raises that is not like the platform's documentation."""


def not_understood(channel: str, error: Exception) -> None:
    """Logs that an event was left out, and none of its words."""
    _log.warning("%s: an event was not understood: %s", channel, type(error).__name__)


class RetryLater(WorldError):
    """The platform refused a call because of its rate limit. Nothing was sent."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"the platform asks to wait {after_s:g} s", retryable=True)
        self.after_s = after_s


class Crowded(RetryLater):
    """The platform counts the calls in all chats together, and there is none left for this one. It
    was not made. A call of more weight may still be made in this chat."""


class NotReached(RetryLater):
    """No connection to the platform could be made. Nothing was sent."""

    def __init__(self, platform: str) -> None:
        super().__init__(0.0)
        self.args = (f"{platform} cannot be reached",)


class NotDelivered(WorldError):
    """The platform refused a message for good: it is too long, the bot was blocked, the chat is
    gone. Nothing was sent."""

    def __init__(self, why: str) -> None:
        super().__init__(why, retryable=False)


class ChatKind(StrEnum):
    PRIVATE = "private"
    """One person and the bot."""
    GROUP = "group"


class ChatAddress(Value, frozen=True):
    """Where people talk. `thread` is a thread or topic inside it; each is a session of its own."""

    id: str
    kind: ChatKind = ChatKind.PRIVATE
    thread: str = ""


class Person(Value, frozen=True):
    """`id` is the platform's and never changes; `name` is what the person calls themselves."""

    id: str
    name: str = ""


class UpdateKind(StrEnum):
    SAID = "said"
    EDITED = "edited"
    """`key` is that of the message that was edited, `text` all that it says now."""
    COMMAND = "command"
    """The platform calls it a command; `text` begins with a slash, without the bot's name."""
    PRESSED = "pressed"
    """A button: `target` is the platform's id of the message it is on, `text` its label."""
    PRESSED_STOP = "pressed_stop"
    """The platform's own Stop. `target` is the key of the preview it was on, or empty."""


class Offer(Value, frozen=True):
    """A file that came with a message and is not fetched yet. `id` is for `Channel.fetch`."""

    id: str
    name: str
    media_type: str
    size: int | None = None


class Update(Value, frozen=True):
    """Something that happened in a chat. `key` is the platform's id of the *message* (or of the
    press), never of the update: by it a redelivery is recognised. `group` is that of an album.
    `target` is the message that is replied to, or pressed on. `version` orders the edits of one
    message: a later one has a larger number, such as the platform's time of the edit. `addressed`
    is False for words in a group that neither mention the bot nor reply to it."""

    key: str
    chat: ChatAddress
    sender: Person
    kind: UpdateKind = UpdateKind.SAID
    text: str = ""
    attachments: tuple[Offer, ...] = ()
    group: str | None = None
    target: str = ""
    version: float = 0.0
    addressed: bool = True


class Button(Value, frozen=True):
    """Something to choose, under a message."""

    label: str


class ChatMessage(Value, frozen=True):
    """A message for a chat. `key` names it for ever: the idempotency key, where there is one.
    `exact`: people decide by this text, so each character is shown as it is, and no mark formats
    or hides another. Such a text has half of `Traits.text_max` at most: there is room to escape
    every character. `preview`: it is still being written, and gives way where calls are scarce."""

    text: str
    key: str
    buttons: tuple[Button, ...] = ()
    exact: bool = False
    preview: bool = False


class ChatRate(Value, frozen=True):
    """Calls that the platform takes for one chat: `burst` at once, then `per_s`."""

    per_s: float = 1.0
    burst: int = 3


class Traits(Value, frozen=True):
    """What the platform can do. `keyed`: the same `ChatMessage.key` sent twice is one message, if
    no more than `key_lasts_s` lie between. `rate` is that of a private chat, `group_rate` that of
    a group if it is another. `edits`: a message can be changed. `previews`: it shows text that is
    being written by means of its own (`Channel.preview`); without, and with `edits`, previews are
    edits. A preview disappears `preview_lasts_s` after it was shown last. `previews_stay`: such a
    preview is a message, and `Channel.edit` makes it say the final words. `replies`: people can
    reply to one message, and `Update.target` says to which."""

    text_max: int = 4000
    keyed: bool = False
    key_lasts_s: float = float("inf")
    edits: bool = True
    previews: bool = False
    preview_lasts_s: float = float("inf")
    previews_stay: bool = False
    replies: bool = True
    rate: ChatRate = ChatRate()
    group_rate: ChatRate | None = None


class Desk(Protocol):
    """Where an adapter hands over what it has read."""

    @property
    def cursor(self) -> str:
        """The last cursor that was kept; empty at the very first start."""
        ...

    async def reached(self) -> None:
        """Say that the platform has answered: it can be read. Called at each connection."""
        ...

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        """Take these updates. Everything in them is durable when this returns, and so is the
        cursor. It waits for one commit and for nothing else, so that reading can go on. If it
        raises, the platform has to deliver them again. A stop among them takes effect at once,
        whatever stands before it. Returns those of people who may speak: others get silence."""
        ...


class Channel(Protocol):
    @property
    def name(self) -> str:
        """The operator's name for it. It is part of the names of its sessions."""
        ...

    @property
    def traits(self) -> Traits: ...

    async def check(self) -> str:
        """Returns who the bot is, in a few words. Raises if the platform cannot be reached or
        refuses its token. Sends nothing to any chat."""
        ...

    async def run(self, desk: Desk) -> None:
        """Read updates until cancelled. Raises if the platform cannot be reached; it is called
        again after a while."""
        ...

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        """Returns the platform's id of the new message."""
        ...

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        """Make a message say this. One that says it already is no error."""
        ...

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        """Show text that is still being written. Returns None if this chat cannot: previews are
        edits there. Returns the platform's id of the message with `Traits.previews_stay`, else an
        empty text. With `previews_stay` an empty `text` says that nothing more comes: a stop.
        Only called with `Traits.previews`."""
        ...

    async def typing(self, chat: ChatAddress) -> None:
        """Show that an answer is being written, for a few seconds."""
        ...

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        """The bytes of a file. Raises `NotDelivered` if it has more than `bytes_max`."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Nothing is called afterwards."""
        ...


class HookAnswer(Value, frozen=True):
    """What a platform gets for a request of its own."""

    status: int = 200
    body: bytes = b""
    media_type: str = "text/plain"


@runtime_checkable
class HookChannel(Protocol):
    """A `Channel` that the platform sends requests to. `bargein serve` takes them at
    `/channels/NAME` while `run` runs."""

    async def hook(self, headers: Mapping[str, str], body: bytes) -> HookAnswer:
        """Take one request. `headers` have names in small letters. Checks that the platform sent
        it before it reads the body; answers well only when the updates are durable."""
        ...
