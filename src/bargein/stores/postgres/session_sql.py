"""The statements about sessions, except commits (`commit_sql`) and searches (`search_sql`).

Each write is one statement, so that a program that is frozen in the middle of its work holds no
lock: its transaction ends on the server. Each holds the writer's row first (`commit_sql.WRITING`).
"""

import sys

from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    OwnedElsewhere,
    SessionHead,
    StaleEpoch,
    StoreFailed,
)
from bargein.stores.encoding import decode_events
from bargein.stores.postgres.commit_sql import IS_ROOT, WRITING
from bargein.stores.postgres.connection import Connection
from bargein.stores.postgres.nodes import BURY
from bargein.stores.postgres.texts import as_it_was, kept

SWEEP_ROWS = 500
CLAIMS_MAX = 5
PAGE_ROWS = 256
FIRST_PAGE_ROWS = 64

HEAD_COLUMNS = """s.id, coalesce(r.id, s.id), coalesce(r.epoch, s.epoch), s.seq, s.state, s.title,
    s.created_at, s.updated_at, coalesce(r.owner, s.owner)"""
HEAD = f"""SELECT {HEAD_COLUMNS}
    FROM bargein.sessions s LEFT JOIN bargein.sessions r ON r.number = s.root"""

HEAD_BY_ID = f"{HEAD} WHERE s.id = $1"

ROOTS = f"""{HEAD} WHERE s.root IS NULL AND (s.updated_at, s.id) < ($1, $2)
    ORDER BY s.updated_at DESC, s.id DESC LIMIT $3"""

UNDER_ROOT = f"""{HEAD} WHERE s.root = (SELECT number FROM bargein.sessions WHERE id = $4)
    AND (s.updated_at, s.id) < ($1, $2) ORDER BY s.updated_at DESC, s.id DESC LIMIT $3"""

EVENTS = """SELECT seq, at, body FROM bargein.events
    WHERE session = (SELECT number FROM bargein.sessions WHERE id = $1) AND seq > $2
    ORDER BY seq LIMIT $3"""

KEY = """SELECT sender, client_id, message, body_hash FROM bargein.keys
    WHERE session = (SELECT number FROM bargein.sessions WHERE id = $1)
        AND sender = $2 AND client_id = $3"""

UNFINISHED = """SELECT DISTINCT coalesce(r.id, s.id) AS root FROM bargein.sessions s
    LEFT JOIN bargein.sessions r ON r.number = s.root
    WHERE s.unfinished AND coalesce(r.id, s.id) > $1 ORDER BY 1 LIMIT $2"""

# Roots with work to go on with that no living node has.
ORPHANS = """SELECT DISTINCT coalesce(r.id, s.id) FROM bargein.sessions s
    LEFT JOIN bargein.sessions r ON r.number = s.root
    WHERE s.unfinished AND NOT EXISTS (
        SELECT FROM bargein.nodes n WHERE n.id = coalesce(r.owner, s.owner) AND NOT n.dead)
    ORDER BY 1 LIMIT $1"""

# --- writing

_NEW = """(id, root, epoch, owner, seq, unfinished, created_at, updated_at, title, state)"""
_ALIVE = "SELECT FROM bargein.nodes WHERE id = $1 AND NOT dead"

CREATE_ROOT = f"""WITH {WRITING}
    INSERT INTO bargein.sessions {_NEW}
    SELECT $3, NULL, nextval('bargein.epoch'), $1, 0, false, $4::float8, $4::float8, '', ''
    WHERE EXISTS (SELECT FROM writing) AND EXISTS ({_ALIVE})
    ON CONFLICT (id) DO NOTHING RETURNING epoch"""

CREATE_UNDER_ROOT = f"""WITH {WRITING}, root AS MATERIALIZED (
        SELECT number, owner FROM bargein.sessions
        WHERE id = $5 AND {IS_ROOT} AND epoch = $6 FOR SHARE
    )
    INSERT INTO bargein.sessions {_NEW}
    SELECT $3, number, 0, '', 0, false, $4::float8, $4::float8, '', '' FROM root
    WHERE EXISTS (SELECT FROM writing)
    ON CONFLICT (id) DO NOTHING RETURNING (SELECT owner FROM root)"""

