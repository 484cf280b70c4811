"""Commits as SQL: many commits become one statement, which is one transaction.

A commit that does not fit (a stale epoch, another end of the log, a key that is known) moves no row
and does not fail the others; `why_refused` then says why. What holds:

- A commit is fenced by the epoch and the owner of its root. Each claim raises the epoch, so the
  owner matters only after a failover to an asynchronous standby, which has lost the last claims and
  gives out their epochs again.
- A root's commit is fenced by its own row: PostgreSQL reads the row that it updates again after it
  waited for another transaction, so the epoch is that of the last claim.
- A commit of a session under a root is fenced by the root's row, which the statement holds with
  FOR SHARE. A join or a subselect would read the root as it was when the statement began, and
  FOR KEY SHARE does not wait for a claim: all three let a write through after the claim had
  committed.
- Each root is locked once, before any row that depends on it is updated.
- The statement holds the writer's own row too (`writer`): a statement on a connection that was
  given up never happens later.
- Events, keys and texts are inserted only for the rows that moved.
- The plan is made once for a connection, perhaps while the database is empty, and must be good for
  a million sessions: so the rows of sessions are named by `ANY`, too, and found by their ids alone
  (`PLANNED_FOR_GROWTH`).
"""

from collections.abc import Iterator, Sequence

from bargein.contracts.store import (
    Commit,
    DuplicateKey,
    OutOfOrder,
    StaleEpoch,
    StoreFailed,
)
from bargein.errors import BugError
from bargein.stores.encoding import check_commit, check_words, encode_events
from bargein.stores.postgres.connection import Connection
from bargein.stores.postgres.texts import as_it_was, kept
from bargein.stores.words import SEARCHED_CHARACTERS_MAX

TOGETHER_MAX = 128
TOGETHER_BYTES = 8 * 1024 * 1024

PLANNED_FOR_GROWTH = """SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
    SET jit = off"""
"""For a connection that keeps its statements, each of which finds a few rows by an index. By itself
PostgreSQL reads a small table as a whole, keeps that plan until the table is analyzed, and plans
each commit anew when it has found out how large the tables are, which takes longer than the
commit."""

WRITING = """writing AS MATERIALIZED (
    SELECT node FROM bargein.writers WHERE node = $1 AND generation = $2 FOR SHARE
)"""
"""The row that every write holds. Empty if the connection was given up meanwhile."""

IS_ROOT = "coalesce(root, 0) = 0"
"""Not `root IS NULL` where a row is found by its id: before PostgreSQL knows how many roots there
are, it would read the whole of `roots_by_update` instead, and keep that plan."""

HOLD_ROOTS = f"""SELECT number, id, epoch, owner FROM bargein.sessions
    WHERE id = ANY($3::text[]) AND {IS_ROOT} ORDER BY id FOR SHARE"""

COMMIT = f"""WITH {WRITING}, roots AS MATERIALIZED ({HOLD_ROOTS}), given AS MATERIALIZED (
    SELECT * FROM unnest(
        $4::int[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
        $10::float8[], $11::bytea[], $12::boolean[], $13::text[]
    ) AS g(n, session, root, epoch, expected, seq, at, state, unfinished, title)
), given_keys AS MATERIALIZED (
    SELECT * FROM unnest($17::int[], $18::text[], $19::text[], $20::text[], $21::bytea[])
        AS k(n, sender, client_id, message, body_hash)
), moved AS (
    UPDATE bargein.sessions s SET seq = g.seq, updated_at = g.at, state = g.state,
        unfinished = g.unfinished, title = coalesce(g.title, s.title)
    FROM given g LEFT JOIN roots r ON r.id = g.root
    WHERE s.id = ANY($5::text[]) AND s.id = g.session AND s.seq = g.expected
        AND EXISTS (SELECT FROM writing)
        AND CASE WHEN g.root = g.session
            THEN s.root IS NULL AND s.epoch = g.epoch AND s.owner = $1
            ELSE s.root = r.number AND r.epoch = g.epoch AND r.owner = $1 END
        AND NOT EXISTS (
            SELECT FROM given_keys k JOIN bargein.keys known ON known.session = s.number
                AND known.sender = k.sender AND known.client_id = k.client_id
            WHERE k.n = g.n
        )
    RETURNING g.n, s.number, g.at
), put_events AS (
    INSERT INTO bargein.events (session, seq, at, body)
    SELECT m.number, e.seq, m.at, e.body FROM moved m
        JOIN unnest($14::int[], $15::bigint[], $16::bytea[]) AS e(n, seq, body) ON e.n = m.n
), put_keys AS (
    INSERT INTO bargein.keys (session, sender, client_id, message, body_hash)
    SELECT m.number, k.sender, k.client_id, k.message, k.body_hash
    FROM moved m JOIN given_keys k ON k.n = m.n
), put_texts AS (
    INSERT INTO bargein.texts (session, seq, at, text)
    SELECT m.number, t.seq, m.at, t.text FROM moved m
        JOIN unnest($22::int[], $23::bigint[], $24::text[]) AS t(n, seq, text) ON t.n = m.n
)
SELECT n FROM moved"""

