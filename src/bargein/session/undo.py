"""Finds the turn to take back, what the user asked in it, and its effects, which remain."""

from collections.abc import Collection, Sequence

import msgspec

from bargein.calls import words
from bargein.contracts.checkpoint import FilesUndone, Span
from bargein.contracts.event import (
    CallEnded,
    CallStarted,
    CallsUndoing,
    FilesChanged,
    FilesRestored,
    FilesRolledBack,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    Recorded,
    TurnHidden,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.tool import CallResult, CallStatus, Effect
from bargein.session.undoing_calls import UndoOffer

__all__ = [
    "Undone",
    "describe",
    "effects_of",
    "last_visible_turn",
    "redoable",
    "spans_of",
    "turns_from",
    "words_of",
]


class Undone(msgspec.Struct, frozen=True):
    """A turn that the model does not see any more, or the first of several. `effects` are calls
    that may have changed something, in words; of what they did only files can be put back, and
    `files` says which were. `note` is what the model is told of it, and of turns that were taken
    back just before. `offers` are those of the calls that other calls can undo: `undo_calls` does
    it."""

    turn: str
    text: str
    effects: tuple[str, ...] = ()
    note: str = ""
    files: FilesUndone | None = None
    offers: tuple[UndoOffer, ...] = ()


def last_visible_turn(
    log: Sequence[Recorded],
    files: FilesUndone | None = None,
    hidden: Collection[str] = (),
) -> Undone | None:
    """The last turn that has settled and was not taken back before; None if there is none. A turn
    that undoes calls is part of an undo. `files` says what became of its files; `hidden` are turns
    that were taken back and of which the log does not tell yet."""
    visible: list[str] = []
    untold: list[str] = []
    undoing: dict[str, CallsUndoing] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, TurnStarted) and event.messages:
            # This turn began with the note about the turns that were taken back before it.
            untold, undoing = [], {}
        elif isinstance(event, CallsUndoing):
            undoing[event.turn] = event
        elif isinstance(event, TurnSettled) and event.turn in undoing:
            continue
        elif isinstance(event, TurnSettled) and not event.hidden:
            visible.append(event.turn)
        elif isinstance(event, TurnHidden | TurnSettled):
            untold.append(event.turn)
            visible = [turn for turn in visible if turn != event.turn]
    untold += [turn for turn in reversed(visible) if turn in hidden]
    visible = [turn for turn in visible if turn not in hidden]
    if not visible:
        return None
    turn = visible[-1]
    done = [effect for each in (*untold, turn) for effect in effects_of(each, log)]
    notes = [words.taken_back(done, files), *(_note_of(each, log) for each in undoing.values())]
    note = "\n".join(filter(None, notes))
    return Undone(turn, words_of(turn, log), effects_of(turn, log), note, files)


def _note_of(undoing: CallsUndoing, log: Sequence[Recorded]) -> str:
    """What the model is told of a turn that undid calls."""
    started: dict[str, ToolCall] = {}
    results: dict[str, CallResult] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, CallStarted):
            started[event.call.id] = event.call
        elif isinstance(event, CallEnded) and event.turn == undoing.turn:
            results[event.call_id] = event.result
    return words.undone_by_calls(
        (started[each.undoes], each.call, results.get(each.call.id))
        for each in undoing.calls
        if each.undoes in started
    )


def describe(
    turns: Sequence[str],
    log: Sequence[Recorded],
    files: FilesUndone | None,
    offers: tuple[UndoOffer, ...] = (),
) -> Undone:
    """Says what taking back these turns means; the first of them names it."""
    effects = tuple(effect for turn in turns for effect in effects_of(turn, log))
    note = words.taken_back(effects, files)
    return Undone(turns[0], words_of(turns[0], log), effects, note, files, offers)


def turns_from(turn: str, log: Sequence[Recorded]) -> tuple[str, ...]:
    """This turn and all that were started after it; none if there is no such turn."""
    started = [each.event.turn for each in log if isinstance(each.event, TurnStarted)]
    return tuple(started[started.index(turn) :]) if turn in started else ()


def spans_of(turns: Sequence[str], log: Sequence[Recorded]) -> tuple[Span, ...]:
    """The changes of files that calls of these turns made, in their order."""
    chosen = set(turns)
    return tuple(
        each.event.span
        for each in log
        if isinstance(each.event, FilesChanged) and each.event.turn in chosen
    )


def redoable(log: Sequence[Recorded]) -> FilesRestored | None:
    """The last undo of files that was not taken back itself. New work of calls ends all of them."""
    undone: list[FilesRestored] = []
    for recorded in log:
        event = recorded.event
        if isinstance(event, FilesChanged):
            undone = []
        elif isinstance(event, FilesRolledBack):
            if event.files.span is not None:
                undone.append(FilesRestored((event.turn,), event.files.span, event.by))
        elif isinstance(event, FilesRestored):
            if event.redo:
                del undone[-1:]
            else:
                undone.append(event)
    return undone[-1] if undone else None


def words_of(turn: str, log: Sequence[Recorded]) -> str:
    """Return what the user said in a turn."""
    texts: dict[str, str] = {}
    taken: list[str] = []
    for recorded in log:
        match recorded.event:
            case MessageAccepted(message=message):
                texts[message.id] = message.text
            case MessageEdited(message=edited, content=content):
                texts[edited] = "\n".join(each.text for each in content if isinstance(each, Text))
            case TurnStarted(turn=taker, messages=messages) if taker == turn:
                taken += messages
            case MessagesTaken(turn=taker, messages=messages) if taker == turn:
                taken += messages
            case _:
                pass
    return "\n".join(texts.get(message, "") for message in taken)


def effects_of(turn: str, log: Sequence[Recorded]) -> tuple[str, ...]:
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
