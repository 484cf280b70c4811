"""Puts back the files of a turn that a message rolled back, between its end and the next turn.

The turn has settled, so nothing that it started writes any more, and its receipt has been given.
Until `RolledBack` is posted the session starts no turn: messages wait, and a stop holds them. The
state names the turn, so a restart in between does it again. Files that are back already stay then.

It always ends, and never raises: a failure is logged and told to the model and the user, and the
message starts its turn.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bargein.calls import words
from bargein.cancel import Outcome
from bargein.contracts.checkpoint import CheckpointError, FilesUndone
from bargein.contracts.event import Event, FilesRolledBack, MessageAccepted, Recorded
from bargein.contracts.message import Mode
from bargein.session.commands import RolledBack
from bargein.session.undo import effects_of, spans_of

if TYPE_CHECKING:
    from bargein.session.actor import Actor

_log = logging.getLogger("bargein.session")


async def put_files_back(actor: "Actor", turn: str) -> None:
    files: FilesUndone | None = None
    error = ""
    log: Sequence[Recorded] = ()
    try:
        await actor.files.saved()
        await actor.stored_so_far()
        log = await actor.events_of(turn)
        spans, checkpoints = spans_of((turn,), log), actor.files.checkpoints
        if actor.gone.is_set:
            return  # the session comes back, and does it then
        if spans and checkpoints is not None:
            # A restore goes on to its end. When the program ends nobody waits for that beyond the
            # grace; the next start finishes it.
            undone: Outcome[FilesUndone] = await actor.owner.run(
                checkpoints.undo,
                spans,
                token=actor.source.token,
                grace_s=actor.limits.settle_s,
                name=f"rollback of {turn}",
            )
            if actor.gone.is_set:
                return
            files = undone.unwrap()
    except CheckpointError as failure:
        _log.warning("the files of %s are not put back: %s", turn, failure)
        error = str(failure)
    except Exception as failure:  # boundary: whatever failed, the message must start its turn
        _log.error("the files of %s are not put back", turn, exc_info=failure)
        error = f"{type(failure).__name__}: {failure}"
    events: tuple[Event, ...] = ()
    if error or (files is not None and files.files):
        events = (FilesRolledBack(turn, files or FilesUndone(), _asked_by(turn, log), error),)
    actor.post(RolledBack(turn, events, words.rolled_back(effects_of(turn, log), files, error)))


def _asked_by(turn: str, log: Sequence[Recorded]) -> str:
    """Return who sent the last message that rolled this turn back."""
    senders = [
        each.event.message.sender
        for each in log
        if isinstance(each.event, MessageAccepted) and each.event.message.mode is Mode.ROLLBACK
    ]
    return senders[-1] if senders else ""
