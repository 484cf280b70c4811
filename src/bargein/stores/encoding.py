"""Encodes events as bytes, and refuses values that no store can keep before anything is written.

An event is one MessagePack body. A field may be added to an event if it has a default; any other
change of meaning needs a migration.
"""

import math
import time
from collections.abc import Iterable

import msgspec

from bargein.contracts.event import Event, Recorded
from bargein.contracts.store import Commit, SessionUnreadable

SEQ_MAX = 2**32 - 1

encode_event = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder[Event](Event).decode


def encode_events(events: Iterable[Event]) -> tuple[bytes, ...]:
    return tuple(map(encode_event, events))


def encode_one_by_one(events: Iterable[Event]) -> tuple[bytes, ...]:
    """For large events. Other threads may run after each."""
    bodies = []
    for event in events:
        bodies.append(encode_event(event))
        time.sleep(0)
    return tuple(bodies)


def decode_events(session: str, rows: Iterable[tuple[int, float, bytes]]) -> list[Recorded]:
    """Decode rows of seq, time and body. Raises `SessionUnreadable` for the first row that this
    version cannot read."""
    found: list[Recorded] = []
    for seq, at, body in rows:
        try:
            found.append(Recorded(seq, at, decode_event(body)))
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
