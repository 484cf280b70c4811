"""Deletes what the gateway has kept long enough: sessions, audit entries, and its database's rows
about sessions that are gone. Off unless set.

Everything is deleted in small slices with pauses, so that no request waits for more than one slice.
A cancel ends it between two slices; the next run goes on.
"""

import time

import anyio
import msgspec

from bargein.contracts.store import SessionHead
from bargein.server.gateway import Gateway
from bargein.server.gateway_tables import GatewayTables
from bargein.session.retention import PAUSE_S, delete_unused

SLICE_ROWS = 500
MADE_S = 3600.0


class Retention(msgspec.Struct, frozen=True):
    """Ages in seconds; None keeps for ever. `traces_s` is for audit entries about sessions that
    are gone."""

    sessions_s: float | None = None
    audit_s: float | None = None
    traces_s: float | None = None


async def apply(gateway: Gateway, retention: Retention) -> None:
    """Deletes everything older than `retention` allows."""
    now = time.time()
    if retention.sessions_s is not None:
        before = now - retention.sessions_s

        async def delete(head: SessionHead) -> bool:
            return await _delete(gateway, head)

        await delete_unused(gateway.engine, before=before, delete=delete)
        await _forget_owners(gateway)
    if retention.audit_s is not None:
        await shorten_audit(gateway.db, now - retention.audit_s)
    if retention.traces_s is not None:
        await _remove_traces(gateway, now - retention.traces_s)


async def _delete(gateway: Gateway, head: SessionHead) -> bool:
    """Deletes a session as its owner would: from the first moment on nobody finds it. If the store
    fails, the session belongs to its owner and members again."""
    owned = gateway.access.disown(head.id)
    try:
        deleted = await gateway.engine.store.delete(head.id, epoch=head.epoch)
        await gateway.db.disown(head.id)
        gateway.access.forget(head.id)
    except BaseException:
        if owned is not None:
            gateway.access.own(head.id, owned.owner, owned.created_at)
            gateway.access.share(head.id, owned.members)
        raise
    return deleted


async def _forget_owners(gateway: Gateway) -> None:
    """Forgets the owners of sessions that `bargein sessions rm`, for example, has deleted."""
    for number, session in enumerate(gateway.access.all_owned()):
        owned = gateway.access.owned(session)
        # A new session has an owner in the database before it is in the store.
        if owned is None or time.time() - owned.created_at < MADE_S:
            continue
        if await gateway.engine.store.head(session) is None and gateway.access.disown(session):
            await gateway.db.disown(session)
            gateway.access.forget(session)
        if number % SLICE_ROWS == 0:
            await anyio.sleep(PAUSE_S)


async def shorten_audit(db: GatewayTables, before: float) -> int:
    """Removes audit entries that are older, and returns how many. A trigger in the database
    refuses to remove any other."""
    removed = 0
    while entries := await db.old_entries(before, 0, SLICE_ROWS):
        numbers = [number for number, _ in entries]
        await db.remove_entries(numbers, before)
        removed += len(numbers)
        await anyio.sleep(PAUSE_S)
    return removed


async def _remove_traces(gateway: Gateway, before: float) -> None:
    """Removes old audit entries about sessions that are gone."""
    db, after = gateway.db, 0
    while entries := await db.old_entries(before, after, SLICE_ROWS):
        after = entries[-1][0]
        roots = {session.partition("/")[0] for _, session in entries if session}
        gone = {root for root in roots if await gateway.engine.store.head(root) is None}
        numbers = [number for number, session in entries if session.partition("/")[0] in gone]
        if numbers:
            await db.remove_entries(numbers, before)
        await anyio.sleep(PAUSE_S)
