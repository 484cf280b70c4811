"""Tokens, principals, and who may do what with which session.

A token stands for a principal. A principal sees its own sessions and those shared with it. To it,
another's session looks like one that does not exist, and takes the same path through the code. An
admin sees all sessions. A token may be limited to some sessions, or to reading.

Everybody who may send to a shared session may stop it. A message can stop a turn, so a separate
rule for stops could be bypassed.

The owners of all sessions are in memory (some 200 bytes each), so a check is one look-up; changes
by other nodes come in through `replace`. A session without an owner was made by a program on this
machine, and belongs to the admins. All methods are for the event loop's thread.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import msgspec

from bargein.contracts.permission import Standing
from bargein.errors import UserError
from bargein.server.gateway_tables import AuditValues, GatewayTables, OwnerRow, TokenRow
from bargein.server.problems import Code, Problem
from bargein.server.shapes import Member

PREFIX = "bgn"
OPERATOR = "operator"
SECRET_BYTES = 32
PRINCIPAL_CHARACTERS_MAX = 100

Right = Literal["read", "write", "own"]

_TALKING = (Member.TALK, Member.WRITE)
_NOBODY = hashlib.sha256(b"nobody has this token").digest()


class Principal(msgspec.Struct, frozen=True):
    """`token` is the id (the public part) of the token, which is valid until `expires_at`.
    `sessions` are those that the token is limited to."""

    name: str
    admin: bool = False
    read_only: bool = False
    sessions: frozenset[str] | None = None
    token: str = ""
    expires_at: float | None = None

    @property
    def sees_all(self) -> bool:
        """False for an admin's token that is limited to some sessions."""
        return self.admin and self.sessions is None


DOOR = "door"
"""The token id of an owner who came by the door, without a token. Real ids are hexadecimal."""
OWNER = Principal(OPERATOR, admin=True, token=DOOR)


class Consent(StrEnum):
    """How a member has answered the invitation to a session."""

    ACCEPTED = "accepted"
    HIDDEN = "hidden"


@dataclass(slots=True)
class Owned:
    """`consents` has the answers of members. `HIDDEN` stays even when the sharing ends."""

    owner: str
    created_at: float = 0.0
    members: dict[str, Member] = field(default_factory=dict)
    consents: dict[str, Consent] = field(default_factory=dict)

    def is_listed_for(self, principal: str) -> bool:
        return self.owner == principal or (
            principal in self.members and self.consents.get(principal) is Consent.ACCEPTED
        )


