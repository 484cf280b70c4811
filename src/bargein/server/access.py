"""Who may do what.

A principal is who a token speaks for. It sees its own sessions, those shared with it, and nothing
else: another's session and one that does not exist are the same to it, on the same path through
the code. An admin sees all. A token may be bound to some sessions, or to reading.

Who may stop a shared session: whoever may send to it. A message can stop a turn, so a second rule
would be one that is got around.

The owners of all sessions are in memory (some 200 bytes each): who may see what is one look-up.
A session that nobody owns was made by a program on this machine, and is the admins'.
"""

import hashlib
import hmac
import secrets
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import msgspec

from bargein.contracts.permission import Standing
from bargein.errors import UserError
from bargein.server.bell import ring
from bargein.server.gateway_db import GatewayDb, TokenRow
from bargein.server.problems import Code, Problem
from bargein.server.shapes import Member

PREFIX = "bgn"
OPERATOR = "operator"
SECRET_BYTES = 32
PRINCIPAL_CHARACTERS_MAX = 100

Right = Literal["read", "write", "own"]

_NOBODY = hashlib.sha256(b"nobody has this token").digest()


class Principal(msgspec.Struct, frozen=True):
    """`token` is the public part of the token that was shown, which holds until `expires_at`.
    `sessions`: those it is bound to."""

    name: str
    admin: bool = False
    read_only: bool = False
    sessions: frozenset[str] | None = None
    token: str = ""
    expires_at: float | None = None

    @property
    def sees_all(self) -> bool:
        """An admin's token that is bound to some sessions is one for those alone."""
        return self.admin and self.sessions is None


DOOR = "door"
"""Stands for a token where the owner came by its own door. Tokens have hexadecimal ids."""
OWNER = Principal(OPERATOR, admin=True, token=DOOR)


class Consent(StrEnum):
    """What one with whom a session is shared has said to that."""

    ACCEPTED = "accepted"
    HIDDEN = "hidden"


@dataclass(slots=True)
class Owned:
    """`consents`: of members who have answered; a hidden one stays so though it is not shared."""

    owner: str
    created_at: float = 0.0
    members: dict[str, Member] = field(default_factory=dict)
    consents: dict[str, Consent] = field(default_factory=dict)

    def is_listed_for(self, principal: str) -> bool:
        return self.owner == principal or (
            principal in self.members and self.consents.get(principal) is Consent.ACCEPTED
        )