# `seen` is the owner as it was when the statement began. A row that was claimed meanwhile has
# another one, about whom this statement may know nothing: then it takes nothing and looks again.
CLAIM = f"""WITH {WRITING}, seen AS MATERIALIZED (
        SELECT owner FROM bargein.sessions WHERE id = $3 AND {IS_ROOT}
    )
    UPDATE bargein.sessions s SET epoch = nextval('bargein.epoch'), owner = $1 FROM seen
    WHERE s.id = $3 AND {IS_ROOT} AND s.owner = seen.owner
        AND EXISTS (SELECT FROM writing) AND EXISTS ({_ALIVE})
        AND (seen.owner IN ('', $1) OR NOT EXISTS (
            SELECT FROM bargein.nodes n WHERE n.id = seen.owner AND NOT n.dead))
    RETURNING s.id, s.id, s.epoch, s.seq, s.state, s.title, s.created_at, s.updated_at, s.owner"""

OWNER = f"""SELECT s.owner, n.address, n.dead, n.lease_until < clock_timestamp(),
        EXISTS ({_ALIVE})
    FROM bargein.sessions s LEFT JOIN bargein.nodes n ON n.id = s.owner
    WHERE s.id = $2 AND {IS_ROOT}"""

RELEASE = f"""WITH {WRITING}
    UPDATE bargein.sessions SET epoch = nextval('bargein.epoch'), owner = ''
    WHERE id = $3 AND {IS_ROOT} AND owner = $1 AND epoch = $4
        AND EXISTS (SELECT FROM writing) RETURNING 1"""

DELETE = f"""WITH {WRITING}, target AS MATERIALIZED (
        SELECT number, coalesce(root, number) AS root FROM bargein.sessions WHERE id = $3
    ), fence AS MATERIALIZED (
        SELECT number FROM bargein.sessions WHERE number = (SELECT root FROM target)
            AND ($4::bigint IS NULL OR epoch = $4) FOR UPDATE
    ), gone AS (
        DELETE FROM bargein.sessions WHERE number = (SELECT number FROM target)
            AND EXISTS (SELECT FROM writing) AND EXISTS (SELECT FROM fence) RETURNING 1
    )
    SELECT EXISTS (SELECT FROM target), EXISTS (SELECT FROM gone)"""

EPOCH_OF_ROOT = f"SELECT epoch FROM bargein.sessions WHERE id = $1 AND {IS_ROOT}"


async def create(
    connection: Connection,
    node: str,
    generation: int,
    session: str,
    root: str,
    at: float,
    epoch: int | None,
) -> SessionHead | None:
    writer = (node, generation, kept(session), at)
    if root == session:
        made = await connection.fetchrow(CREATE_ROOT, *writer)
        if made is not None:
            return SessionHead(session, session, made[0], 0, b"", "", at, at, node)
    else:
        made = await connection.fetchrow(CREATE_UNDER_ROOT, *writer, kept(root), epoch)
        if made is not None:
            return SessionHead(session, root, epoch or 0, 0, b"", "", at, at, made[0])
    if await head(connection, session) is not None:
        return None
    if root == session:
        raise dead(node)
    raise await _stale(connection, root, epoch)


async def claim(
    connection: Connection, node: str, generation: int, session: str
) -> SessionHead | None:
    """Looks before it writes: most claims that are refused are of somebody who asks for another
    node's session, and a write waits for the disk."""
    for _ in range(CLAIMS_MAX):
        found = await connection.fetchrow(OWNER, node, kept(session))
        if found is None:
            return None
        owner, address, is_dead, expired, may_claim = found
        if not may_claim:
            raise dead(node)
        if is_dead is False and not expired and owner != node:
            raise OwnedElsewhere(session, owner, address)
        if is_dead is False and expired and owner != node:
            await connection.execute(BURY, owner)
        row = await connection.fetchrow(CLAIM, node, generation, kept(session))
        if row is not None:
            return _head(tuple(row))
    raise StoreFailed(f"session {session!r} changed its owner again and again", retryable=True)


async def release(
    connection: Connection, node: str, generation: int, session: str, epoch: int
) -> bool:
    row = await connection.fetchrow(RELEASE, node, generation, kept(session), epoch)
    return row is not None


async def delete(
    connection: Connection, node: str, generation: int, session: str, epoch: int | None
) -> bool:
    found, gone = await connection.fetchrow(DELETE, node, generation, kept(session), epoch) or (
        False,
        False,
    )
    if found and not gone:
        now = await head(connection, session)
        if now is not None:
            raise await _stale(connection, now.root, epoch)
    return bool(gone)


