"""Sends a message to a session: recognises a repeated one, has it decided at once, and acknowledges
it when it is durable."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict

import msgspec

from bargein.cancel import Cause, Reason
from bargein.contracts.event import TurnOutcome
from bargein.contracts.given import check_parts, check_texts
from bargein.contracts.message import (
    Attachment,
    Disposition,
    HeardSoFar,
    Message,
    Mode,
    QuestionPolicy,
)
from bargein.contracts.model import Image, Text
from bargein.contracts.output import Output
from bargein.contracts.output_type import OutputType, T
from bargein.contracts.store import AcceptKey
from bargein.errors import UserError, WorldError
from bargein.session.abort import heard_event, land
from bargein.session.commands import Send
from bargein.session.limits import weight_of
from bargein.session.reply import Reply, SessionGone
from bargein.session.results import ResultSlot, TurnResult, from_log
from bargein.session.rules.sending import ONE_TURN

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.engine import SessionEngine

Content = str | Sequence[Text | Image]

LARGE_BYTES = 64 * 1024

STOPPING = (Mode.INTERRUPT, Mode.ROLLBACK)

_encode = msgspec.msgpack.Encoder().encode


class Busy(UserError):
    """A turn is running, and the message has `mode="reject"`."""


class IdReused(UserError):
    """The client id was used before for another message."""


class TooLate(UserError):
    """The turn, message or question to change is over or gone."""


class InboxFull(WorldError):
    """The inbox has no room for more messages."""


class TurnFailed(WorldError):
    """The turn ended with an error."""


class AnySendOptions(TypedDict, total=False):
    """The options of `send` and `stream` besides `output`, for type checkers."""

    mode: Mode | str
    client_id: str | None
    expected_turn: str | None
    attachments: Sequence[Attachment]
    group: str | None
    questions: QuestionPolicy | None
    heard: HeardSoFar | None


class SendOptions(AnySendOptions, total=False):
    """The same of a session in this process, where the caller says who speaks."""

    sender: str


class AwaitedResult(Protocol):
    """Where the result of a message appears: in this process, or at the other end of a wire."""

    async def wait(self) -> TurnResult[Any]: ...


class Sent(msgspec.Struct, Generic[T], frozen=True):
    """An accepted message. `result()` waits for the turn that takes it."""

    message: str
    disposition: Disposition
    turn: str | None
    _slot: AwaitedResult
    _output_type: OutputType[T] | None = None

    async def result(self) -> TurnResult[T]:
        """Wait for the turn that takes this message, and return its result. Raises `TurnFailed` if
        the turn failed."""
        result = await self._slot.wait()
        if result.outcome is TurnOutcome.FAILED:
            raise TurnFailed(result.error, retryable=False)
        return TurnResult(
            result.turn,
            result.outcome,
            result.text,
            result.error,
            result.receipt,
            self._output_type,
        )


def parts_of(content: Content) -> tuple[Text | Image, ...]:
    if isinstance(content, str):
        check_texts(content=content)
        parts: tuple[Text | Image, ...] = (Text(content),)
        has_content = bool(content.strip())
    else:
        parts = tuple(check_parts("content", content))
        has_content = any(not isinstance(part, Text) or part.text.strip() for part in parts)
    if not has_content:
        raise UserError("the message is empty; give it some text")
    return parts


def hash_of(
    content: tuple[Text | Image, ...],
    attachments: tuple[Attachment, ...],
    mode: Mode,
    output: Output | None = None,
) -> bytes:
    # The hash of a message without an output must not change: hashes are stored with messages.
    body = _encode((content, attachments, mode, *(() if output is None else (output,))))
    return hashlib.sha256(body).digest()


def hand_over(
    actor: "Actor",
    message: Message,
    body_hash: bytes,
    expected_turn: str | None,
    output_type: OutputType[Any] | None,
    heard: HeardSoFar | None = None,
) -> tuple[ResultSlot, Reply]:
    """Post a message. Returns the promises of its result and of its acknowledgement."""
    _check_size(message, actor.limits.message_bytes_max)
    state, mode = actor.state, message.mode
    if len(state.waiting) >= actor.limits.waiting_max:
        raise InboxFull(
            f"{len(state.waiting)} messages already wait, which is the limit; try again later",
            retryable=True,
        )
    _check_room(actor, weight_of(message))
    noted = None
    if heard is not None:
        noted = heard_event(actor, heard, message.sender)
        if noted is None:
            raise UserError(
                f"heard names the turn {heard.turn!r}, which session {actor.session_id} does not "
                "have; give the id of the turn whose answer the user heard"
            )
    target, landed = state.turn, False
    if mode in STOPPING:
        if state.child:
            raise UserError(ONE_TURN)
        if message.group is None or message.group not in state.turn_groups:
            cause = Cause.REDIRECT if mode is Mode.INTERRUPT else Cause.ROLLBACK
            landing = land(actor, Reason(cause, message.sender), expected_turn)
            target, landed = landing.turn_id, landing.landed
    elif expected_turn not in (None, state.turn) and mode is Mode.STEER:
        message = msgspec.structs.replace(message, mode=Mode.QUEUE)
    keys: tuple[AcceptKey, ...] = ()
    if message.client_id is not None:
        keys = (AcceptKey(message.sender, message.client_id, message.id, body_hash),)
    if noted is not None:
        # Before the message, so that the turn that takes the message knows it.
        actor.log(noted)
    reply = actor.post(Send(message, target, landed), keys)
    slot = ResultSlot()
    slot.output_type = output_type
    if not reply.filled:
        actor.results.begin(message.id, slot)
        for key in keys:
            actor.remember(key, reply)
    return slot, reply


async def find_key(
    engine: "SessionEngine", actor: "Actor", sender: str, client_id: str
) -> tuple[AcceptKey | None, Reply | None]:
    """Find the key of a message that was sent before, with its reply if it is not durable yet."""
    found = await engine.store.find_key(actor.session_id, sender, client_id)
    if found is not None:
        return found, None
    # After the store: a message that was accepted during its answer is remembered here.
    return actor.recent.get((sender, client_id), (None, None))


async def duplicate(
    engine: "SessionEngine",
    actor: "Actor",
    known: AcceptKey,
    reply: Reply | None,
    body_hash: bytes,
    output_type: OutputType[Any] | None,
) -> Sent[Any]:
    """Answer a message that was sent before."""
    if known.body_hash != body_hash:
        raise IdReused(
            f"client id {known.client_id!r} was used for another message ({known.message}); "
            "give each message its own id"
        )
    if reply is not None:
        # A repeated message is not acknowledged before it is durable either.
        await reply.wait()
    if actor.gone.is_set:
        # The session left memory during the lookup: its state is stale, and no result would come.
        raise SessionGone(f"{actor.session_id} has left memory")
    slot = await slot_of(engine, actor, known.message)
    slot.output_type = slot.output_type or output_type
    return Sent(known.message, Disposition.DUPLICATE, None, slot, output_type or engine.output_type)


async def slot_of(engine: "SessionEngine", actor: "Actor", message: str) -> ResultSlot:
    """The result of a message by its id: one to come, or the one that the log has."""
    waits = any(each.message.id == message for each in actor.state.waiting)
    if waits or actor.results.is_open(message):
        return actor.results.expect(message)
    return from_log(message, await engine.events(actor.session_id))


def _check_room(actor: "Actor", size: int) -> None:
    limits, waiting = actor.limits, actor.waiting_bytes
    if _may_wait(actor) and waiting + size > limits.waiting_bytes_max:
        raise InboxFull(
            f"the waiting messages have {waiting} bytes, and this one has {size}; at most "
            f"{limits.waiting_bytes_max} may wait. Try again when some were taken",
            retryable=True,
        )
    said = actor.logbook.accounts.said_bytes
    if said + size > limits.said_bytes_max:
        raise UserError(
            f"session {actor.session_id} has received {said} bytes, and this message has {size}; a "
            f"session takes at most {limits.said_bytes_max}. Begin another session"
        )


def _may_wait(actor: "Actor") -> bool:
    """Whether a message that arrives now may have to wait."""
    return bool(actor.state.waiting) or actor.state.busy


def _check_size(message: Message, limit: int) -> None:
    """Refuse a message that is too large. Only small ones are encoded to measure them."""
    size = weight_of(message)
    if size < LARGE_BYTES:
        size = len(_encode(message))
    if size > limit:
        raise UserError(f"the message has {size} bytes; send at most {limit}")
