"""The state of a session as it is stored with each commit: small, and without what the log has."""

import msgspec

from bargein.contracts.event import MessageAccepted, MessageEdited, Recorded
from bargein.contracts.message import Message
from bargein.contracts.value import Value
from bargein.session.budget import Accounts
from bargein.session.state import Lane, Pending, SessionState, Waiting


class WaitingRef(Value, frozen=True, array_like=True):
    """A waiting message by its place in the log; its words are read from there."""

    message: str
    lane: Lane
    seq: int


class _NamedRef(Value, frozen=True):
    """The same as it was stored before, with the name of each field: still read, never written."""

    message: str
    lane: Lane
    seq: int


_encode_ref = msgspec.msgpack.Encoder().encode


class Snapshot(Value, frozen=True):
    """`turn_seq` is where the running turn begins in the log."""

    state: SessionState
    waiting: tuple[WaitingRef, ...] = msgspec.field(default=(), name="inbox")
    turn_seq: int = 0
    agent_state: bytes = b""
    accounts: Accounts = Accounts()
    named: tuple[_NamedRef, ...] = msgspec.field(default=(), name="waiting")

    @property
    def log_begins_at(self) -> int | None:
        """Where to read the log from to go on: the oldest message that waits, or the turn that
        was running. None if there is nothing to go on with."""
        needed = [ref.seq for ref in self.waiting]
        if self.state.busy:
            needed.append(self.turn_seq)
        return min(needed, default=None)


class WaitingRefs:
    """The messages that wait, by their places, as they are stored. Kept from one commit to the
    next: mostly one has come at the end, and those before it are as they were."""

    def __init__(self) -> None:
        self._waiting: tuple[Waiting, ...] = ()
        self._refs: list[msgspec.Raw] = []

    def of(self, waiting: tuple[Waiting, ...], seqs: dict[str, int]) -> list[msgspec.Raw]:
        if waiting is self._waiting:
            return self._refs
        known = len(self._waiting)
        if waiting[:known] != self._waiting:
            known, self._refs = 0, []
        for each in waiting[known:]:
            ref = WaitingRef(each.message.id, each.lane, seqs[each.message.id])
            self._refs.append(msgspec.Raw(_encode_ref(ref)))
        self._waiting = waiting
        return self._refs


class _Stored(Value, frozen=True, omit_defaults=True):
    """A `Snapshot` on its way to the store."""

    state: SessionState
    inbox: list[msgspec.Raw] = msgspec.field(default_factory=list)
    turn_seq: int = 0
    agent_state: bytes = b""
    accounts: Accounts = Accounts()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode(
    state: SessionState,
    refs: list[msgspec.Raw],
    turn_seq: int,
    agent_state: bytes,
    accounts: Accounts,
) -> bytes:
    # That this program is about to end is nothing that the next one should know; and nobody in
    # that one waits for an answer.
    questions = state.questions and tuple(
        [Pending(each.asked, live=False) for each in state.questions]
    )
    bare = msgspec.structs.replace(state, waiting=(), closing=False, questions=questions)
    return _encoder.encode(_Stored(bare, refs, turn_seq, agent_state, accounts))


def decode(body: bytes) -> Snapshot:
    if not body:
        return Snapshot(SessionState())
    snapshot = _decoder.decode(body)
    if snapshot.named:
        waiting = tuple(WaitingRef(ref.message, ref.lane, ref.seq) for ref in snapshot.named)
        snapshot = msgspec.structs.replace(snapshot, waiting=waiting, named=())
    return snapshot


def with_messages(snapshot: Snapshot, log: list[Recorded]) -> SessionState:
    """The state with the words of what waits, read from the log since the oldest of them."""
    messages: dict[str, Message] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, MessageAccepted):
            messages[event.message.id] = event.message
        elif isinstance(event, MessageEdited) and event.message in messages:
            before = messages[event.message]
            edited = msgspec.structs.replace(before, content=event.content, allows=None)
            messages[event.message] = edited
    waiting = tuple(Waiting(messages[ref.message], ref.lane) for ref in snapshot.waiting)
    return msgspec.structs.replace(snapshot.state, waiting=waiting)
