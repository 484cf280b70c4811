"""The gateway's tables in the PostgreSQL database that the nodes of a cluster share.

Tokens are read from a copy in memory. Every change is announced on one channel, in the statement
that makes it, and each node hears that on a connection of its own. A connection that was lost may
have missed something, so after it the node reads everything anew. While a node cannot hear the
database for `STALE_S`, its copy counts for nothing: `token` raises `StoreFailed`.

Every write is one statement, so no program that is frozen holds a lock. A statement is never
cancelled on the wire (`stores.postgres.connection`). If a connection is lost, a write may have
happened; each of them can be repeated.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec

from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError
from bargein.server.gateway_tables import (
    STALE_S,
    AuditValues,
    Changed,
    NewOwner,
    OwnerRow,
    ReplyRow,
    TokenRow,
    Used,
)
from bargein.stores.postgres.address import PostgresAddress, parse_address
from bargein.stores.postgres.connection import (
    Connection,
    PostgresConnection,
    ReadConnections,
    Work,
    connect,
)
from bargein.stores.postgres.faults import LOST, explain
from bargein.stores.postgres.store import MAKE_SECRET, SECRET, prepare
from bargein.stores.postgres.texts import as_it_was, kept
from bargein.stores.postgres.write_probe import WriteProbe

T = TypeVar("T")

_log = logging.getLogger("bargein.server")

CHANNEL = "bargein_gateway"
LINKS = 2
HEARD_EVERY_S = 1.0
ANSWERS_WITHIN_S = 2.0
AGAIN_S = 0.5
PAYLOAD_BYTES_MAX = 7900
ENTRIES_WAITING_MAX = 20_000
CLOSE_S = 3.0
# A session is noted for deletion before the node that makes it has claimed it.
PASSING_S = 60.0

# What is announced: a letter for the kind, and the name or the use.
TOKENS, SESSION, USE = "t", "s", "u"

_TELL = f"pg_notify('{CHANNEL}', $1)"
TOKEN_COLUMNS = (
    "id, principal, hash, created_at, expires_at, revoked_at, read_only, admin, sessions, note"
)
ENTRY = """INSERT INTO bargein.gateway_audit
    (at, principal, token, address, action, session, target, status, detail)"""
ADD_TOKEN = f"""WITH added AS (
        INSERT INTO bargein.gateway_tokens ({TOKEN_COLUMNS})
        VALUES ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ), noted AS ({ENTRY} VALUES ($12, $13, $14, $15, $16, $17, $18, $19, $20))
    SELECT {_TELL}"""
REVOKE = f"""WITH revoked AS (
        UPDATE bargein.gateway_tokens SET revoked_at = $3 WHERE id = $2 AND revoked_at IS NULL
        RETURNING id
    ), noted AS ({ENTRY} SELECT $4::float8, $5, $6, $7, $8, $9, $10, $11::int, $12 FROM revoked)
    SELECT {_TELL} FROM revoked"""
TOKEN_ROWS = f"SELECT {TOKEN_COLUMNS} FROM bargein.gateway_tokens ORDER BY created_at, id"
OWNERS = """SELECT s.id, s.owner, s.created_at,
        coalesce((SELECT jsonb_object_agg(m.principal, m.role) FROM bargein.gateway_members m
            WHERE m.session = s.id), '{}')::text,
        coalesce((SELECT jsonb_object_agg(c.principal, c.consent) FROM bargein.gateway_consents c
            WHERE c.session = s.id), '{}')::text
    FROM bargein.gateway_sessions s WHERE $1::text[] IS NULL OR s.id = ANY($1)"""
ANSWERS_OF = """SELECT s.id, c.consent
    FROM (SELECT id FROM bargein.gateway_sessions WHERE owner = $1
        UNION SELECT session FROM bargein.gateway_members WHERE principal = $1) AS s
    LEFT JOIN bargein.gateway_consents c ON c.session = s.id AND c.principal = $1"""
OWN = f"""WITH kept AS (
        INSERT INTO bargein.gateway_replies
        SELECT $3, $5, $6, 0, $7, $4 WHERE $5::text IS NOT NULL
        ON CONFLICT (principal, key) DO NOTHING RETURNING 1
    ), new AS (SELECT 1 WHERE $5 IS NULL OR EXISTS (SELECT FROM kept)
    ), owned AS (
        INSERT INTO bargein.gateway_sessions SELECT $2, $3, $4 FROM new
        ON CONFLICT (id) DO NOTHING
    ), passing AS (
        INSERT INTO bargein.gateway_replies
        SELECT $3, $8, '', 0, $7, 'infinity' FROM new WHERE $8::text IS NOT NULL
        ON CONFLICT (principal, key) DO NOTHING
    )
    SELECT {_TELL} FROM new"""
# Rows that stay are updated: a statement sees the table as it was before, also after its own
# deletes, so deleting all and adding some would collide.
SHARE = f"""WITH given AS (SELECT * FROM unnest($3::text[], $4::text[]) AS g (principal, role)
    ), removed AS (
        DELETE FROM bargein.gateway_members m WHERE m.session = $2 AND m.principal <> ALL ($3)
    ), forgotten AS (
        DELETE FROM bargein.gateway_consents c WHERE c.session = $2 AND c.consent <> 'hidden'
            AND c.principal <> ALL ($3)
    ), added AS (
        INSERT INTO bargein.gateway_members SELECT $2, principal, role FROM given
        ON CONFLICT (session, principal) DO UPDATE SET role = excluded.role
    )
    SELECT {_TELL}"""
CONSENT = f"""WITH answered AS (
        INSERT INTO bargein.gateway_consents VALUES ($2, $3, $4)
        ON CONFLICT (session, principal) DO UPDATE SET consent = excluded.consent
    )
    SELECT {_TELL}"""
DISOWN = f"""WITH gone AS (DELETE FROM bargein.gateway_sessions WHERE id = $2),
    members AS (DELETE FROM bargein.gateway_members WHERE session = $2),
    consents AS (DELETE FROM bargein.gateway_consents WHERE session = $2),
    notes AS (DELETE FROM bargein.gateway_replies WHERE key = $3 AND at = 'infinity')
    SELECT {_TELL}"""
REPLY = """SELECT fingerprint, status, body FROM bargein.gateway_replies
    WHERE principal = $1 AND key = $2"""
KEEP_REPLY = """INSERT INTO bargein.gateway_replies VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (principal, key) DO UPDATE SET fingerprint = excluded.fingerprint,
        status = excluded.status, body = excluded.body, at = excluded.at"""
PRUNE = """DELETE FROM bargein.gateway_replies WHERE (principal, key) IN (
    SELECT principal, key FROM bargein.gateway_replies WHERE at < $1 ORDER BY at LIMIT $2)"""
PASSING = """SELECT r.body FROM bargein.gateway_replies r WHERE r.at = 'infinity'
    AND starts_with(r.key, $1) AND NOT EXISTS (SELECT FROM bargein.gateway_sessions s
        WHERE s.id = convert_from(r.body, 'UTF8') AND s.created_at > $2)"""
KEEP_TICKET = """WITH old AS (DELETE FROM bargein.gateway_tickets WHERE digest IN (
        SELECT digest FROM bargein.gateway_tickets WHERE expires_at < $3 - 3600 LIMIT 100))
    INSERT INTO bargein.gateway_tickets VALUES ($1, $2, $3)"""
TAKE_TICKET = "DELETE FROM bargein.gateway_tickets WHERE digest = $1 RETURNING body, expires_at"
ADD_ENTRIES = f"""{ENTRY} SELECT * FROM unnest($1::float8[], $2::text[], $3::text[], $4::text[],
    $5::text[], $6::text[], $7::text[], $8::int[], $9::text[])"""
ENTRIES = """SELECT number, at, principal, token, address, action, session, target, status, detail
    FROM bargein.gateway_audit WHERE number > $1 ORDER BY number LIMIT $2"""
OLD_ENTRIES = """SELECT number, session FROM bargein.gateway_audit
    WHERE number > $1 AND at < $2 ORDER BY number LIMIT $3"""
ALLOW_REMOVAL = """UPDATE bargein.gateway_retention SET audit_before = $1
    WHERE audit_before < $1"""
REMOVE_ENTRIES = "DELETE FROM bargein.gateway_audit WHERE number = ANY($1::bigint[])"


class GatewayPostgres:
    """Made by `open`. Keeps `GatewayTables`. For one of asyncio's event loops."""

    is_shared = True
    start: str | None = None

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._name = secrets.token_hex(8)
        self._links = ReadConnections(partial(self._make_link, "gateway"), LINKS)
        self._probe = WriteProbe(self._make_link("probe"), address.name)
        self._tokens: dict[str, TokenRow] = {}
        self._version = 0
        self._heard_at = -inf
        self._waiting: deque[AuditValues] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, address: str) -> "GatewayPostgres":
        """Opens the database, and makes its tables or brings them up to date."""
        parsed = parse_address(address)
        await prepare(parsed)
        tables = cls(parsed)
        try:
            await tables._load_tokens()
            made = secrets.token_urlsafe(32)
            await tables._run(lambda link: link.execute(MAKE_SECRET, made))
            secret = await tables._run(lambda link: link.fetchval(SECRET))
            # Clients see it, so it must not be the secret itself.
            tables.start = hashlib.sha256(f"start {secret}".encode()).hexdigest()[:16]
        except BaseException:
            await tables.aclose()
            raise
        return tables

    @property
    def place(self) -> Path | None:
        return None

    # --- tokens

    def token(self, token_id: str) -> TokenRow | None:
        self._check_fresh()
        return self._tokens.get(token_id)

    def tokens(self) -> list[TokenRow]:
        return list(self._tokens.values())

    def valid_among(self, token_ids: Iterable[str], now: float) -> set[str]:
        self._check_fresh()
        found = [self._tokens.get(each) for each in token_ids]
        return {row.id for row in found if row is not None and row.is_valid(now)}

    def version(self) -> int:
        return self._version

    def _check_fresh(self) -> None:
        if time.monotonic() - self._heard_at > STALE_S:
            raise StoreFailed(
                f"{self._address.name} was not heard for {STALE_S:g} s, so nobody can be admitted; "
                "Bargein tries again by itself",
                retryable=True,
            )

    async def add_token(self, row: TokenRow, entry: AuditValues) -> None:
        values = list(msgspec.structs.astuple(row))
        values[1], values[9] = _text(row.principal), _text(row.note)
        values[8] = [_text(each) for each in row.sessions] if row.sessions is not None else None
        await self._run(lambda link: link.execute(ADD_TOKEN, TOKENS, *values, *_entry(entry)))
        await self._load_tokens()

    async def revoke_token(self, token_id: str, at: float, entry: AuditValues) -> bool:
        done = await self._run(
            lambda link: link.fetch(REVOKE, TOKENS, token_id, at, *_entry(entry))
        )
        await self._load_tokens()
        return bool(done)

    async def _load_tokens(self) -> None:
        asked_at = time.monotonic()
        rows = await self._run(lambda link: link.fetch(TOKEN_ROWS))
        found = [_token(tuple(row)) for row in rows]
        self._tokens = {row.id: row for row in found}
        self._version += 1
        self._heard_at = max(self._heard_at, asked_at)

    # --- owners and members

    async def owners(self, sessions: Collection[str] | None = None) -> list[OwnerRow]:
        if sessions is None:
            await self._load_tokens()
        named = [_text(each) for each in sessions] if sessions is not None else None
        return [
            OwnerRow(as_it_was(session), as_it_was(owner), at, _names(members), _names(consents))
            for session, owner, at, members, consents in await self._run(
                lambda link: link.fetch(OWNERS, named)
            )
        ]

    async def answers_of(self, principal: str) -> dict[str, str | None]:
        named = _text(principal)
        rows = await self._run(lambda link: link.fetch(ANSWERS_OF, named))
        return {as_it_was(session): consent for session, consent in rows}

    async def own(self, new: NewOwner) -> ReplyRow | None:
        session, owner = _text(new.session), _text(new.owner)
        passing = _text(new.passing) if new.passing is not None else None
        values = (session, owner, new.at, new.key, new.fingerprint, new.session.encode(), passing)
        made = await self._run(lambda link: link.fetch(OWN, _about(session), *values))
        if made or new.key is None:
            return None
        return await self.reply(new.owner, new.key)

    async def share(self, session: str, members: Mapping[str, str]) -> None:
        named = _text(session)
        values = ([_text(who) for who in members], [str(role) for role in members.values()])
        await self._run(lambda link: link.execute(SHARE, _about(named), named, *values))

    async def consent(self, session: str, principal: str, consent: str) -> None:
        named = _text(session)
        values = (named, _text(principal), str(consent))
        await self._run(lambda link: link.execute(CONSENT, _about(named), *values))

    async def disown(self, session: str, passing: str | None = None) -> None:
        named = _text(session)
        noted = _text(passing) if passing is not None else None
        await self._run(lambda link: link.execute(DISOWN, _about(named), named, noted))

    # --- kept answers

    async def reply(self, principal: str, key: str) -> ReplyRow | None:
        row = await self._run(lambda link: link.fetchrow(REPLY, _text(principal), _text(key)))
        return ReplyRow(*row) if row is not None else None

    async def keep_reply(self, principal: str, key: str, row: ReplyRow, at: float) -> None:
        values = (_text(principal), _text(key), row.fingerprint, row.status, row.body, at)
        await self._run(lambda link: link.execute(KEEP_REPLY, *values))

    async def prune_replies(self, before: float, limit: int) -> None:
        await self._run(lambda link: link.execute(PRUNE, before, limit))

    async def passing(self, prefix: str) -> list[str]:
        since = time.time() - PASSING_S
        rows = await self._run(lambda link: link.fetch(PASSING, prefix, since))
        return [body.decode() for (body,) in rows]

    # --- tickets

    async def keep_ticket(self, digest: bytes, body: bytes, expires_at: float) -> None:
        await self._run(lambda link: link.execute(KEEP_TICKET, digest, body, expires_at))

    async def take_ticket(self, digest: bytes, now: float) -> bytes | None:
        row = await self._run(lambda link: link.fetchrow(TAKE_TICKET, digest))
        if row is None or row[1] <= now:
            return None
        body: bytes = row[0]
        return body

    # --- the audit log

    def add_entries(self, entries: Sequence[AuditValues]) -> None:
        self._waiting.extend(entries)
        if len(self._waiting) > ENTRIES_WAITING_MAX:
            dropped = len(self._waiting) - ENTRIES_WAITING_MAX
            _log.error("%d entries of the audit log are lost: %s", dropped, self._address.name)
            for _ in range(dropped):
                self._waiting.popleft()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_entries())

    async def _write_entries(self) -> None:
        """Writes what waits, in order. What the database does not take now waits."""
        while self._waiting:
            entries = list(self._waiting)
            columns = [list(column) for column in zip(*map(_entry, entries), strict=True)]
            try:
                await self._run(partial(_add_entries, columns=columns))
            except BargeinError as error:
                _log.warning("entries of the audit log wait: %s", error)
                if self._closed:
                    return
                await asyncio.sleep(AGAIN_S)
                continue
            for _ in entries[: len(self._waiting)]:
                self._waiting.popleft()

    async def entries(self, after: int, limit: int) -> list[tuple[int, AuditValues]]:
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S)
        rows = await self._run(lambda link: link.fetch(ENTRIES, after, limit))
        return [(row[0], tuple(map(_shown, tuple(row)[1:]))) for row in rows]

    async def old_entries(self, before: float, after: int, limit: int) -> list[tuple[int, str]]:
        rows = await self._run(lambda link: link.fetch(OLD_ENTRIES, after, before, limit))
        return [(number, as_it_was(session)) for number, session in rows]

    async def remove_entries(self, numbers: Sequence[int], before: float) -> None:
        # The trigger allows removing entries older than this, and it never moves back.
        await self._run(lambda link: link.execute(ALLOW_REMOVAL, before))
        await self._run(lambda link: link.execute(REMOVE_ENTRIES, list(numbers)))

    # --- the whole of it

    async def check(self) -> None:
        self._check_fresh()
        await self._probe.check()
        await self._run(lambda link: link.execute("SELECT 1"))

    async def hear(self, changed: Changed, used: Used) -> None:
        while True:
            link: Connection | None = None
            try:
                link = await connect(self._address.direct, keeps_statements=True, purpose="changes")
                await self._listen(link, changed, used)
            except (*LOST, asyncpg.PostgresError, BargeinError) as error:
                _log.warning("changes by other nodes are not heard: %s", explain(error, "it"))
                await asyncio.sleep(AGAIN_S)
            finally:
                if link is not None:
                    link.terminate()

    async def _listen(self, link: Connection, changed: Changed, used: Used) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        await link.add_listener(CHANNEL, lambda *given: heard.put_nowait(str(given[3])))
        # What was announced before this connection listened was not heard.
        await self._load_tokens()
        await changed(None)
        while True:
            told = []
            try:
                async with asyncio.timeout(HEARD_EVERY_S):
                    told.append(await heard.get())
            except TimeoutError:
                pass
            asked_at = time.monotonic()
            if asked_at - self._heard_at > HEARD_EVERY_S:
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    await link.fetchval("SELECT 1")
                # What was announced before the answer is in the queue after this.
                await asyncio.sleep(0)
            while not heard.empty():
                told.append(heard.get_nowait())
            await self._heed(told, changed, used)
            self._heard_at = max(self._heard_at, asked_at)

    async def _heed(self, told: list[str], changed: Changed, used: Used) -> None:
        sessions = set()
        for each in told:
            kind, rest = each[:1], each[1:]
            if kind == SESSION and rest:
                sessions.add(as_it_was(rest))
            elif kind == USE:
                node, _, use = rest.partition(" ")
                if node != self._name:
                    used(node, use.encode())
        if TOKENS in told:
            await self._load_tokens()
        if SESSION in told:
            await changed(None)
        elif sessions or TOKENS in told:
            await changed(frozenset(sessions))

    async def tell_use(self, use: bytes) -> None:
        told = f"{USE}{self._name} {use.decode()}"
        if len(told.encode()) <= PAYLOAD_BYTES_MAX:
            await self._run(lambda link: link.execute(f"SELECT {_TELL}", told))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S)
            self._writing.cancel()
        await self._probe.aclose()
        await self._links.aclose()

    async def _run(self, work: Work[T]) -> T:
        try:
            return await self._links.run(work)
        except asyncpg.PostgresError as error:
            raise explain(error, self._address.name) from error

    def _make_link(self, purpose: str) -> PostgresConnection:
        return PostgresConnection(
            self._address.pooled,
            self._address.name,
            keeps_statements=not self._address.is_pooled,
            purpose=purpose,
        )


def _about(session: str) -> str:
    """How a change of this session is announced. A name that does not fit stands for any."""
    told = SESSION + session
    return told if len(told.encode()) <= PAYLOAD_BYTES_MAX else SESSION


def _text(text: str) -> str:
    return kept(text.encode("utf-8", "replace").decode())


def _entry(entry: AuditValues) -> list[float | str | int]:
    return [_text(each) if isinstance(each, str) else each for each in entry]


def _shown(value: Any) -> float | str | int:
    shown: float | str | int = as_it_was(value) if isinstance(value, str) else value
    return shown


async def _add_entries(link: Connection, columns: list[list[Any]]) -> None:
    await link.execute(ADD_ENTRIES, *columns)


def _names(text: str) -> dict[str, str]:
    found = msgspec.json.decode(text, type=dict[str, str])
    return {as_it_was(name): value for name, value in found.items()}


def _token(values: tuple[Any, ...]) -> TokenRow:
    named = dict(zip(TokenRow.__struct_fields__, values, strict=True))
    named["principal"], named["note"] = as_it_was(named["principal"]), as_it_was(named["note"])
    if named["sessions"] is not None:
        named["sessions"] = tuple(map(as_it_was, named["sessions"]))
    return TokenRow(**named)
