"""Takes turns of a session back: their words from the model, their files, and what calls undo.

A session's log says between which snapshots its calls changed files; `contracts.checkpoint` does
the rest. What still runs on purpose, such as a call in the background or another session in the
same folder, is another program to an undo: what it changed is kept.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from bargein.contracts.checkpoint import Checkpoints, FilesUndone
from bargein.contracts.event import FilesChanged, FilesRestored, Recorded, TurnSettled
from bargein.errors import UserError
from bargein.session.commands import Hide, Refuse, UndoCalls
from bargein.session.sending import Busy, TooLate
from bargein.session.undo import (
    Undone,
    describe,
    last_visible_turn,
    redoable,
    spans_of,
    turns_from,
)
from bargein.session.undoing_calls import CallsBeingUndone, offers, undoable

if TYPE_CHECKING:
    from bargein.session.actor import Actor

Log = Sequence[Recorded]


class Rewind(StrEnum):
    """What a rewind takes back."""

    CONVERSATION = "conversation"
    FILES = "files"
    BOTH = "both"


# All of these need a session at rest: no turn runs, and the log tells everything. Those that change
# something are called without an await after `refuse_if_untold`.


async def preview(actor: "Actor", turn: str | None, log: Log, overrule: Sequence[str]) -> Undone:
    """Say what taking back `turn` and all later turns would do, or the last turn."""
    turns = known_turns(turn, log) if turn is not None else (last_turn(log),)
    files = None
    if actor.files.checkpoints is not None:
        files = await actor.files.checkpoints.preview(spans_of(turns, log), overrule)
    return describe(turns, log, files, offers(actor.parts.toolbox, turns, log))


async def take_back(
    actor: "Actor",
    turns: Sequence[str],
    log: Log,
    what: Rewind,
    *,
    overrule: Sequence[str],
    by: str,
) -> Undone:
    """Take back these turns. Files first: if that fails, nothing has happened. If another turn
    begins meanwhile, it stays, and so do the words of these turns."""
    count = actor.state.turns
    files = None
    if what is not Rewind.CONVERSATION:
        files = await _undo_files(actor, turns, log, overrule=overrule, by=by)
    told = describe(turns, log, files, offers(actor.parts.toolbox, turns, log))
    if what is Rewind.FILES:
        return told
    note = await _hide(actor, turns, log, files, count=count, by=by)
    return msgspec.structs.replace(told, note=note)


async def redo(actor: "Actor", log: Log, *, by: str) -> FilesUndone:
    """Take back the last undo of files."""
    last = redoable(log)
    if last is None:
        raise TooLate("there is no undo of files that could be taken back")
    done = await _checkpoints_of(actor).undo([last.span])
    if done.span is not None:
        await actor.write(FilesRestored(last.turns, done.span, by, redo=True)).wait()
    return done


async def diff(actor: "Actor", turn: str | None, log: Log) -> str:
    """Return what the calls of a turn changed; of the last turn that changed files if `turn` is
    None."""
    if turn is None:
        changed = [each.event.turn for each in log if isinstance(each.event, FilesChanged)]
        turn = changed[-1] if changed else ""
    else:
        known_turns(turn, log)
    return await _checkpoints_of(actor).diff(spans_of((turn,), log))


async def undo_calls(
    actor: "Actor", calls: Sequence[str] | None, log: Log, *, by: str
) -> CallsBeingUndone:
    """Start a turn that undoes these calls, or those of the last turn that has any."""
    offered = undoable(actor.parts.toolbox, turns_from("t1", log), log)
    if not offered:
        raise TooLate("there is no call that another call could undo")
    gone = set(calls or ()) - {offer.call for offer, _ in offered}
    if gone:
        raise TooLate(f"no other call can undo {min(gone)}, or one has already")
    last = offered[0][0].turn
    chosen = [
        (offer, to_undo)
        for offer, to_undo in offered
        if (offer.turn == last if calls is None else offer.call in calls)
    ]
    refuse_if_untold(actor, log)
    told = actor.post(UndoCalls(tuple(to_undo for _, to_undo in chosen), by))
    running = actor.turn
    answer = await told.wait()
    if isinstance(answer, Refuse) or running is None:
        raise Busy(answer.why if isinstance(answer, Refuse) else "the session is busy")
    return CallsBeingUndone(running.id, tuple(offer for offer, _ in chosen))


def refuse_if_untold(actor: "Actor", log: Log) -> None:
    """Raise `TooLate` if a turn has begun that the log, as it was read, does not tell whole."""
    last = f"t{actor.state.turns}"
    ended = any(isinstance(each.event, TurnSettled) and each.event.turn == last for each in log)
    if actor.turn is not None or (actor.state.turns and not ended):
        raise TooLate(f"{last} has begun meanwhile; nothing was taken back")


def last_turn(log: Log) -> str:
    found = last_visible_turn(log)
    if found is None:
        raise TooLate("there is no turn to take back")
    return found.turn


def known_turns(turn: str, log: Log) -> tuple[str, ...]:
    """Return this turn and all later ones."""
    turns = turns_from(turn, log)
    if not turns:
        raise TooLate(f"there is no turn {turn} in this session")
    return turns


def _checkpoints_of(actor: "Actor") -> Checkpoints:
    found = actor.files.checkpoints
    if found is None:
        raise UserError(
            "no snapshots of the files are taken: that needs an agent with a workspace, git, and "
            "the setting checkpoints.enabled"
        )
    return found


async def _undo_files(
    actor: "Actor", turns: Sequence[str], log: Log, *, overrule: Sequence[str], by: str
) -> FilesUndone:
    """Put the files of these turns back. In the log when this returns."""
    done = await _checkpoints_of(actor).undo(spans_of(turns, log), overrule)
    if done.span is not None:
        await actor.write(FilesRestored(tuple(turns), done.span, by)).wait()
    return done


async def _hide(
    actor: "Actor",
    turns: Sequence[str],
    log: Log,
    files: FilesUndone | None,
    *,
    count: int,
    by: str,
) -> str:
    """Hide these turns from the model, the last first. Return what the model is told. `count` is
    how many turns the session had when they were chosen: hiding a turn would hide later ones."""
    note, hidden = "", set[str]()
    while (found := last_visible_turn(log, files, hidden)) is not None and found.turn in turns:
        note = found.note
        answer = await actor.post(Hide(found.turn, count, by, note)).wait()
        if isinstance(answer, Refuse):
            changed = files is not None and files.span is not None
            back = "; the files were put back, and a redo takes that back" if changed else ""
            raise TooLate(f"{answer.why}{back}")
        hidden.add(found.turn)
        if found.turn == turns[0]:
            break
    return note
