"""Shares chats with guests, at an address of its own, for as long as the owner wants.

`Guests` listens at one address for all shared sessions, with TLS and a certificate of its own. An
invitation is a code that works once. The person who shows it becomes a guest, under a name that the
owner chose, with a token for that one session. A guest reads and sends messages; the owner decides
separately whether a guest may approve calls. Only guests get in at that address.

The address, the certificate, the invitations (by hash) and the guests are in one file, which is
written before an invitation is answered. So the next process that owns the data directory listens
at the same address, and the guests come back. All methods are for the loop's thread.
"""

import errno
import hashlib
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from bargein.cluster.certificate import (
    OwnCertificate,
    certificate_of,
    fingerprint_of,
    make_pem,
)
from bargein.contracts.guests import GuestView, Joined, SharedView
from bargein.contracts.visible import visible
from bargein.errors import UserError
from bargein.server.access import (
    OPERATOR,
    PRINCIPAL_CHARACTERS_MAX,
    Consent,
    Principal,
    add_token,
    revoke_token,
)
from bargein.server.gateway import Gateway
from bargein.server.gateway_tables import NewOwner
from bargein.server.problems import Code, Problem
from bargein.server.running import is_loopback, listen
from bargein.server.shapes import Member
from bargein.stores.user_file import UserFile

_log = logging.getLogger("bargein.server")

FILE = "guests.json"
CODE_BYTES = 16
INVITED_S = 3600.0
GUEST_S = 7 * 24 * 3600.0
CERTIFICATE_DAYS = 397
"""Some phones refuse a certificate that is valid for longer."""
INVITATIONS_MAX = 20
GUESTS_MAX = 50
NAME = "guest"
NO_HOST = "192.0.2.1"
"""An unused address (RFC 5737): the kernel's route to it tells which of our addresses leads out."""


class Invitation(msgspec.Struct, frozen=True):
    """An unused invitation. `digest` is the hash of its code."""

    digest: str
    name: str
    until: float


class Guest(msgspec.Struct, frozen=True):
    """`token` is the public id of its token."""

    name: str
    token: str


class SharedSession(msgspec.Struct, frozen=True):
    invitations: tuple[Invitation, ...] = ()
    guests: tuple[Guest, ...] = ()


class GuestAddress(msgspec.Struct, frozen=True):
    """The address at which guests come in. `pem` has the key and the certificate."""

    host: str
    port: int
    pem: str


class SharedChats(msgspec.Struct, frozen=True):
    """The content of the file."""

    place: GuestAddress | None = None
    sessions: dict[str, SharedSession] = {}


class Listens(Protocol):
    """`GatewayServer`, as far as guests need it."""

    def listen_for_guests(self, listening: socket.socket, context: ssl.SSLContext) -> None: ...

    def stop_listening_for_guests(self) -> None: ...


def open_file(home: Path) -> UserFile[SharedChats]:
    mends = "remove it to end all sharing of chats"
    return UserFile(home / FILE, SharedChats, SharedChats(), mends=mends)


def guest_tokens(home: Path) -> frozenset[str]:
    """Returns the ids of all guests' tokens; nothing if the file cannot be read."""
    try:
        shared = open_file(home).read().sessions.values()
    except UserError:
        return frozenset()
    return frozenset(guest.token for each in shared for guest in each.guests)