def dead(node: str) -> StoreFailed:
    return StoreFailed(
        f"owner {node!r} was declared dead: open the store under a new name", retryable=False
    )


async def _stale(connection: Connection, root: str, epoch: int | None) -> StaleEpoch:
    now = await connection.fetchval(EPOCH_OF_ROOT, kept(root))
    if now is None:
        return StaleEpoch(f"session {root!r} does not exist any more")
    return StaleEpoch(f"session {root!r} is at epoch {now}, not {epoch}")


# --- sweeping

SWEEP = {
    table: f"""DELETE FROM bargein.{table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM bargein.{table} WHERE session = $1 LIMIT {SWEEP_ROWS}))
        AND session = $1"""
    for table in ("events", "texts", "keys")
}
SWEPT = """DELETE FROM bargein.doomed WHERE number = $1
    AND NOT EXISTS (SELECT FROM bargein.events WHERE session = $1)
    AND NOT EXISTS (SELECT FROM bargein.texts WHERE session = $1)
    AND NOT EXISTS (SELECT FROM bargein.keys WHERE session = $1)"""


async def sweep(connection: Connection) -> bool:
    """Remove a slice of a deleted session. Returns False when nothing is left to remove."""
    number = await connection.fetchval("SELECT min(number) FROM bargein.doomed")
    if number is None:
        return False
    for statement in SWEEP.values():
        await connection.execute(statement, number)
    await connection.execute(SWEPT, number)
    return True


# --- reading


async def head(connection: Connection, session: str) -> SessionHead | None:
    row = await connection.fetchrow(HEAD_BY_ID, kept(session))
    return None if row is None else _head(tuple(row))


def _head(row: tuple[object, ...]) -> SessionHead:
    session, root, epoch, seq, state, title, created_at, updated_at, owner = row
    return SessionHead(
        as_it_was(str(session)),
        as_it_was(str(root)),
        epoch,  # type: ignore[arg-type]
        seq,  # type: ignore[arg-type]
        state,  # type: ignore[arg-type]
        as_it_was(str(title)),
        created_at,  # type: ignore[arg-type]
        updated_at,  # type: ignore[arg-type]
        str(owner),
    )


async def events(
    connection: Connection, session: str, after: int, limit: int | None, bytes_max: int | None
) -> list[Recorded]:
    """Reads in pages if there is a bound in bytes: rows behind it need not be sent."""
    name, place = kept(session), max(after, 0)
    left = sys.maxsize if limit is None else max(limit, 0)
    room = sys.maxsize if bytes_max is None else bytes_max
    page = sys.maxsize if bytes_max is None else FIRST_PAGE_ROWS
    found: list[tuple[int, float, bytes]] = []
    while left > 0 and (room > 0 or not found):
        wanted = min(left, page)
        rows = await connection.fetch(EVENTS, name, place, wanted)
        for row in rows:
            if room <= 0 and found:
                break
            found.append((row[0], row[1], row[2]))
            room -= len(row[2])
        if len(rows) < wanted:
            break
        place, left, page = rows[-1][0], left - len(rows), PAGE_ROWS
    return decode_events(session, found)


async def find_key(
    connection: Connection, session: str, sender: str, client_id: str
) -> AcceptKey | None:
    row = await connection.fetchrow(KEY, kept(session), kept(sender), kept(client_id))
    if row is None:
        return None
    return AcceptKey(as_it_was(row[0]), as_it_was(row[1]), as_it_was(row[2]), row[3])


async def sessions(
    connection: Connection, limit: int, before: tuple[float, str] | None, under: str | None
) -> list[SessionHead]:
    at, name = before or (float("inf"), "")
    place = (at, kept(name), max(limit, 0))
    if under is None:
        rows = await connection.fetch(ROOTS, *place)
    else:
        rows = await connection.fetch(UNDER_ROOT, *place, kept(under))
    return [_head(tuple(row)) for row in rows]


async def unfinished(connection: Connection, limit: int, after: str) -> list[str]:
    rows = await connection.fetch(UNFINISHED, kept(after), max(limit, 0))
    return [as_it_was(root) for (root,) in rows]


async def orphans(connection: Connection, limit: int) -> list[str]:
    return [as_it_was(root) for (root,) in await connection.fetch(ORPHANS, limit)]
