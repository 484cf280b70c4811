"""The guests of a shared chat, as the API describes them. Plain data."""

import msgspec


class GuestView(msgspec.Struct, frozen=True):
    name: str
    approves: bool


class SharedView(msgspec.Struct, frozen=True):
    """The guests of a session; everything is empty if it is not shared. `fingerprint` is the
    SHA-256 of the certificate at `address`. `waiting` has the names of unused invitations.
    `here_only`: only this machine can reach the address."""

    address: str = ""
    fingerprint: str = ""
    guests: tuple[GuestView, ...] = ()
    waiting: tuple[str, ...] = ()
    here_only: bool = False


class Invited(msgspec.Struct, frozen=True):
    """`address` works once, for `name`."""

    address: str
    name: str
    shared: SharedView


class Unshared(msgspec.Struct, frozen=True):
    """The names of the guests who are out now."""

    guests: tuple[str, ...]


class Joined(msgspec.Struct, frozen=True):
    """The answer to an invitation: a guest's token for one session."""

    token: str
    session: str
    principal: str
