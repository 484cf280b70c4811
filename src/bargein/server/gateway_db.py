"""The gateway's own SQLite file: tokens, owners and members, kept answers, the audit log.

One thread writes. Jobs that come together share a transaction, each with a savepoint of its own.
When the await of a job returns, its write is on the disk; a cancel of the await does not undo it.
`token` reads in the caller's thread without a cache. That takes a few microseconds, and a token
that another process revokes is invalid from the next request on. Audit entries can be added and
neither changed nor removed before their time: triggers in the file refuse it.
"""

from collections.abc import Iterable

import msgspec

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


class TokenRow(msgspec.Struct, frozen=True):
    """`sessions` is None for a token that is not limited to some sessions."""

    id: str
    principal: str
    hash: bytes
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    read_only: bool
    admin: bool
    sessions: tuple[str, ...] | None
    note: str

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


TOKEN_COLUMNS = (
    "id, principal, hash, created_at, expires_at, revoked_at, read_only, admin, sessions, note"
)

VALID_AMONG = """
SELECT id FROM tokens WHERE id IN (SELECT value FROM json_each(?))
    AND revoked_at IS NULL AND (expires_at IS NULL OR ? < expires_at)
"""


class GatewayDb(SmallFile):
    """Made by `open`. For one event loop."""

    MIGRATIONS = MIGRATIONS

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


def _token(row: tuple[object, ...]) -> TokenRow:
    values = dict(zip(TokenRow.__struct_fields__, row, strict=True))
    values["read_only"], values["admin"] = bool(values["read_only"]), bool(values["admin"])
    sessions = values["sessions"]
    values["sessions"] = (
        msgspec.json.decode(sessions, type=tuple[str, ...]) if isinstance(sessions, str) else None
    )
    return msgspec.convert(values, TokenRow)
