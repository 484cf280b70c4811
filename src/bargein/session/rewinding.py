"""Puts files back as they were before some turns, and takes that back again.

A session's log says between which snapshots its calls changed files; `contracts.checkpoint` does
the rest. What still runs on purpose, such as a call in the background or another session in the
same folder, is another program to an undo: what it changed is kept.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from bargein.contracts.checkpoint import Checkpoints, FilesUndone
from bargein.contracts.event import FilesRestored, Recorded
from bargein.errors import UserError
from bargein.session.undo import redoable, spans_of

if TYPE_CHECKING:
    from bargein.session.actor import Actor


class Rewind(StrEnum):
    """What a rewind takes back."""

    CONVERSATION = "conversation"
    FILES = "files"
    BOTH = "both"


def checkpoints_of(actor: "Actor") -> Checkpoints:
    found = actor.files.checkpoints
    if found is None:
        raise UserError(
            "no snapshots of the files are taken: that needs an agent with a workspace, git, and "
            "the setting checkpoints.enabled"
        )
    return found


async def preview_files(
    actor: "Actor", turns: Sequence[str], log: Sequence[Recorded], overrule: Sequence[str]
) -> FilesUndone:
    """Say what `undo_files` would do."""
    return await checkpoints_of(actor).preview(spans_of(turns, log), overrule)


async def undo_files(
    actor: "Actor",
    turns: Sequence[str],
    log: Sequence[Recorded],
    *,
    overrule: Sequence[str],
    by: str,
) -> FilesUndone:
    """Put the files of these turns back. In the log when this returns."""
    done = await checkpoints_of(actor).undo(spans_of(turns, log), overrule)
    if done.span is not None:
        await actor.write(FilesRestored(tuple(turns), done.span, by)).wait()
    return done


async def redo_files(actor: "Actor", log: Sequence[Recorded], *, by: str) -> FilesUndone | None:
    """Take back the last undo of files; None if there is none."""
    last = redoable(log)
    if last is None:
        return None
    done = await checkpoints_of(actor).undo([last.span])
    if done.span is not None:
        await actor.write(FilesRestored(last.turns, done.span, by, redo=True)).wait()
    return done
