"""The gateway's own SQLite file: tokens, owners and members, kept answers, the audit log.

One thread writes. Jobs that come together share a transaction, each with a savepoint of its own.
When the await of a job returns, its write is on the disk; a cancel of the await does not undo it.
`token` reads in the caller's thread without a cache. That takes a few microseconds, and a token
that another process revokes is invalid from the next request on. Audit entries can be added and
neither changed nor removed before their time: triggers in the file refuse it.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from bargein.server.bell import hear, ring
from bargein.server.gateway_tables import (
    AuditValues,
    Changed,
    NewOwner,
    OwnerRow,
    ReplyRow,
    TokenRow,
    Used,
)
from bargein.stores.sqlite.small_file import SmallFile

FILE = "gateway.sqlite3"

MIGRATIONS = (
    """
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, principal TEXT NOT NULL, hash BLOB NOT NULL, created_at REAL NOT NULL,
    expires_at REAL, revoked_at REAL, read_only INTEGER NOT NULL, admin INTEGER NOT NULL,
    sessions TEXT, note TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    session TEXT NOT NULL, principal TEXT NOT NULL, role TEXT NOT NULL,
    PRIMARY KEY (session, principal)
) STRICT, WITHOUT ROWID;
CREATE TABLE replies (
    principal TEXT NOT NULL, key TEXT NOT NULL, fingerprint BLOB NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX replies_by_age ON replies (at);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, principal TEXT NOT NULL,
    token TEXT NOT NULL, address TEXT NOT NULL, action TEXT NOT NULL, session TEXT NOT NULL,
    target TEXT NOT NULL, status INTEGER NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
""",
    # Before this, audit entries were kept for ever; now those older than `audit_before` may go.
    # And members were not asked; what was shared before counts as accepted.
    """
CREATE TABLE consents (
    session TEXT NOT NULL, principal TEXT NOT NULL, consent TEXT NOT NULL,
    PRIMARY KEY (session, principal)
) STRICT, WITHOUT ROWID;
INSERT INTO consents SELECT session, principal, 'accepted' FROM members;
CREATE TABLE retention (
    one INTEGER PRIMARY KEY CHECK (one = 1), audit_before REAL NOT NULL
) STRICT;
INSERT INTO retention VALUES (1, 0);
DROP TRIGGER audit_is_not_shortened;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
WHEN old.at >= (SELECT audit_before FROM retention WHERE one = 1)
BEGIN SELECT RAISE(ABORT, 'the audit log can only be added to'); END;
""",
)
"""A released migration is never changed; a new change is a new one at the end. A file gets all that
it lacks in one transaction. `user_version` says how many it has."""
VERSION = len(MIGRATIONS)


TOKEN_COLUMNS = (
    "id, principal, hash, created_at, expires_at, revoked_at, read_only, admin, sessions, note"
)

VALID_AMONG = """
SELECT id FROM tokens WHERE id IN (SELECT value FROM json_each(?))
    AND revoked_at IS NULL AND (expires_at IS NULL OR ? < expires_at)
"""


PRUNE = """DELETE FROM replies WHERE (principal, key) IN (
    SELECT principal, key FROM replies WHERE at < ? ORDER BY at LIMIT ?)"""
AUDIT_COLUMNS = "at, principal, token, address, action, session, target, status, detail"
INSERT_ENTRY = f"INSERT INTO audit ({AUDIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class GatewayDb(SmallFile):
    """Made by `open`. For one event loop. Keeps `GatewayTables`."""

    MIGRATIONS = MIGRATIONS
    is_shared = False
    start = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Tickets are for one process and a few seconds.
        self._tickets: dict[bytes, tuple[bytes, float]] = {}

    @property
    def place(self) -> Path | None:
        return self.path.parent

    # --- tokens

    def token(self, token_id: str) -> TokenRow | None:
        rows = self._read(f"SELECT {TOKEN_COLUMNS} FROM tokens WHERE id = ?", token_id)
        return _token(rows[0]) if rows else None

    def valid_among(self, token_ids: Iterable[str], now: float) -> set[str]:
        """Returns those of these tokens that are valid at this time, with one query."""
        asked = msgspec.json.encode(list(token_ids)).decode()
        return {token_id for (token_id,) in self._read(VALID_AMONG, asked, now)}

    def tokens(self) -> list[TokenRow]:
        rows = self._read(f"SELECT {TOKEN_COLUMNS} FROM tokens ORDER BY created_at")
        return [_token(row) for row in rows]

    def version(self) -> int:
        """Returns a number that changes when any other connection, in any process, has written."""
        ((version,),) = self._read("PRAGMA data_version")
        return int(version)

    async def add_token(self, row: TokenRow, entry: AuditValues) -> None:
        values = list(msgspec.structs.astuple(row))
        if row.sessions is not None:
            values[8] = msgspec.json.encode(row.sessions).decode()

        def insert(connection: sqlite3.Connection) -> None:
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO tokens VALUES ({marks})", values)
            connection.execute(INSERT_ENTRY, entry)

        await self.run(insert)

    async def revoke_token(self, token_id: str, at: float, entry: AuditValues) -> bool:
        def revoke(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (at, token_id),
            )
            if done.rowcount > 0:
                connection.execute(INSERT_ENTRY, entry)
            return done.rowcount > 0

        revoked = await self.run(revoke)
        ring(self.path)
        return revoked

    # --- owners and members

    async def owners(self, sessions: Collection[str] | None = None) -> list[OwnerRow]:
        named = msgspec.json.encode(list(sessions)).decode() if sessions is not None else None
        return await self.run(partial(_owners, named=named))

    async def answers_of(self, principal: str) -> dict[str, str | None]:
        return await self.run(partial(_answers_of, principal=principal))

    async def own(self, new: NewOwner) -> ReplyRow | None:
        def insert(connection: sqlite3.Connection) -> ReplyRow | None:
            # One transaction with the key: a repeated POST makes no second session, even after a
            # crash.
            if new.key is not None:
                known = _reply(connection, new.owner, new.key)
                if known is not None:
                    return known
                made = ReplyRow(new.fingerprint, 0, new.session.encode())
                _keep(connection, new.owner, new.key, made, new.at)
            row = (new.session, new.owner, new.at)
            # Two may name the same one at once.
            connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", row)
            if new.passing is not None:
                note = ReplyRow(b"", 0, new.session.encode())
                _keep(connection, new.owner, new.passing, note, inf)
            return None

        return await self.run(insert)

    async def share(self, session: str, members: Mapping[str, str]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM members WHERE session = ?", (session,))
            connection.execute(
                "DELETE FROM consents WHERE session = ? AND consent != 'hidden' AND principal NOT "
                "IN (SELECT value FROM json_each(?))",
                (session, msgspec.json.encode(list(members)).decode()),
            )
            rows = [(session, principal, str(role)) for principal, role in members.items()]
            connection.executemany("INSERT INTO members VALUES (?, ?, ?)", rows)

        await self.run(write)

    async def consent(self, session: str, principal: str, consent: str) -> None:
        values = (session, principal, str(consent))
        await self.run(
            lambda connection: (
                connection.execute(
                    "INSERT OR REPLACE INTO consents VALUES (?, ?, ?)", values
                ).rowcount
            )
        )

    async def disown(self, session: str, passing: str | None = None) -> None:
        def remove(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
            connection.execute("DELETE FROM members WHERE session = ?", (session,))
            connection.execute("DELETE FROM consents WHERE session = ?", (session,))
            if passing is not None:
                connection.execute("DELETE FROM replies WHERE key = ?", (passing,))

        await self.run(remove)

    # --- kept answers

    async def reply(self, principal: str, key: str) -> ReplyRow | None:
        return await self.run(lambda connection: _reply(connection, principal, key))

    async def keep_reply(self, principal: str, key: str, row: ReplyRow, at: float) -> None:
        await self.run(lambda connection: _keep(connection, principal, key, row, at))

    async def prune_replies(self, before: float, limit: int) -> None:
        await self.run(lambda connection: connection.execute(PRUNE, (before, limit)).rowcount)

    async def passing(self, prefix: str) -> list[str]:
        def left(connection: sqlite3.Connection) -> list[str]:
            found = "SELECT body FROM replies WHERE at = ? AND substr(key, 1, ?) = ?"
            rows = connection.execute(found, (inf, len(prefix), prefix)).fetchall()
            return [body.decode() for (body,) in rows]

        return await self.run(left)

    # --- tickets

    async def keep_ticket(self, digest: bytes, body: bytes, expires_at: float) -> None:
        self._tickets[digest] = body, expires_at

    async def take_ticket(self, digest: bytes, now: float) -> bytes | None:
        body, expires_at = self._tickets.pop(digest, (None, now))
        return body if expires_at > now else None

    # --- the audit log

    def add_entries(self, entries: Sequence[AuditValues]) -> None:
        self.run(lambda connection: connection.executemany(INSERT_ENTRY, entries).rowcount)

    async def entries(self, after: int, limit: int) -> list[tuple[int, AuditValues]]:
        def select(connection: sqlite3.Connection) -> list[tuple[int, AuditValues]]:
            rows = connection.execute(
                f"SELECT number, {AUDIT_COLUMNS} FROM audit WHERE number > ? "
                "ORDER BY number LIMIT ?",
                (after, limit),
            ).fetchall()
            return [(row[0], tuple(row[1:])) for row in rows]

        return await self.run(select)

    async def old_entries(self, before: float, after: int, limit: int) -> list[tuple[int, str]]:
        def select(connection: sqlite3.Connection) -> list[tuple[int, str]]:
            return connection.execute(
                "SELECT number, session FROM audit WHERE number > ? AND at < ? "
                "ORDER BY number LIMIT ?",
                (after, before, limit),
            ).fetchall()

        return await self.run(select)

    async def remove_entries(self, numbers: Sequence[int], before: float) -> None:
        def remove(connection: sqlite3.Connection) -> None:
            # The trigger allows removing entries older than this, and it never moves back.
            connection.execute(
                "UPDATE retention SET audit_before = ? WHERE audit_before < ?", (before, before)
            )
            rows = [(each,) for each in numbers]
            connection.executemany("DELETE FROM audit WHERE number = ?", rows)

        await self.run(remove)

    # --- the whole of it

    async def check(self) -> None:
        await self.run(lambda connection: connection.execute("SELECT 1").fetchone())

    async def hear(self, changed: Changed, used: Used) -> None:
        # Only a token can change in another process; owners are this one's.
        await hear(self.path, partial(changed, frozenset()))

    async def tell_use(self, use: bytes) -> None:
        return

    async def aclose(self) -> None:
        self.close()


def _owners(connection: sqlite3.Connection, named: str | None) -> list[OwnerRow]:
    def select(columns: str, table: str, column: str) -> list[tuple[Any, ...]]:
        among = f" WHERE {column} IN (SELECT value FROM json_each(?))"
        where, values = (among, (named,)) if named is not None else ("", ())
        return connection.execute(f"SELECT {columns} FROM {table}{where}", values).fetchall()

    members: dict[str, dict[str, str]] = defaultdict(dict)
    consents: dict[str, dict[str, str]] = defaultdict(dict)
    for owned, principal, role in select("session, principal, role", "members", "session"):
        members[owned][principal] = role
    for owned, principal, consent in select("session, principal, consent", "consents", "session"):
        consents[owned][principal] = consent
    return [
        OwnerRow(owned, owner, created_at, members.get(owned, {}), consents.get(owned, {}))
        for owned, owner, created_at in select("id, owner, created_at", "sessions", "id")
    ]


def _answers_of(connection: sqlite3.Connection, principal: str) -> dict[str, str | None]:
    rows = connection.execute(
        "SELECT id, consent FROM (SELECT id FROM sessions WHERE owner = ?1"
        " UNION SELECT session FROM members WHERE principal = ?1)"
        " LEFT JOIN consents ON session = id AND principal = ?1",
        (principal,),
    ).fetchall()
    return dict(rows)


def _reply(connection: sqlite3.Connection, principal: str, key: str) -> ReplyRow | None:
    row = connection.execute(
        "SELECT fingerprint, status, body FROM replies WHERE principal = ? AND key = ?",
        (principal, key),
    ).fetchone()
    return ReplyRow(*row) if row is not None else None


def _keep(
    connection: sqlite3.Connection, principal: str, key: str, row: ReplyRow, at: float
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?)",
        (principal, key, row.fingerprint, row.status, row.body, at),
    )


def _token(row: tuple[object, ...]) -> TokenRow:
    values = dict(zip(TokenRow.__struct_fields__, row, strict=True))
    values["read_only"], values["admin"] = bool(values["read_only"]), bool(values["admin"])
    sessions = values["sessions"]
    values["sessions"] = (
        msgspec.json.decode(sessions, type=tuple[str, ...]) if isinstance(sessions, str) else None
    )
    return msgspec.convert(values, TokenRow)