class Access:
    """`start_token` admits the operator of a server that has no other tokens."""

    def __init__(self, db: GatewayTables, *, start_token: str | None = None) -> None:
        self._db = db
        self._start_hash = _hash(start_token) if start_token is not None else None
        self._approvers: dict[str, bytes] | None = None
        self._owned: dict[str, Owned] = {}
        self._by_principal: dict[str, set[str]] = {}
        self._leaving: set[str] = set()
        self._readings: list[set[str]] = []

    async def load(self) -> None:
        """Reads all owners anew, and forgets sessions that the database no longer has."""
        await self._read(None)

    async def refresh(self, sessions: Collection[str]) -> None:
        """Reads the owners and members of these sessions anew."""
        await self._read(sessions)

    async def refresh_lists(self, principal: str) -> None:
        """Reads those sessions of the principal anew that another node may have made, shared,
        accepted or deleted a moment ago, so that a list is right whichever node is asked."""
        if not self._db.is_shared:
            return
        answers = await self._db.answers_of(principal)
        mine = self._by_principal.get(principal, ())
        known = {each: self._owned[each].consents.get(principal) for each in mine}
        differ = {each for each, _ in answers.items() ^ known.items()}
        if differ:
            await self._read(differ)

    async def _read(self, sessions: Collection[str] | None) -> None:
        """Reads these sessions anew, or all. A session that was changed here meanwhile stays as it
        is: the rows may be older than the change, and would let a removed member in again."""
        changed = set[str]()
        self._readings.append(changed)
        try:
            rows = {row.session: row for row in await self._db.owners(sessions)}
        finally:
            self._readings = [each for each in self._readings if each is not changed]
        for session in {*self._owned, *rows} if sessions is None else sessions:
            if session not in changed:
                self.replace(session, rows.get(session))

    def _changed(self, session: str) -> None:
        for changed in self._readings:
            changed.add(session)

    def replace(self, session: str, row: OwnerRow | None) -> None:
        """Puts a session as the database has it. One that is being deleted here stays hidden."""
        if session in self._leaving:
            return
        known = self._owned.pop(session, None)
        if known is not None:
            self._hide(session, (known.owner, *known.members))
        if row is None:
            return
        self._show(session, row.owner, row.created_at)
        owned = self._owned[session]
        owned.members = {who: Member(role) for who, role in row.members.items()}
        owned.consents = {who: Consent(answer) for who, answer in row.consents.items()}
        for principal in owned.members:
            self._by_principal.setdefault(principal, set()).add(session)

    # --- who it is

    def authenticate(self, shown: str) -> Principal:
        """Returns the principal of this token, or raises `Problem`. A wrong token takes the same
        work as a right one."""
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
        return (self._db.token(token_id) if well_formed else None), secret

    def fix_approvers(self) -> None:
        """From now on, only the start token and the tokens that exist now can approve calls.

        For a server whose agent can write the database: a token that is added or changed later
        may be the agent's own.
        """
        self._approvers = {row.id: row.hash for row in self._db.tokens()}

    def standing_of(self, principal: Principal, root: str) -> Standing:
        """Returns how far the principal is trusted to answer the questions of a session."""
        if self.is_guest(principal, root):
            return Standing.GUEST
        if not self._is_approver(principal):
            return Standing.WRITER
        return Standing.OWNER if principal.admin else Standing.APPROVER

    def is_guest(self, principal: Principal, root: str) -> bool:
        """Returns whether the principal may only read and talk in this session."""
        owned = self._owned.get(root)
        if owned is None or principal.admin or owned.owner == principal.name:
            return False
        return owned.members.get(principal.name) is Member.TALK

    def _is_approver(self, principal: Principal) -> bool:
        if self._approvers is None or not principal.token:
            return True
        row = self._db.token(principal.token)
        known = self._approvers.get(principal.token, _NOBODY)
        return row is not None and hmac.compare_digest(row.hash, known)

    def why_forbidden(self, principal: Principal, root: str, why: str) -> Problem:
        if self.is_guest(principal, root):
            return Problem(
                Code.FORBIDDEN,
                f"{principal.name} may read and talk here, and approves nothing; the owner can "
                f"allow it with  /share approve {principal.name}",
            )
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
            "with an older token",
        )

    def is_valid(self, principal: Principal) -> bool:
        """Returns whether the principal's token is still valid."""
        if principal.token == DOOR:
            return True
        if not principal.token:
            return self._start_hash is not None
        row = self._db.token(principal.token)
        return row is not None and row.is_valid(time.time())

    def valid_among(self, principals: Iterable[Principal]) -> set[str]:
        """Returns the ids of those tokens that are still valid. The start token's id is empty."""
        valid = self._db.valid_among({each.token for each in principals}, time.time())
        valid.add(DOOR)
        if self._start_hash is not None:
            valid.add("")
        return valid

    # --- whose it is

    def own(self, session: str, owner: str, created_at: float = 0.0) -> None:
        self._changed(session)
        self._leaving.discard(session)
        self._show(session, owner, created_at)

    def _show(self, session: str, owner: str, created_at: float) -> None:
        self._owned[session] = Owned(owner, created_at)
        self._by_principal.setdefault(owner, set()).add(session)

    def disown(self, session: str) -> Owned | None:
        """Removes the session from everybody's lists until `own` or `forget`, whatever the database
        says meanwhile. Returns its owner and members, or None."""
        self._changed(session)
        gone = self._owned.pop(session, None)
        if gone is not None:
            self._leaving.add(session)
            self._hide(session, (gone.owner, *gone.members))
        return gone

    def forget(self, session: str) -> None:
        """The database has forgotten a session that was disowned."""
        self._changed(session)
        self._leaving.discard(session)

    def share(self, session: str, members: dict[str, Member]) -> None:
        self._changed(session)
        owned = self._owned[session]
        self._hide(session, owned.members)
        owned.members = dict(members)
        # A member who is invited again is asked again, unless the session is hidden.
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
                # Keep no entry for each name that somebody makes up.
                self._by_principal.pop(principal, None)

    def owned(self, session: str) -> Owned | None:
        return self._owned.get(session)

    def all_owned(self) -> list[str]:
        return list(self._owned)

    def owned_by(self, principal: str) -> list[str]:
        """Returns the sessions that the principal owns."""
        mine = self._by_principal.get(principal, ())
        return [each for each in mine if self._owned[each].owner == principal]

    def seen_count(self, principal: str) -> int:
        """Returns how many sessions the principal sees, which is at least how many it owns."""
        return len(self._by_principal.get(principal, ()))

    def consent(self, session: str, principal: str, consent: Consent) -> None:
        self._changed(session)
        self._owned[session].consents[principal] = consent

    def seen_by(self, principal: Principal) -> list[str]:
        """Returns the sessions in the principal's list: its own, and those it has accepted."""
        return [each for each in self._open_to(principal) if self._is_listed(principal, each)]

    def invited(self, principal: Principal) -> list[str]:
        """Returns the shared sessions that the principal has neither accepted nor hidden."""
        return [
            each
            for each in self._open_to(principal)
            if not self._is_listed(principal, each)
            and principal.name not in self._owned[each].consents
        ]

    def invitations_of(self, session: str) -> int:
        """Returns how many members of the session have not answered yet."""
        owned = self._owned[session]
        return sum(1 for each in owned.members if each not in owned.consents)

    def _open_to(self, principal: Principal) -> list[str]:
        seen = self._by_principal.get(principal.name, set())
        return sorted(seen if principal.sessions is None else seen & principal.sessions)

    def _is_listed(self, principal: Principal, session: str) -> bool:
        return self._owned[session].is_listed_for(principal.name)

    def readable(self, principal: Principal) -> frozenset[str] | None:
        """Returns the root sessions that the principal's searches read, or None if it sees all. An
        unanswered invitation is not among them, so others cannot add text to its results."""
        if principal.sees_all:
            return None
        bound = principal.sessions or ()
        named = (*self.seen_by(principal), *bound)
        return frozenset(each for each in named if self.right(principal, each) is not None)

    def right(self, principal: Principal, root: str) -> Right | None:
        """Returns what the principal may do with this session, or None if it may not see it."""
        owned = self._owned.get(root)
        member = owned.members.get(principal.name) if owned is not None else None
        owner = owned is not None and owned.owner == principal.name
        bound = principal.sessions is None or root in principal.sessions
        if not bound or not (owner or member is not None or principal.admin):
            return None
        if principal.read_only or not (owner or principal.admin or member in _TALKING):
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
    db: GatewayTables,
    principal: str,
    *,
    expires_at: float | None = None,
    read_only: bool = False,
    admin: bool = False,
    sessions: tuple[str, ...] | None = None,
    note: str = "",
) -> tuple[TokenRow, str]:
    """Adds a token. Returns its row and its text, which is stored nowhere."""
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
    kind = [word for word, is_so in (("admin", admin), ("read-only", read_only)) if is_so]
    kind += [f"sessions {', '.join(sessions)}"] if sessions is not None else []
    await db.add_token(row, _entry("add_token", f"{token_id} for {principal}", "; ".join(kind)))
    return row, f"{PREFIX}_{token_id}_{secret}"


async def revoke_token(db: GatewayTables, token_id: str, *, by: str = OPERATOR) -> bool:
    """Revokes a token at once and ends the streams that use it. Returns False if the token is
    unknown or already revoked."""
    return await db.revoke_token(token_id, time.time(), _entry("revoke_token", token_id, "", by))


def _entry(action: str, target: str, detail: str, by: str = OPERATOR) -> AuditValues:
    """Returns an entry for the audit log, written together with the change. Only the operator can
    write the tables past the server, so the entry names the operator unless it came through the
    server."""
    return (time.time(), by, "", "local", action, "", target, 200, detail[:500])
