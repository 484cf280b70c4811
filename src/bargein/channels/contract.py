"""The interface between a chat platform and the rest: an adapter is one class with `Channel`.

An adapter reads the platform's updates, hands them to its `Desk`, and carries out requests: send,
edit, preview, fetch a file. It decides nothing. Who may speak, what a command is, and what is shown
when is the same on every platform; the other modules of this folder decide it.

What an adapter must keep:

- `run` moves the platform's cursor only after `Desk.receive` has returned: then the messages are
  durable. It hands over all updates that it has at once, in the platform's order.
- `send` and `edit` raise `RetryLater` or `NotDelivered` only if the platform said so, `NotReached`
  only if there was no connection, and `Crowded` only if the adapter did not make the call. After
  any other error nobody knows whether the message arrived.
- No call retries by itself, and none sleeps for a rate limit.
- An event that differs from the platform's documentation ends nothing: the adapter logs it
  (`not_understood`) and skips it.
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
"""The errors of reading an event that differs from the platform's documentation."""


def not_understood(channel: str, error: Exception) -> None:
    """Logs that an event was skipped, without any of its words."""
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
    """What the platform can do.

    `keyed`: two messages with the same `ChatMessage.key`, sent within `key_lasts_s`, are one
    message. `rate` is the rate of a private chat, and of a group unless there is a `group_rate`.
    `edits`: a message can be changed. `previews`: the platform has its own means of showing text
    that is still being written (`Channel.preview`); without it, previews are edits, if there are
    `edits`. A preview disappears `preview_lasts_s` after it was shown last. `previews_stay`: such a
    preview is a message, to which `Channel.edit` gives the final words. `replies`: people can reply
    to a certain message, which `Update.target` names."""

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
    """Takes the updates that an adapter has read."""

    @property
    def cursor(self) -> str:
        """The cursor that was stored last; empty at the very first start."""
        ...

    async def reached(self) -> None:
        """Report that the platform has answered. Call it at each connection."""
        ...

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        """Take these updates. They and the cursor are durable when this returns. It waits for one
        commit and for nothing else, so that reading can go on. If it raises, the platform has to
        deliver them again. A stop among them takes effect at once, whatever comes before it.
        Returns the updates of people who may speak; strangers get no answer."""
        ...


class Channel(Protocol):
    @property
    def name(self) -> str:
        """The operator's name for the channel. The names of its sessions contain it."""
        ...

    @property
    def traits(self) -> Traits: ...

    async def check(self) -> str:
        """Returns who the bot is, in a few words. Raises if the platform cannot be reached or
        refuses its token. Sends nothing to any chat."""
        ...

    async def run(self, desk: Desk) -> None:
        """Read updates until cancelled. Raises if the platform cannot be reached; the hub calls it
        again after a while."""
        ...

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        """Send a message. Returns the platform's id of it."""
        ...

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        """Change what a message says. It is no error if the message says this already."""
        ...

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        """Show text that is still being written. Called only with `Traits.previews`.

        Returns None if this chat has no previews: then they are edits. Returns the platform's id of
        the message with `Traits.previews_stay`, and else an empty text. With `previews_stay`, an
        empty `text` ends the preview after a stop."""
        ...

    async def typing(self, chat: ChatAddress) -> None:
        """Show that an answer is being written, for a few seconds."""
        ...

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        """Return the bytes of a file. Raises `NotDelivered` if it has more than `bytes_max`."""
        ...

    async def aclose(self) -> None:
        """Close all connections. No other method is called afterwards."""
        ...


class HookAnswer(Value, frozen=True):
    """The answer to a request that the platform sends."""

    status: int = 200
    body: bytes = b""
    media_type: str = "text/plain"


@runtime_checkable
class HookChannel(Protocol):
    """A `Channel` that the platform sends requests to. `bargein serve` takes them at
    `/channels/NAME` while `run` runs."""

    async def hook(self, headers: Mapping[str, str], body: bytes) -> HookAnswer:
        """Take one request. `headers` have lower-case names. Check that the platform sent the
        request before you read its body, and answer with success only when the updates are
        durable."""
        ...
