"""The gateway's own tables: tokens, owners and members, kept answers, tickets, the audit log.

`GatewayTables` is their interface. `gateway_db.GatewayDb` keeps them in a SQLite
file beside the sessions; `gateway_postgres.GatewayPostgres` keeps them in the database that the
nodes of a cluster share. `tests/server/test_gateway_tables.py` holds both to the same contract.

What holds:

- A write is durable when its await returns. A cancel of the await does not undo it.
- `token`, `tokens` and `valid_among` never wait. A token that was revoked elsewhere is invalid at
  the next request (SQLite), or as soon as the bell is heard and within `STALE_S` in any case: a
  node that cannot hear the database answers nobody (PostgreSQL).
- Audit entries can be added and neither changed nor removed before their time.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

STALE_S = 5.0

AuditValues = tuple[float | str | int, ...]
"""`at, principal, token, address, action, session, target, status, detail`"""

Changed = Callable[[frozenset[str] | None], Awaitable[object]]
"""Called with the sessions whose owner or members changed; with None if any may have changed."""

Used = Callable[[str, bytes], object]
"""Called with another node's name and with what its principals use, as `tell_use` was given it."""


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


class OwnerRow(msgspec.Struct, frozen=True):
    """Whom a session belongs to, the roles of its members, and their answers."""

    session: str
    owner: str
    created_at: float
    members: Mapping[str, str] = {}
    consents: Mapping[str, str] = {}


class ReplyRow(msgspec.Struct, frozen=True):
    """A kept answer. `fingerprint` is of the request that it answers."""

    fingerprint: bytes
    status: int
    body: bytes


class NewOwner(msgspec.Struct, frozen=True):
    """A session that somebody makes. `key` is the Idempotency-Key of the request, if it had one.
    `passing`: a key under which the session is noted for deletion after its answer."""

    session: str
    owner: str
    at: float
    key: str | None = None
    fingerprint: bytes = b""
    passing: str | None = None


class GatewayTables(Protocol):
    """All methods are for one event loop, in its thread."""

    @property
    def is_shared(self) -> bool:
        """Whether other nodes use the same tables."""
        ...

    @property
    def start(self) -> str | None:
        """Names the start of the cluster, which outlives each of its nodes; None if there is only
        one server, whose turns end with it."""
        ...

    @property
    def place(self) -> Path | None:
        """The directory whose disk they are on, if it is on this machine."""
        ...

    # --- tokens

    def token(self, token_id: str) -> TokenRow | None: ...

    def tokens(self) -> list[TokenRow]:
        """Returns all tokens, the oldest first."""
        ...

    def valid_among(self, token_ids: Iterable[str], now: float) -> set[str]: ...

    def version(self) -> int:
        """Returns a number that changes when a token may have changed elsewhere."""
        ...

    async def add_token(self, row: TokenRow, entry: AuditValues) -> None: ...

    async def revoke_token(self, token_id: str, at: float, entry: AuditValues) -> bool:
        """Returns False, and adds no entry, if the token is unknown or already revoked."""
        ...

    # --- owners and members

    async def owners(self, sessions: Collection[str] | None = None) -> list[OwnerRow]:
        """Returns the owners of these sessions, as far as they have one; of all if None."""
        ...

    async def answers_of(self, principal: str) -> dict[str, str | None]:
        """Returns the sessions that the principal owns or is a member of, each with its answer to
        the invitation, None without one."""
        ...

    async def own(self, new: NewOwner) -> ReplyRow | None:
        """Writes a session's owner, with the request's key, in one step. Returns None; or, if the
        key was used before, what is kept for it, and writes nothing. The body of that is the id of
        the session that the key made."""
        ...

    async def share(self, session: str, members: Mapping[str, str]) -> None:
        """Replaces the members. Forgets answers of others, except those that hide the session."""
        ...

    async def consent(self, session: str, principal: str, consent: str) -> None: ...

    async def disown(self, session: str, passing: str | None = None) -> None:
        """Forgets owner, members, answers, and the note `passing`."""
        ...

    # --- kept answers

    async def reply(self, principal: str, key: str) -> ReplyRow | None: ...

    async def keep_reply(self, principal: str, key: str, row: ReplyRow, at: float) -> None: ...

    async def prune_replies(self, before: float, limit: int) -> None: ...

    async def passing(self, prefix: str) -> list[str]:
        """Returns the sessions that are noted for deletion under keys that begin like this."""
        ...

    # --- tickets

    async def keep_ticket(self, digest: bytes, body: bytes, expires_at: float) -> None: ...

    async def take_ticket(self, digest: bytes, now: float) -> bytes | None:
        """Returns the body and forgets the ticket; None if it is unknown, used or expired."""
        ...

    # --- the audit log

    def add_entries(self, entries: Sequence[AuditValues]) -> None:
        """Begins to write the entries, in this order. Does not wait."""
        ...

    async def entries(self, after: int, limit: int) -> list[tuple[int, AuditValues]]:
        """Returns entries with their numbers, which rise. Sees those added before."""
        ...

    async def old_entries(self, before: float, after: int, limit: int) -> list[tuple[int, str]]:
        """Returns number and session of entries that are older than `before`."""
        ...

    async def remove_entries(self, numbers: Sequence[int], before: float) -> None:
        """Removes entries. None of them may be younger than `before`."""
        ...

    # --- the whole of it

    async def check(self) -> None:
        """Raises if the tables cannot be read and written now."""
        ...

    async def hear(self, changed: Changed, used: Used) -> None:
        """Calls `changed` when another process or node has changed something, and `used` with what
        principals use at other nodes. Runs until cancelled."""
        ...

    async def tell_use(self, use: bytes) -> None:
        """Tells the other nodes what principals use here. Nothing happens if there are none."""
        ...

    async def aclose(self) -> None:
        """Writes what was asked for, then closes. Bounded."""
        ...


async def open_tables(home: Path, store: str | Path | None) -> GatewayTables:
    """Opens the tables where the sessions are: in the PostgreSQL database that `store` names, or
    else in a file in the data directory `home`."""
    from bargein.stores import is_postgres

    if isinstance(store, str) and is_postgres(store):
        from bargein.server.gateway_postgres import GatewayPostgres

        return await GatewayPostgres.open(store)
    from bargein.server.gateway_db import FILE, GatewayDb

    return GatewayDb.open(home / FILE)