class Guests:
    """`address` is where to listen, as HOST or HOST:PORT; empty for the address by which this
    machine reaches its network."""

    def __init__(self, gateway: Gateway, home: Path, *, address: str = "") -> None:
        self._gateway = gateway
        self._file = open_file(home)
        self._wanted = parse_place(address) if address else None
        self._chats = SharedChats()
        self._certificate: OwnCertificate | None = None
        self._lock = anyio.Lock()
        self._server: Listens | None = None
        self._listening: socket.socket | None = None

    # --- the address

    def begin(self, server: Listens) -> None:
        """Listens again at the earlier address, if chats are shared."""
        self._server = server
        try:
            self._chats = self._file.read()
            self._drop_deleted()
            if self._chats.sessions:
                self._open()
        except (UserError, OSError, ValueError) as error:
            # The chats work without guests; the next /share shows this error.
            _log.warning("guests of shared chats cannot come in: %s", error)

    def _drop_deleted(self) -> None:
        """Drops deleted sessions: a crash may have come before their sharing was ended."""
        left = {
            session: shared
            for session, shared in self._chats.sessions.items()
            if self._gateway.access.owned(session) is not None
        }
        if left != self._chats.sessions:
            self._write(SharedChats(self._chats.place if left else None, left))

    def close(self) -> None:
        """Stops listening. The next process that owns the data directory listens again."""
        if self._listening is not None:
            assert self._server is not None
            self._server.stop_listening_for_guests()
            self._listening.close()
            self._listening = None

    def is_guest(self, principal: Principal) -> bool:
        return any(
            guest.token == principal.token
            for each in self._chats.sessions.values()
            for guest in each.guests
        )

    def _open(self) -> None:
        """Listens, unless it does already; at the earlier address, if there was one."""
        if self._listening is not None:
            return
        assert self._server is not None
        place = self._chats.place or self._new_place()
        certificate = certificate_of(place.pem)
        try:
            listening = listen(place.host, place.port)
        except UserError as error:
            why = str(error).partition(";")[0]
            raise UserError(
                f"{why}; /unshare gives the address up, or set share.address to another"
            ) from error
        try:
            port = listening.getsockname()[1]
            place = msgspec.structs.replace(place, port=port)
            if place != self._chats.place:
                self._write(msgspec.structs.replace(self._chats, place=place))
            self._server.listen_for_guests(listening, certificate.context)
        except BaseException:
            listening.close()
            raise
        self._listening, self._certificate = listening, certificate

    def _new_place(self) -> GuestAddress:
        host, port = self._wanted or (own_address(), 0)
        pem = make_pem("bargein", [host], valid_days=CERTIFICATE_DAYS, extra="share")
        return GuestAddress(host, port, pem)

    # --- what the owner does

    async def invite(self, session: str, name: str) -> tuple[str, SharedView]:
        """Returns the address for one guest, and the state of the sharing."""
        async with self._lock:
            shared = self._chats.sessions.get(session, SharedSession())
            name = self._name_for(session, shared, name.strip())
            now = time.time()
            kept = [each for each in shared.invitations if each.until > now and each.name != name]
            if len(kept) >= INVITATIONS_MAX or len(shared.guests) >= GUESTS_MAX:
                raise Problem(
                    Code.TOO_MANY, "too many guests are invited to this session; /unshare ends all"
                )
            await self._own(session)
            self._open()
            code = secrets.token_urlsafe(CODE_BYTES)
            kept.append(Invitation(_digest(code), name, now + INVITED_S))
            self._put(session, msgspec.structs.replace(shared, invitations=tuple(kept)))
            view = self.view(session)
            return f"{view.address}#join={code}", view

    def _name_for(self, session: str, shared: SharedSession, wanted: str) -> str:
        if len(wanted) > PRINCIPAL_CHARACTERS_MAX or not wanted.isprintable():
            raise UserError(
                f"a guest's name has at most {PRINCIPAL_CHARACTERS_MAX} printable characters, not "
                f"{visible(wanted[:200])!r}"
            )
        owned = self._gateway.access.owned(session)
        taken = {row.principal for row in self._gateway.db.tokens() if row.revoked_at is None}
        taken |= {OPERATOR, "user", *([owned.owner, *owned.members] if owned is not None else ())}
        if wanted and wanted in taken:
            raise UserError(f"{wanted} is somebody else's name here; choose another")
        if wanted:
            return wanted
        taken |= {each.name for each in shared.invitations if each.until > time.time()}
        names = (NAME if number == 1 else f"{NAME}-{number}" for number in range(1, 2**31))
        return next(each for each in names if each not in taken)

    async def _own(self, session: str) -> None:
        """Gives a session without an owner to the operator: only a session with an owner can have
        members."""
        access = self._gateway.access
        if access.owned(session) is None:
            at = time.time()
            await self._gateway.db.own(NewOwner(session, OPERATOR, at))
            access.own(session, OPERATOR, at)

    async def let_approve(self, session: str, name: str, *, approves: bool) -> SharedView:
        """Says whether a guest may approve calls."""
        async with self._lock:
            shared = self._chats.sessions.get(session, SharedSession())
            if all(each.name != name for each in shared.guests):
                known = ", ".join(each.name for each in shared.guests) or "nobody has joined yet"
                raise UserError(f"there is no guest {name!r} in this session: {known}")
            role = Member.WRITE if approves else Member.TALK
            await self._set_members(session, lambda members: {**members, name: role})
            return self.view(session)

    async def unshare(self, session: str) -> tuple[str, ...]:
        """Ends the sharing: revokes the guests' tokens and drops the invitations. Returns the names
        of the guests."""
        async with self._lock:
            shared = self._chats.sessions.get(session)
            if shared is None:
                return ()
            for guest in shared.guests:
                await revoke_token(self._gateway.db, guest.token)
            names = {each.name for each in shared.guests}
            await self._set_members(
                session,
                lambda members: {who: role for who, role in members.items() if who not in names},
            )
            left = {each: it for each, it in self._chats.sessions.items() if each != session}
            self._write(SharedChats(self._chats.place if left else None, left))
            if not left:
                self.close()
            self._gateway.cut_ended()
            return tuple(each.name for each in shared.guests)

    def view(self, session: str) -> SharedView:
        """Returns the guests of a session, its unused invitations and the address."""
        shared, place = self._chats.sessions.get(session), self._chats.place
        if shared is None or place is None:
            return SharedView()
        members, now = self._members(session), time.time()
        return SharedView(
            f"https://{_in_address(place.host)}:{place.port}/",
            _fingerprint(fingerprint_of(place.pem)),
            tuple(
                GuestView(each.name, members.get(each.name) is Member.WRITE)
                for each in shared.guests
            ),
            tuple(each.name for each in shared.invitations if each.until > now),
            here_only=is_loopback(place.host),
        )

    # --- what a guest does

    async def join(self, code: str) -> Joined:
        """Uses up the code of an invitation and makes a guest's token for its session."""
        digest = _digest(code)
        async with self._lock:
            found = self._invitation(digest)
            if found is None:
                raise Problem(
                    Code.UNAUTHENTICATED,
                    "this address was used before, or has expired: each works once. Ask for a new "
                    "one (/share)",
                )
            session, invitation = found
            row, token = await add_token(
                self._gateway.db,
                invitation.name,
                expires_at=time.time() + GUEST_S,
                sessions=(session,),
                note="a guest of a shared chat",
            )
            await self._set_members(
                session, lambda members: {**members, invitation.name: Member.TALK}
            )
            await self._gateway.db.consent(session, invitation.name, Consent.ACCEPTED)
            self._gateway.access.consent(session, invitation.name, Consent.ACCEPTED)
            shared = self._chats.sessions[session]
            self._put(
                session,
                SharedSession(
                    tuple(each for each in shared.invitations if each.digest != digest),
                    (*shared.guests, Guest(invitation.name, row.id)),
                ),
            )
            return Joined(token, session, invitation.name)

    def _invitation(self, digest: str) -> tuple[str, Invitation] | None:
        now = time.time()
        for session, shared in self._chats.sessions.items():
            for each in shared.invitations:
                if secrets.compare_digest(each.digest, digest) and each.until > now:
                    return session, each
        return None

    # --- what is kept

    def _members(self, session: str) -> Mapping[str, Member]:
        owned = self._gateway.access.owned(session)
        return owned.members if owned is not None else {}

    async def _set_members(
        self, session: str, change: Callable[[Mapping[str, Member]], dict[str, Member]]
    ) -> None:
        async with self._gateway.sharing:
            if self._gateway.access.owned(session) is None:
                return  # it was deleted, and its members with it
            members = change(self._members(session))
            await self._gateway.db.share(session, members)
            self._gateway.access.share(session, members)
        self._gateway.cut_unshared()

    def _put(self, session: str, shared: SharedSession) -> None:
        sessions = {**self._chats.sessions, session: shared}
        self._write(msgspec.structs.replace(self._chats, sessions=sessions))

    def _write(self, chats: SharedChats) -> None:
        self._file.change(lambda before: chats)
        self._chats = chats


def own_address() -> str:
    """Returns the address of this machine in its network, or loopback if it has none. Sends
    nothing: connecting a UDP socket only asks the kernel for a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((NO_HOST, 9))
        except OSError as error:
            if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES):
                raise
            return "127.0.0.1"
        address: str = asking.getsockname()[0]
        return address


def parse_place(address: str) -> tuple[str, int]:
    """Reads HOST or HOST:PORT, where HOST is an IP address of this machine."""
    from ipaddress import ip_address

    host, found, port = address.rpartition(":")
    if not found or address.endswith("]") or (address.count(":") > 1 and not host.endswith("]")):
        host, port = address, "0"
    host = host.removeprefix("[").removesuffix("]")
    try:
        if not 0 <= int(port) < 2**16:
            raise ValueError
        return str(ip_address(host)), int(port)
    except ValueError:
        raise UserError(
            f"share.address is {address!r}; give an IP address of this machine, with a port or "
            "without: 192.168.1.20 or 192.168.1.20:8485"
        ) from None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _fingerprint(digest: bytes) -> str:
    return digest.hex(":").upper()


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()