class Access:
    """`start_token`, if given, is for the operator of a server that has no other tokens."""

    def __init__(self, book: GatewayDb, *, start_token: str | None = None) -> None:
        self._book = book
        self._start_hash = _hash(start_token) if start_token is not None else None
        self._approvers: dict[str, bytes] | None = None
        self._owned: dict[str, Owned] = {}
        self._by_principal: dict[str, set[str]] = {}

    async def load(self) -> None:
        def read(connection: sqlite3.Connection) -> list[tuple[str, str, float]]:
            return connection.execute("SELECT id, owner, created_at FROM sessions").fetchall()

        def read_members(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
            return connection.execute("SELECT session, principal, role FROM members").fetchall()

        def read_consents(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
            return connection.execute("SELECT session, principal, consent FROM consents").fetchall()

        for session, owner, created_at in await self._book.run(read):
            self.own(session, owner, created_at)
        for session, principal, role in await self._book.run(read_members):
            if session in self._owned:
                self._owned[session].members[principal] = Member(role)
                self._by_principal.setdefault(principal, set()).add(session)
        for session, principal, consent in await self._book.run(read_consents):
            if session in self._owned:
                self._owned[session].consents[principal] = Consent(consent)

    # --- who it is

    def authenticate(self, shown: str) -> Principal:
        """Who shows this token. The same work for a wrong one as for a right one."""
        now = time.time()
        row, secret = self._find(shown)
        known = row.hash if row is not None else _NOBODY
        right = hmac.compare_digest(_hash(secret), known)
        if self._start_hash is not None and hmac.compare_digest(_hash(shown), self._start_hash):
            return Principal(OPERATOR, admin=True)
        if row is None or not right:
            wrong = "the token is not known here" if shown else "no token was shown"
            raise Problem(
                Code.UNAUTHENTICATED,
                f"{wrong}; show one made with `bargein token add`, or open the address that "
                "`bargein serve` printed",
            )
        if not row.is_valid(now):
            raise Problem(
                Code.UNAUTHENTICATED,
                f"the token {row.id} has expired or was revoked; ask for a new one",
            )
        return principal_of(row)

    def _find(self, shown: str) -> tuple[TokenRow | None, str]:
        prefix, _, rest = shown.partition("_")
        token_id, _, secret = rest.partition("_")
        well_formed = prefix == PREFIX and token_id.isascii()
        return (self._book.token(token_id) if well_formed else None), secret

    def fix_approvers(self) -> None:
        """From now on only tokens that exist now can approve calls, and the start token.

        For a server whose agent can write the book: a token that appears there later, or changes,
        may be the agent's own.
        """
        self._approvers = {row.id: row.hash for row in self._book.tokens()}

    def standing_of(self, principal: Principal) -> Standing:
        """How far this one is trusted to answer questions."""
        if not self._is_approver(principal):
            return Standing.WRITER
        return Standing.OWNER if principal.admin else Standing.APPROVER

    def _is_approver(self, principal: Principal) -> bool:
        if self._approvers is None or not principal.token:
            return True
        row = self._book.token(principal.token)
        known = self._approvers.get(principal.token, _NOBODY)
        return row is not None and hmac.compare_digest(row.hash, known)

    def why_forbidden(self, principal: Principal, why: str) -> Problem:
        if self._is_approver(principal):
            return Problem(Code.FORBIDDEN, why)
        if principal.token == DOOR:
            return Problem(
                Code.FORBIDDEN,
                "commands of the agent can reach this server as its owner here, so a terminal that "
                "attaches cannot approve calls (`bargein doctor` says why); answer on the page",
            )
        return Problem(
            Code.FORBIDDEN,
            f"the token {principal.token} was made while this server was running, and commands of "
            "its agent can make tokens (`bargein doctor` says why); restart the server, or answer "
            "with an older one",
        )

    def is_valid(self, principal: Principal) -> bool:
        """Whether the token that this one came with still holds."""
        if principal.token == DOOR:
            return True
        if not principal.token:
            return self._start_hash is not None
        row = self._book.token(principal.token)
        return row is not None and row.is_valid(time.time())

    def valid_among(self, principals: Iterable[Principal]) -> set[str]:
        """The tokens of these that still hold; that of the start has no name."""
        valid = self._book.valid_among({each.token for each in principals}, time.time())
        valid.add(DOOR)
        if self._start_hash is not None:
            valid.add("")
        return valid

    # --- whose it is

    def own(self, session: str, owner: str, created_at: float = 0.0) -> None:
        self._owned[session] = Owned(owner, created_at)
        self._by_principal.setdefault(owner, set()).add(session)

    def disown(self, session: str) -> Owned | None:
        """Whose it was."""
        gone = self._owned.pop(session, None)
        if gone is not None:
            self._hide(session, (gone.owner, *gone.members))
        return gone

    def share(self, session: str, members: dict[str, Member]) -> None:
        owned = self._owned[session]
        self._hide(session, owned.members)
        owned.members = dict(members)
        # One who is invited again is asked again, unless that was declined.
        owned.consents = {
            who: consent
            for who, consent in owned.consents.items()
            if who in members or consent is Consent.HIDDEN
        }
        for principal in (owned.owner, *members):
            self._by_principal.setdefault(principal, set()).add(session)

    def _hide(self, session: str, principals: Iterable[str]) -> None:
        for principal in principals:
            seen = self._by_principal.get(principal, set())
            seen.discard(session)
            if not seen:
                # Names can be made up without end.
                self._by_principal.pop(principal, None)

    def owned(self, session: str) -> Owned | None:
        return self._owned.get(session)

    def all_owned(self) -> list[str]:
        return list(self._owned)

    def owned_by(self, principal: str) -> list[str]:
        """Those it owns, of all that it sees."""
        mine = self._by_principal.get(principal, ())
        return [each for each in mine if self._owned[each].owner == principal]

    def seen_count(self, principal: str) -> int:
        """How many it sees: at least as many as it owns."""
        return len(self._by_principal.get(principal, ()))

    def consent(self, session: str, principal: str, consent: Consent) -> None:
        self._owned[session].consents[principal] = consent

    def seen_by(self, principal: Principal) -> list[str]:
        """Those in its list: its own, and those it has accepted."""
        return [each for each in self._open_to(principal) if self._is_listed(principal, each)]

    def invited(self, principal: Principal) -> list[str]:
        """Those that are shared with it, to which it has said nothing yet."""
        return [
            each
            for each in self._open_to(principal)
            if not self._is_listed(principal, each)
            and principal.name not in self._owned[each].consents
        ]

    def invitations_of(self, session: str) -> int:
        """How many it is shared with who have said nothing to that yet."""
        owned = self._owned[session]
        return sum(1 for each in owned.members if each not in owned.consents)

    def _open_to(self, principal: Principal) -> list[str]:
        seen = self._by_principal.get(principal.name, set())
        return sorted(seen if principal.sessions is None else seen & principal.sessions)

    def _is_listed(self, principal: Principal, session: str) -> bool:
        return self._owned[session].is_listed_for(principal.name)

    def readable(self, principal: Principal) -> frozenset[str] | None:
        """All root sessions that its searches look through; None for one who sees all. Others can
        put no words there."""
        if principal.sees_all:
            return None
        bound = principal.sessions or ()
        named = (*self.seen_by(principal), *bound)
        return frozenset(each for each in named if self.right(principal, each) is not None)

    def right(self, principal: Principal, root: str) -> Right | None:
        """What it may do with this session; None if, to it, there is no such one."""
        owned = self._owned.get(root)
        member = owned.members.get(principal.name) if owned is not None else None
        owner = owned is not None and owned.owner == principal.name
        bound = principal.sessions is None or root in principal.sessions
        if not bound or not (owner or member is not None or principal.admin):
            return None
        if principal.read_only or not (owner or principal.admin or member is Member.WRITE):
            return "read"
        return "own" if owner or principal.admin else "write"


def principal_of(row: TokenRow) -> Principal:
    bound = frozenset(row.sessions) if row.sessions is not None else None
    return Principal(row.principal, row.admin, row.read_only, bound, row.id, row.expires_at)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


# --- making and revoking tokens


def new_start_token() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


async def add_token(
    book: GatewayDb,
    principal: str,
    *,
    expires_at: float | None = None,
    read_only: bool = False,
    admin: bool = False,
    sessions: tuple[str, ...] | None = None,
    note: str = "",
) -> tuple[TokenRow, str]:
    """A new token and its text, which is told once and kept nowhere."""
    if not principal or len(principal) > PRINCIPAL_CHARACTERS_MAX or not principal.isprintable():
        raise UserError(
            f"a principal's name must have 1 to {PRINCIPAL_CHARACTERS_MAX} printable characters, "
            f"not {principal!r}"
        )
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
    row = TokenRow(
        token_id,
        principal,
        _hash(secret),
        time.time(),
        expires_at,
        None,
        read_only,
        admin,
        sessions,
        note,
    )
    values = msgspec.structs.astuple(row)
    bound = msgspec.json.encode(sessions).decode() if sessions is not None else None

    kind = [word for word, is_so in (("admin", admin), ("read-only", read_only)) if is_so]
    kind += [f"sessions {', '.join(sessions)}"] if sessions is not None else []

    def insert(connection: sqlite3.Connection) -> None:
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO tokens VALUES ({marks})", (*values[:8], bound, values[9]))
        _note(connection, "add_token", f"{token_id} for {principal}", "; ".join(kind))

    await book.run(insert)
    return row, f"{PREFIX}_{token_id}_{secret}"


async def revoke_token(book: GatewayDb, token_id: str) -> bool:
    """From this moment on it is worth nothing, and what is open with it ends. Returns False if the
    token is unknown or already revoked."""

    def revoke(connection: sqlite3.Connection) -> bool:
        done = connection.execute(
            "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
            (time.time(), token_id),
        )
        if done.rowcount > 0:
            _note(connection, "revoke_token", token_id, "")
        return done.rowcount > 0

    revoked = await book.run(revoke)
    ring(book.path)
    return revoked


def _note(connection: sqlite3.Connection, action: str, target: str, detail: str) -> None:
    """In the audit log, in the transaction of what it tells. Whoever does it has the file."""
    connection.execute(
        "INSERT INTO audit (at, principal, token, address, action, session, target, status, detail)"
        " VALUES (?, ?, '', 'local', ?, '', ?, 200, ?)",
        (time.time(), OPERATOR, action, target, detail[:500]),
    )
