"""Takes snapshots around a session's calls: one before calls that may change files, one after.

Calls that run side by side are one group with one pair of snapshots. The snapshot before a group is
fresh, so changes that a user made while the model was thinking count as the user's. The snapshot
after it is taken beside the turn: the next call that may change files waits for it, and the end of
a turn that nobody stops; the next request and the receipt of a stop do not.

When a turn begins, a snapshot is taken beside its first request, so that the snapshot before its
first call finds little to do. If a snapshot fails the calls run all the same, and an undo names
them as not covered.

From the moment a call is detached, an undo treats it as another program. Sub-agents work within the
call that started them.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bargein.cancel.latch import Latch
from bargein.contracts.checkpoint import CheckpointError, Checkpoints, FolderWork
from bargein.contracts.event import FilesChanged
from bargein.errors import BargeinError

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.turn import Turn

_log = logging.getLogger("bargein.session")

T = TypeVar("T")


class _Group:
    """Calls that run at the same time."""

    def __init__(self, turn_id: str, turn: "Turn | None", work: FolderWork) -> None:
        self.turn_id = turn_id
        self.turn = turn
        self.work = work
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.opened = Latch()
        self.closed = Latch()
        self.is_closing = False


class SessionFiles:
    def __init__(self, actor: "Actor", checkpoints: Checkpoints | None) -> None:
        self._actor = actor
        self.checkpoints = checkpoints
        self._next = checkpoints
        self._group: _Group | None = None
        self._restored: Latch | None = None
        self._is_at_it = False
        self._worked_for = ""

    def work_with(self, checkpoints: Checkpoints | None) -> None:
        """Calls that run now are saved where they work; files go back where they were changed."""
        self._next = checkpoints
        if self.is_idle:
            self.checkpoints = checkpoints

    @property
    def is_idle(self) -> bool:
        return self._group is None and self._restored is None

    def may_have_changed(self, turn_id: str) -> bool:
        """Whether calls of the turn may have changed files, and snapshots are taken."""
        return self.checkpoints is not None and self._worked_for == turn_id

    def restores(self, begins: bool) -> None:
        """Files of a turn that was rolled back are being put back, or are not any more."""
        self._is_at_it = False
        restored, self._restored = self._restored, Latch() if begins else None
        if restored is not None:
            restored.set()
        if self.is_idle:
            self.checkpoints = self._next

    def takes_up_restore(self) -> bool:
        """Returns False if somebody is at it: a second restore could meet the next turn."""
        taken, self._is_at_it = self._is_at_it, True
        return not taken

    async def idle(self, timeout_s: float | None = None) -> None:
        """Wait until the snapshots of all groups are in the log, or have failed, and no files of a
        turn that was rolled back are being put back."""
        await self.saved(timeout_s)
        await self.restored(timeout_s)

    async def restored(self, timeout_s: float | None = None) -> None:
        """Wait until no files of a turn that was rolled back are being put back."""
        while self._restored is not None:
            if not await self._restored.wait(timeout_s):
                return

    async def saved(self, timeout_s: float | None = None) -> None:
        """Wait until the snapshots of all groups are in the log, or have failed."""
        while self._group is not None:
            if not await self._group.closed.wait(timeout_s):
                return

    def turn_begins(self) -> None:
        if self.checkpoints is not None:
            self._actor.spawn(self._warm_up)

    async def before(self, turn_id: str, call_id: str) -> None:
        """A call is about to start that may change files. Returns when there is a snapshot."""
        if self.checkpoints is None:
            return
        while self._group is not None and self._group.is_closing:
            await self._group.closed.wait()
        self._worked_for = turn_id
        if self._group is None:
            self._group = _Group(turn_id, self._actor.turn, self.checkpoints.work())
            self._actor.spawn(partial(self._open, self._group))
        group = self._group
        group.running.add(call_id)
        group.calls.append(call_id)
        await group.opened.wait()

    def after(self, call_id: str) -> None:
        """A call is over, was detached, or never started."""
        group = self._group
        if group is None or call_id not in group.running:
            return
        group.running.remove(call_id)
        if not group.running:
            group.is_closing = True
            self._actor.spawn(partial(self._close, group))

    async def _warm_up(self) -> None:
        assert self.checkpoints is not None
        await _tried(self.checkpoints.save)

    async def _open(self, group: _Group) -> None:
        try:
            await _tried(group.work.begins)
        finally:
            group.opened.set()

    async def _close(self, group: _Group) -> None:
        try:
            await group.opened.wait()
            await self._let_stop_go_first(group)
            for span in await _tried(group.work.ends) or ():
                if not self._actor.gone.is_set:
                    self._actor.log(FilesChanged(group.turn_id, tuple(group.calls), span))
        finally:
            self._group = None
            self.checkpoints = self._next
            group.closed.set()

    async def _let_stop_go_first(self, group: _Group) -> None:
        """The disk and the processor are the stop's until its receipt is there."""
        turn = group.turn
        if turn is not None and turn.token.cancelled:
            with suppress(BargeinError):
                await turn.settled.wait()


async def _tried(take: Callable[[], Awaitable[T]]) -> T | None:
    """Calls must run although their files are not saved."""
    try:
        return await take()
    except CheckpointError as error:
        _log.warning("no snapshot: %s", error)
    except Exception as error:  # boundary: whatever failed, the calls go on
        _log.error("no snapshot", exc_info=error)
    return None
