"""Encodes events as bytes, and refuses values that no store can keep before anything is written.

An event is one MessagePack body. A field may be added to an event if it has a default; any other
change of meaning needs a migration.
"""

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from bargein.contracts.event import Event, Recorded
from bargein.contracts.store import Commit, SessionUnreadable

SEQ_MAX = 2**32 - 1

LONG_BYTES = 64 * 1024
SLICE_CHARACTERS = 16 * 1024
"""How much of a long text is encoded at once."""

encode_event = encode_plain = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder[Event](Event).decode


def encode_events(events: Iterable[Event]) -> tuple[bytes, ...]:
    return tuple(map(encode_event, events))


# --- large events

Long = str | bytes
"""A long text, or a long value of bytes, which a store may keep apart from its event."""

CUT = b"\xc1"
"""The first byte of a body without its long values. No other body begins with it."""

# Codes of MessagePack's extensions. Each refers to a long value: its number, its size in bytes.
_TEXT, _BYTES, _BODY = 1, 2, 3
_REFERENCE = struct.Struct(">QQ")

Keep = Callable[[Long], int]
"""Takes a long value and returns the number under which it will be found."""
FindText = Callable[[int, int], str]
FindBytes = Callable[[int, int], bytes]
"""Return the long value of this number and size, or raise ValueError."""


def cut_event(event: Event, keep: Keep) -> bytes:
    """Encode an event with references in place of its long values, which `keep` gets. They are not
    copied, and other threads may run meanwhile.

    Raises ValueError for a text that is not Unicode.
    """
    plain = msgspec.to_builtins(event, builtin_types=(bytes,))
    body = encode_plain(_cut(plain, keep))
    if len(body) > LONG_BYTES:
        body = encode_plain(_refer(_BODY, body, keep))
    return CUT + body


def _cut(value: object, keep: Keep) -> object:
    if isinstance(value, dict):
        return {key: _cut(each, keep) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(each, keep) for each in value]
    if isinstance(value, str) and len(value) > LONG_BYTES:
        return _refer(_TEXT, value, keep)
    if isinstance(value, bytes) and len(value) > LONG_BYTES:
        return _refer(_BYTES, value, keep)
    return value


def _refer(code: int, value: Long, keep: Keep) -> msgspec.msgpack.Ext:
    if isinstance(value, str) and not value.isascii():
        size = sum(map(len, slices_of(value)))
    else:
        size = len(value)
    return msgspec.msgpack.Ext(code, _REFERENCE.pack(keep(value), size))


def slices_of(value: Long) -> Iterator[bytes]:
    """Yield a long value as bytes, some at a time. Other threads may run after each."""
    for begin in range(0, len(value), SLICE_CHARACTERS):
        some = value[begin : begin + SLICE_CHARACTERS]
        yield some if isinstance(some, bytes) else some.encode()
        time.sleep(0)


def join_body(body: bytes, find_text: FindText, find_bytes: FindBytes) -> object:
    """Return the plain value of a body that `cut_event` made."""

    def found(code: int, reference: memoryview) -> object:
        number, size = _REFERENCE.unpack(reference)
        if code == _TEXT:
            return find_text(number, size)
        value = find_bytes(number, size)
        return msgspec.msgpack.decode(value, ext_hook=found) if code == _BODY else value

    return msgspec.msgpack.decode(memoryview(body)[1:], ext_hook=found)


def event_of(plain: object) -> Event:
    event: Event = msgspec.convert(plain, Event, builtin_types=(bytes,))
    return event


# --- reading


def decode_events(
    session: str,
    rows: Iterable[tuple[int, float, bytes]],
    join: Callable[[bytes], object] | None = None,
) -> list[Recorded]:
    """Decode rows of seq, time and body. `join` returns the plain value of a body that was cut.
    Raises `SessionUnreadable` for the first row that this version cannot read."""
    found: list[Recorded] = []
    for seq, at, body in rows:
        try:
            if join is not None and body[:1] == CUT:
                event = event_of(join(body))
            else:
                event = decode_event(body)
            found.append(Recorded(seq, at, event))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise SessionUnreadable(session, f"event {seq}", seq=seq) from error
    return found


def check_commit(commit: Commit) -> None:
    """Raise ValueError for numbers that no store can keep."""
    if not math.isfinite(commit.at):
        check_time(commit.at)
    if commit.text and not commit.events:
        raise ValueError(f"session {commit.session!r}: a commit with text needs an event")
    if not 0 <= commit.expected_seq <= SEQ_MAX - len(commit.events):
        raise ValueError(
            f"session {commit.session!r}: expected_seq is {commit.expected_seq}, which no log of a "
            "store can reach"
        )


def check_words(commit: Commit) -> None:
    """Raise ValueError for texts that no store can keep. Python's `sqlite3` does this by itself."""
    check_text(commit.session, commit.root, commit.text, commit.title or "")
    for key in commit.keys:
        check_text(key.sender, key.client_id, key.message)


def check_text(*texts: str) -> None:
    """Raise ValueError for half of a surrogate pair, which has no encoding."""
    for text in texts:
        if not text.isascii():
            text.encode()


def check_time(at: float) -> None:
    if not math.isfinite(at):
        raise ValueError(f"a time must be finite, not {at!r}")
