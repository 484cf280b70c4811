"""The state of a session as each commit stores it: small, and without anything the log has."""

import msgspec

from bargein.contracts.event import MessageAccepted, MessageEdited, Recorded
from bargein.contracts.message import Message
from bargein.contracts.store import SessionHead, SessionUnreadable
from bargein.contracts.value import Value
from bargein.session.budget import Accounts
from bargein.session.rules.inbox import edited
from bargein.session.state import Lane, Pending, SessionState, WaitingMessage


class WaitingRef(Value, frozen=True):
    """A waiting message by its place in the log, where its words are."""

    message: str
    lane: Lane
    seq: int


class Run(Value, frozen=True, array_like=True):
    """The stored form of consecutive waiting messages: the first one, and how many follow with
    consecutive numbers and places."""

    message: str
    lane: Lane
    seq: int
    count: int = 1

    def refs(self) -> list[WaitingRef]:
        refs = [WaitingRef(self.message, self.lane, self.seq)]
        for place in range(1, self.count):
            message = f"m{_number(self.message) + place}"
            refs.append(WaitingRef(message, self.lane, self.seq + place))
        return refs


def _number(message: str) -> int:
    """Return the number in a message's id; -1 for a message that no user sent, whose id differs."""
    digits = message[1:]
    return int(digits) if message[0] == "m" and digits.isdecimal() else -1


_NO_ACCOUNTS = Accounts()
_change = msgspec.structs.replace
_encode = msgspec.msgpack.Encoder().encode


class SessionSnapshot(Value, frozen=True):
    """`turn_seq` is where the running turn begins in the log. `named` is the older form of the
    waiting messages: still read, never written."""

    state: SessionState
    runs: tuple[Run, ...] = msgspec.field(default=(), name="inbox")
    turn_seq: int = 0
    agent_state: bytes = b""
    accounts: Accounts = _NO_ACCOUNTS
    named: tuple[WaitingRef, ...] = msgspec.field(default=(), name="waiting")

    @property
    def waiting(self) -> tuple[WaitingRef, ...]:
        return self.named + tuple(ref for run in self.runs for ref in run.refs())

    @property
    def log_begins_at(self) -> int | None:
        """Where to start reading the log in order to continue: at the oldest waiting message or at
        the turn that was running. None if there is nothing to continue."""
        needed = [ref.seq for ref in self.waiting]
        if self.state.busy:
            needed.append(self.turn_seq)
        return min(needed, default=None)


class WaitingRuns:
    """The waiting messages in stored form, kept from one commit to the next: usually one message
    was added at the end, and the others did not change. Only the last run can grow; those before it
    are encoded once."""

    def __init__(self) -> None:
        self._waiting: tuple[WaitingMessage, ...] = ()
        self._runs: list[Run | msgspec.Raw] = []
        self._last: Run | None = None
        self._number = -1

    def of(
        self, waiting: tuple[WaitingMessage, ...], seqs: dict[str, int]
    ) -> list[Run | msgspec.Raw]:
        if waiting is self._waiting:
            return self._runs
        known = len(self._waiting)
        if waiting[:known] != self._waiting:
            known, self._runs, self._last = 0, [], None
        for each in waiting[known:]:
            self._add(each.message.id, each.lane, seqs[each.message.id])
        self._waiting = waiting
        return self._runs

    def _add(self, message: str, lane: Lane, seq: int) -> None:
        last = self._last
        self._number += 1
        if last is None:
            self._begin(message, lane, seq)
        elif seq == last.seq + last.count and lane is last.lane and message == f"m{self._number}":
            self._last = self._runs[-1] = Run(last.message, lane, last.seq, last.count + 1)
        else:
            self._runs[-1] = msgspec.Raw(_encode(last))
            self._begin(message, lane, seq)

    def _begin(self, message: str, lane: Lane, seq: int) -> None:
        self._number = _number(message)
        self._last = Run(message, lane, seq)
        self._runs.append(self._last)


class _Stored(Value, frozen=True, omit_defaults=True):
    """A `SessionSnapshot` on its way to the store."""

    state: SessionState
    inbox: list[Run | msgspec.Raw] = msgspec.field(default_factory=list)
    turn_seq: int = 0
    agent_state: bytes = b""
    accounts: Accounts = _NO_ACCOUNTS


_decoder = msgspec.msgpack.Decoder(SessionSnapshot)


def encode(
    state: SessionState,
    runs: list[Run | msgspec.Raw],
    turn_seq: int,
    agent_state: bytes,
    accounts: Accounts,
) -> bytes:
    # The next program must not see that this one is closing, and no call in it waits for an
    # answer.
    questions = state.questions and tuple(
        [Pending(each.asked, live=False) for each in state.questions]
    )
    bare = _change(state, waiting=(), closing=False, questions=questions)
    return _encode(_Stored(bare, runs, turn_seq, agent_state, accounts))


def decode(body: bytes) -> SessionSnapshot:
    return _decoder.decode(body) if body else SessionSnapshot(SessionState())


def stored_in(head: SessionHead) -> SessionSnapshot:
    """Decode a head's state; raises `SessionUnreadable` if this version cannot read it."""
    try:
        return decode(head.state)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SessionUnreadable(head.id, "the state") from error


def with_messages(session: str, snapshot: SessionSnapshot, log: list[Recorded]) -> SessionState:
    """Return the state with its waiting messages, read from the log since the oldest of them."""
    messages: dict[str, Message] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, MessageAccepted):
            messages[event.message.id] = event.message
        elif isinstance(event, MessageEdited) and event.message in messages:
            messages[event.message] = edited(messages[event.message], event)
    missing = [ref.message for ref in snapshot.waiting if ref.message not in messages]
    if missing:
        raise SessionUnreadable(session, f"the waiting message {missing[0]}")
    waiting = tuple(WaitingMessage(messages[ref.message], ref.lane) for ref in snapshot.waiting)
    return msgspec.structs.replace(snapshot.state, waiting=waiting)
