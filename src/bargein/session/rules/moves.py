"""Steps that several rules share: accept, wait, hold, start the next turn, leave. Pure."""

import msgspec

from bargein.contracts.event import (
    Event,
    MessageAccepted,
    QuestionClosed,
    QueueHeld,
    SessionEnded,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.message import Disposition, Message
from bargein.contracts.model import Image, Text
from bargein.session.commands import Accept, Effect, Leave, Log, StartTurn
from bargein.session.state import Lane, Phase, SessionState, WaitingMessage

Decision = tuple[SessionState, tuple[Effect, ...]]
change = msgspec.structs.replace

BACKGROUND = "background"
"""The sender of messages that report the end of background work."""

UNASKED_TURNS_MAX = 25
"""How many turns in a row such messages alone may start. Then they are held: otherwise an agent
that starts background work in each of these turns would never come to rest."""


def accept_as(message: Message, disposition: Disposition, turn: str | None) -> tuple[Effect, ...]:
    return (
        Log((MessageAccepted(message, disposition, turn),)),
        Accept(message.id, disposition, turn),
    )


def wait_in(state: SessionState, message: Message, lane: Lane) -> SessionState:
    waiting = state.waiting + (WaitingMessage(message, lane),)  # noqa: RUF005 - a third of the time
    if state.unasked and message.sender != BACKGROUND:
        state = change(state, unasked=0)
    return change(state, waiting=waiting, messages=state.messages + 1)


def hold(state: SessionState) -> tuple[SessionState, tuple[Event, ...]]:
    if state.held or not state.waiting or state.child:
        return state, ()
    return change(state, held=True), (QueueHeld(),)


def leave(state: SessionState) -> tuple[SessionState, tuple[Event, ...], tuple[Effect, ...]]:
    """Let the session leave memory if it is closing or ending and nothing of it runs any more."""
    runs = state.busy or state.restoring or state.background or state.children
    if not (state.closing or state.ending) or runs:
        return state, (), ()
    if state.ending:
        closed = [QuestionClosed(each.asked.id) for each in state.questions]
        state = change(state, phase=Phase.ENDED, ending=False, questions=())
        return state, (*closed, SessionEnded()), (Leave(),)
    return state, (), (Leave(),)


def start_next(
    state: SessionState,
) -> tuple[SessionState, tuple[Event, ...], tuple[Effect, ...]]:
    """Start a turn with the next messages, if one may start. If background messages started too
    many turns in a row, hold them instead."""
    stays = state.held or state.closing or state.ending or state.gathering or state.busy
    if stays or state.restoring or not state.waiting:
        return state, (), ()
    taken = state.lane(Lane.NEXT) or state.lane(Lane.STEER)
    if not taken:
        first = state.waiting[0].message
        taken = tuple(
            each.message
            for each in state.waiting
            if each.message is first or (first.group and each.message.group == first.group)
        )
    unasked = 0
    if taken[0].sender == BACKGROUND and all(each.sender == BACKGROUND for each in taken):
        unasked = state.unasked + 1
        if unasked > UNASKED_TURNS_MAX:
            state, held = hold(state)
            return state, held, ()
    ids = tuple(each.id for each in taken)
    turn = f"t{state.turns + 1}"
    note = (Text(state.note),) if state.note else ()
    events = (TurnStarted(turn, ids), UserSaid(turn, (*note, *content_of(taken))))
    state = change(
        state,
        phase=Phase.RUNNING,
        turn=turn,
        turns=state.turns + 1,
        turn_groups=tuple(each.group for each in taken if each.group is not None),
        waiting=tuple(each for each in state.waiting if each.message.id not in ids),
        note="",
        unasked=unasked,
    )
    return state, events, (StartTurn(turn, taken),)


def content_of(messages: tuple[Message, ...]) -> tuple[Text | Image, ...]:
    return tuple(part for message in messages for part in message.content)
