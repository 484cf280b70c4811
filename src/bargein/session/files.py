"""The files of a session's calls: a snapshot before calls that may change files, and one after.

Calls that run side by side are one group with one pair of snapshots. The snapshot before a group is
fresh, so that what a user changed while the model was thinking is the user's. The one after it is
taken beside the turn: neither the next request nor the receipt of a stop waits for it, only the
next call that may change files and the end of a turn that nobody stops do.

When a turn begins a snapshot is taken beside its first request, so that the one before its first
call finds little to do. If a snapshot fails the calls run all the same, and an undo names them as
not covered.

A call in the background is another program from the moment it is detached. Sub-agents work within
the call that started them.
"""

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from bargein.cancel.latch import Latch
from bargein.contracts.checkpoint import CheckpointError, Checkpoints, Span
from bargein.contracts.event import FilesChanged
from bargein.errors import BargeinError

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.turn import Turn

_log = logging.getLogger("bargein.session")


class _Group:
    """Calls that run at the same time. `before` is None if there is no snapshot of then."""

    def __init__(self, turn_id: str, turn: "Turn | None") -> None:
        self.turn_id = turn_id
        self.turn = turn
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.opened = Latch()
        self.closed = Latch()
        self.is_closing = False
        self.before: str | None = None


class SessionFiles:
    def __init__(self, actor: "Actor", checkpoints: Checkpoints | None) -> None:
        self._actor = actor
        self.checkpoints = checkpoints
        self._group: _Group | None = None

    @property
    def is_idle(self) -> bool:
        return self._group is None

    async def idle(self, timeout_s: float | None = None) -> None:
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
        if self._group is None:
            self._group = _Group(turn_id, self._actor.turn)
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
        await self._save()

    async def _open(self, group: _Group) -> None:
        try:
            group.before = await self._save()
        finally:
            group.opened.set()

    async def _close(self, group: _Group) -> None:
        try:
            await group.opened.wait()
            await self._let_stop_go_first(group)
            after = await self._save() if group.before is not None else None
            self._keep(group, after)
        finally:
            self._group = None
            group.closed.set()

    async def _let_stop_go_first(self, group: _Group) -> None:
        """The disk and the processor are the stop's until its receipt is there."""
        turn = group.turn
        if turn is not None and turn.token.cancelled:
            with suppress(BargeinError):
                await turn.settled.wait()

    def _keep(self, group: _Group, after: str | None) -> None:
        changed = group.before is not None and after not in (None, group.before)
        if changed and not self._actor.gone.is_set:
            span = Span(group.before or "", after or "")
            self._actor.log(FilesChanged(group.turn_id, tuple(group.calls), span))

    async def _save(self) -> str | None:
        assert self.checkpoints is not None
        try:
            return await self.checkpoints.save()
        except CheckpointError as error:
            _log.warning("no snapshot: %s", error)
        except Exception as error:  # boundary: a call must run although its files are not saved
            _log.error("no snapshot", exc_info=error)
        return None