NOW = """SELECT coalesce(r.id, s.id), coalesce(r.epoch, s.epoch), s.seq, coalesce(r.owner, s.owner)
    FROM bargein.sessions s LEFT JOIN bargein.sessions r ON r.number = s.root WHERE s.id = $1"""


class PendingCommit:
    """One commit with its events encoded, waiting to be written. `error` is its outcome."""

    __slots__ = ("bodies", "commit", "error", "size")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.bodies: tuple[bytes, ...] = ()
        self.error: Exception | None = None
        try:
            check_commit(commit)
            check_words(commit)
            _check_keys(commit)
            self.bodies = encode_events(commit.events)
        except Exception as error:  # boundary: the outcome of this commit alone
            self.error = error
        self.size = len(commit.state) + len(commit.text) + sum(map(len, self.bodies))


def _check_keys(commit: Commit) -> None:
    names = [(key.sender, key.client_id) for key in commit.keys]
    if len(set(names)) < len(names):
        raise DuplicateKey(f"session {commit.session!r} is given one of {names} twice")


def rounds(steps: Sequence[PendingCommit]) -> Iterator[list[PendingCommit]]:
    """Split commits into those that one statement can write: it moves a session once, and has a
    bound. The order of each session's commits stays."""
    now: list[PendingCommit] = []
    sessions: set[str] = set()
    size = 0
    for step in steps:
        full = len(now) == TOGETHER_MAX or size + step.size > TOGETHER_BYTES
        if now and (full or step.commit.session in sessions):
            yield now
            now, sessions, size = [], set(), 0
        now.append(step)
        sessions.add(step.commit.session)
        size += step.size
    if now:
        yield now


async def write(
    connection: Connection, node: str, generation: int, steps: Sequence[PendingCommit]
) -> None:
    """Write one round. Sets the error of each commit that is refused."""
    rows = await connection.fetch(COMMIT, node, generation, *_columns(steps))
    moved = {n for (n,) in rows}
    for n, step in enumerate(steps):
        if n not in moved:
            step.error = await why_refused(connection, step.commit, node)


def _columns(steps: Sequence[PendingCommit]) -> list[list[object]]:
    """The values of `COMMIT` from its third on, each an array."""
    commits = [step.commit for step in steps]
    sessions = [kept(commit.session) for commit in commits]
    roots = [kept(commit.root) for commit in commits]
    below = {root for session, root in zip(sessions, roots, strict=True) if session != root}
    events = [
        (n, seq, body)
        for n, step in enumerate(steps)
        for seq, body in enumerate(step.bodies, step.commit.expected_seq + 1)
    ]
    keys = [
        (n, kept(key.sender), kept(key.client_id), kept(key.message), key.body_hash)
        for n, commit in enumerate(commits)
        for key in commit.keys
    ]
    texts = [
        (
            n,
            commit.expected_seq + len(commit.events),
            kept(commit.text[:SEARCHED_CHARACTERS_MAX]),
        )
        for n, commit in enumerate(commits)
        if commit.text
    ]
    return [
        list(below),
        list(range(len(commits))),
        list(sessions),
        list(roots),
        [commit.epoch for commit in commits],
        [commit.expected_seq for commit in commits],
        [commit.expected_seq + len(commit.events) for commit in commits],
        [commit.at for commit in commits],
        [commit.state for commit in commits],
        [commit.unfinished for commit in commits],
        [None if commit.title is None else kept(commit.title) for commit in commits],
        *_transposed(events, 3),
        *_transposed(keys, 5),
        *_transposed(texts, 3),
    ]


def _transposed(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [[row[column] for row in rows] for column in range(width)]


async def why_refused(connection: Connection, commit: Commit, node: str) -> Exception:
    found = await connection.fetchrow(NOW, kept(commit.session))
    if found is None:
        return StaleEpoch(f"session {commit.session!r} does not exist any more")
    root, epoch, seq, owner = found
    if as_it_was(root) != commit.root:
        return BugError(
            f"session {commit.session!r} is under {as_it_was(root)!r}, not {commit.root!r}"
        )
    if epoch != commit.epoch:
        return StaleEpoch(f"session {commit.session!r} is at epoch {epoch}, not {commit.epoch}")
    if owner != node:
        return StaleEpoch(f"session {commit.session!r} belongs to {owner!r}, not {node!r}")
    if seq != commit.expected_seq:
        return OutOfOrder(f"session {commit.session!r} ends at {seq}, not {commit.expected_seq}")
    if commit.keys:
        known = [(key.sender, key.client_id) for key in commit.keys]
        return DuplicateKey(f"session {commit.session!r} knows one of {known}")
    return StoreFailed(f"session {commit.session!r} changed while it was written", retryable=True)
