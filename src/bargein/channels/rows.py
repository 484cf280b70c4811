"""Stores what channels need after a restart: messages taken, messages sent, people paired.

`Rows` is all that this needs of a store: small values by kind and key, several of them written
together. `MemoryRows` has them in memory only; `rows_sqlite` has them in a file of its own in the
data directory. `Ledger` defines what the rows mean, once for every store.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from bargein.channels.contract import Button, ChatAddress, ChatKind, Update
from bargein.contracts.value import Value

T = TypeVar("T")

BETWEEN = "\x1f"


class Row(NamedTuple):
    """`body` None deletes it."""

    kind: str
    key: str
    body: bytes | None


class Rows(Protocol):
    async def get(self, kind: str, key: str) -> bytes | None: ...

    async def scan(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """The rows whose key begins so, by key."""
        ...

    async def put(self, rows: Sequence[Row]) -> None:
        """Write all of them or none. Durable when this returns."""
        ...

    async def forget(self, kind: str, before: float) -> None:
        """Delete the rows of a kind that were last written before this time."""
        ...


class MemoryRows:
    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._rows: dict[tuple[str, str], tuple[bytes, float]] = {}

    async def get(self, kind: str, key: str) -> bytes | None:
        row = self._rows.get((kind, key))
        return row[0] if row is not None else None

    async def scan(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        found = [k for k in self._rows if k[0] == kind and k[1].startswith(prefix)]
        return [(k[1], self._rows[k][0]) for k in sorted(found)]

    async def put(self, rows: Sequence[Row]) -> None:
        for kind, key, body in rows:
            if body is None:
                self._rows.pop((kind, key), None)
            else:
                self._rows[kind, key] = body, self._now()

    async def forget(self, kind: str, before: float) -> None:
        old = [k for k, (_, at) in self._rows.items() if k[0] == kind and at < before]
        for key in old:
            del self._rows[key]


class Heard(Value, frozen=True):
    """A message of the person `sender`. `message` is its id in the session; empty for a command,
    for words that were not accepted, and for an edit that came before its message. `text` is the
    last known, and `version` that of the edit that brought it."""

    session: str = ""
    message: str = ""
    text: str = ""
    version: float = 0.0
    command: bool = False
    sender: str = ""


class KnownChat(Value, frozen=True):
    """`number` counts the sessions of this chat. What the session's log says up to `seq` has been
    sent. `open`: there may be more to send."""

    chat: ChatAddress
    number: int = 1
    seq: int = 0
    open: bool = False


class PieceState(StrEnum):
    WAITING = "waiting"
    """Nothing was sent, surely."""
    SENDING = "sending"
    """It may have been sent: after a restart, or a connection that broke, nobody knows."""
    SENT = "sent"
    DROPPED = "dropped"
    """Its turn was stopped, or the platform refused it for good."""


class Piece(Value, frozen=True):
    """One outbound message. `key` is unique in its session; `turn` is the turn that it is part of,
    so that a stop drops it, and empty for what is sent whatever happens. `again`: an earlier try
    may have arrived."""

    key: str
    turn: str
    text: str
    buttons: tuple[Button, ...] = ()
    state: PieceState = PieceState.WAITING
    platform_id: str = ""
    again: bool = False
    question: str = ""
    at: float = 0.0
    """When it was first sent, in seconds since 1970: platforms forget keys."""
    exact: bool = False


class Pairing(Value, frozen=True):
    """This person may speak in this chat. `at` is in seconds since 1970."""

    person: str
    chat: str
    kind: ChatKind
    name: str
    at: float


class PairingCode(Value, frozen=True):
    """A code that was given out, as a hash. It pairs one person, in a chat of one kind."""

    hash: bytes
    kind: ChatKind
    until: float
    wrong: int = 0


class ChannelHealth(Value, frozen=True):
    """How a channel is. `error` is the last one, `at` the time of that; empty if it runs well."""

    running: bool = False
    error: str = ""
    at: float = 0.0


_encode = msgspec.msgpack.Encoder().encode


class Ledger:
    """The rows of one channel, typed."""

    def __init__(self, rows: Rows, channel: str) -> None:
        self.rows = rows
        self.channel = channel

    def _key(self, *parts: str) -> str:
        return BETWEEN.join((self.channel, *parts))

    async def _get(self, type_: type[T], kind: str, *parts: str) -> T | None:
        body = await self.rows.get(kind, self._key(*parts))
        return msgspec.msgpack.decode(body, type=type_) if body is not None else None

    async def _scan(self, type_: type[T], kind: str, *parts: str) -> list[T]:
        found = await self.rows.scan(kind, self._key(*parts, ""))
        return [msgspec.msgpack.decode(body, type=type_) for _, body in found]

    def _row(self, kind: str, value: object, *parts: str) -> Row:
        return Row(kind, self._key(*parts), None if value is None else _encode(value))

    async def _put(self, kind: str, value: object, *parts: str) -> None:
        await self.rows.put([self._row(kind, value, *parts)])

    # In

    async def heard(self, chat: ChatAddress, key: str) -> Heard | None:
        return await self._get(Heard, "heard", chat.id, key)

    async def hear(self, chat: ChatAddress, key: str, heard: Heard) -> None:
        await self._put("heard", heard, chat.id, key)

    async def cursor(self) -> str:
        return await self._get(str, "cursor") or ""

    async def note(
        self, updates: Sequence[tuple[str, Update]], done: Sequence[str], *, cursor: str = ""
    ) -> None:
        """Keep updates that are not handled yet, under numbers that sort, and the cursor with them;
        forget those that were handled."""
        rows = [self._row("update", update, number) for number, update in updates]
        rows += [self._row("update", None, number) for number in done]
        if cursor:
            rows.append(self._row("cursor", cursor))
        if rows:
            await self.rows.put(rows)

    async def noted(self) -> list[tuple[str, Update]]:
        """What was not handled yet, in its order."""
        found = await self.rows.scan("update", self._key(""))
        return [
            (key.rpartition(BETWEEN)[2], msgspec.msgpack.decode(body, type=Update))
            for key, body in found
        ]

    async def forget_all(self) -> None:
        """Everything of this channel: another bot of this name begins anew."""
        rows: list[Row] = []
        for kind in ("heard", "cursor", "chat", "piece", "pairing", "code", "health", "update"):
            found = await self.rows.scan(kind, self._key(""))
            rows += [Row(kind, key, None) for key, _ in found]
            rows.append(self._row(kind, None))
        await self.rows.put(rows)

    # Chats

    async def chat(self, chat: ChatAddress) -> KnownChat:
        """The chat as it is now: a private one may have become a group."""
        known = await self._get(KnownChat, "chat", chat.id, chat.thread)
        return KnownChat(chat) if known is None else msgspec.structs.replace(known, chat=chat)

    async def keep_chat(self, known: KnownChat) -> None:
        await self._put("chat", known, known.chat.id, known.chat.thread)

    async def open_chats(self) -> list[KnownChat]:
        return [each for each in await self._scan(KnownChat, "chat") if each.open]

    # Out

    async def pieces(self, session: str) -> dict[str, Piece]:
        return {piece.key: piece for piece in await self._scan(Piece, "piece", session)}

    async def keep_piece(self, session: str, piece: Piece) -> None:
        await self._put("piece", piece, session, piece.key)

    async def keep_reply(self, session: str, piece: Piece, chat: ChatAddress, key: str) -> None:
        """Keep a reply, and that what it replies to is done: delivered again later, when the reply
        is forgotten, it gets no other."""
        done = self._row("heard", Heard(command=True), chat.id, key)
        await self.rows.put([self._row("piece", piece, session, piece.key), done])

    async def settle(
        self,
        known: KnownChat,
        session: str,
        done: Sequence[str],
        *,
        heard: str = "",
        handled: Sequence[str] = (),
    ) -> None:
        """Move the chat on, and forget the pieces that nobody asks about any more, and the updates
        that were handled."""
        rows = [self._row("chat", known, known.chat.id, known.chat.thread)]
        rows += [self._row("piece", None, session, key) for key in done]
        rows += [self._row("update", None, number) for number in handled]
        if heard:
            rows.append(self._row("heard", Heard(command=True), known.chat.id, heard))
        await self.rows.put(rows)

    # People

    async def pairing(self, chat: ChatAddress, person: str) -> Pairing | None:
        return await self._get(Pairing, "pairing", chat.id, person)

    async def pairings(self) -> list[Pairing]:
        return await self._scan(Pairing, "pairing")

    async def pair(self, pairing: Pairing, code: PairingCode, *, heard: str = "") -> None:
        """Keep the pairing and use up the code, together. `heard` is the key of the message with
        the code: delivered again, it is not taken for a command of the person who is now paired."""
        rows = [
            self._row("pairing", pairing, pairing.chat, pairing.person),
            self._row("code", None, code.hash.hex()),
        ]
        if heard:
            rows.append(self._row("heard", Heard(command=True), pairing.chat, heard))
        await self.rows.put(rows)

    async def unpair(self, pairing: Pairing) -> None:
        await self._put("pairing", None, pairing.chat, pairing.person)

    async def codes(self) -> list[PairingCode]:
        return await self._scan(PairingCode, "code")

    async def keep_code(self, code: PairingCode) -> None:
        await self._put("code", code, code.hash.hex())

    async def drop_code(self, code: PairingCode) -> None:
        await self._put("code", None, code.hash.hex())

    # How it is

    async def health(self) -> ChannelHealth:
        return await self._get(ChannelHealth, "health") or ChannelHealth()

    async def keep_health(self, health: ChannelHealth) -> None:
        await self._put("health", health)
