"""Deletes sessions that nobody has used for a long time, a few at a time.

It keeps a session that is in memory, that has waiting messages, open questions or running work, or
that cannot be read. Each session is claimed first and then deleted by that epoch: it stays if
another node has it, and if somebody opens it at that moment.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from bargein.contracts.store import (
    OwnedElsewhere,
    SessionHead,
    SessionUnreadable,
    StaleEpoch,
    Store,
)
from bargein.session.engine import SessionEngine
from bargein.session.snapshot import stored_in

SLICE = 20
PAUSE_S = 0.05
BEGIN_AFTER_S = 5.0
EVERY_S = 3600.0

_log = logging.getLogger("bargein.session")

Delete = Callable[[SessionHead], Awaitable[bool]]


def deleting(store: Store) -> Delete:
    """Return a function that deletes a session from the store alone."""

    async def delete(head: SessionHead) -> bool:
        return await store.delete(head.id, epoch=head.epoch)

    return delete


async def delete_unused(engine: SessionEngine, *, before: float, delete: Delete) -> int:
    """Delete the sessions that were last used before this time. Returns how many were deleted."""
    deleted = 0
    place = (before, "")
    while heads := await engine.store.sessions(limit=SLICE, before=place):
        place = (heads[-1].updated_at, heads[-1].id)
        for head in heads:
            with suppress(StaleEpoch, OwnedElsewhere):
                if _is_in_use(engine, head):
                    continue
                claimed = await engine.store.claim(head.id)
                if claimed is None or claimed.seq != head.seq or engine.is_at_hand(head.id):
                    continue  # the list was of a moment ago
                deleted += await delete(claimed)
        await anyio.sleep(PAUSE_S)
    if deleted:
        _log.info("deleted %d sessions, because of retention.sessions_days", deleted)
    return deleted


def _is_in_use(engine: SessionEngine, head: SessionHead) -> bool:
    if engine.is_at_hand(head.id):
        return True
    try:
        stored = stored_in(head)
    except SessionUnreadable:
        return True
    return bool(stored.state.unfinished or stored.waiting or stored.state.questions)


async def repeat(work: Callable[[], Awaitable[object]]) -> None:
    """Call `work` soon after the start and then every hour. A failure is logged and retried."""
    await anyio.sleep(BEGIN_AFTER_S)
    while True:
        try:
            await work()
        except Exception as error:  # boundary: nobody waits for it, and the next round tries again
            _log.warning("old data could not be removed now: %s", error)
        await anyio.sleep(EVERY_S)
