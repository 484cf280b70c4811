"""Finds the turn to take back, what the user asked in it, and its effects, which remain."""

from collections.abc import Sequence

import msgspec

from bargein.calls.words import TAKEN_BACK
from bargein.contracts.event import (
    CallEnded,
    CallStarted,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    Recorded,
    TurnHidden,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import Text
from bargein.contracts.tool import CallStatus, Effect

__all__ = [
    "Undone",
    "last_visible_turn",
    "words_of",
]


class Undone(msgspec.Struct, frozen=True):
    """A turn that the model no longer sees. `effects` describes the calls that may have changed
    something; none of them was undone. `note` tells the model about them, and about those of turns
    that were taken back just before."""

    turn: str
    text: str
    effects: tuple[str, ...] = ()
    note: str = ""


def last_visible_turn(log: Sequence[Recorded]) -> Undone | None:
    """Return the last settled turn that was not taken back; None if there is none."""
    visible: list[str] = []
    untold: list[str] = []
    for recorded in log:
        event = recorded.event
        if isinstance(event, TurnStarted) and event.messages:
            # This turn began with the note about the turns that were taken back before it.
            untold = []
        elif isinstance(event, TurnSettled) and not event.hidden:
            visible.append(event.turn)
        elif isinstance(event, TurnHidden | TurnSettled):
            untold.append(event.turn)
            visible = [turn for turn in visible if turn != event.turn]
    if not visible:
        return None
    turn = visible[-1]
    done = [effect for each in (*untold, turn) for effect in _effects(each, log)]
    note = "\n".join([TAKEN_BACK, *(f"[{effect}]" for effect in done)]) if done else ""
    return Undone(turn, words_of(turn, log), _effects(turn, log), note)


def words_of(turn: str, log: Sequence[Recorded]) -> str:
    """Return what the user said in a turn."""
    words: dict[str, str] = {}
    taken: list[str] = []
    for recorded in log:
        match recorded.event:
            case MessageAccepted(message=message):
                words[message.id] = message.text
            case MessageEdited(message=edited, content=content):
                words[edited] = "\n".join(each.text for each in content if isinstance(each, Text))
            case TurnStarted(turn=taker, messages=messages) if taker == turn:
                taken += messages
            case MessagesTaken(turn=taker, messages=messages) if taker == turn:
                taken += messages
            case _:
                pass
    return "\n".join(words.get(message, "") for message in taken)


def _effects(turn: str, log: Sequence[Recorded]) -> tuple[str, ...]:
    """Return the calls of a turn that were started and may have changed something."""
    calls: dict[str, str] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, CallStarted) and event.turn == turn:
            if event.effect is not Effect.NONE:
                calls[event.call.id] = event.title or event.call.name
        elif isinstance(event, CallEnded) and event.call_id in calls:
            if event.result.status is CallStatus.NOT_STARTED:
                del calls[event.call_id]
            else:
                calls[event.call_id] += f": {event.result.status}"
    return tuple(calls.values())
