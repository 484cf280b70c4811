"""Where sessions are kept. One Protocol, one conformance suite, several stores.

What holds for every store:

- `commit` is all or nothing and durable when it returns. It is refused with `StaleEpoch` if the
  root session has been claimed again since, and with `OutOfOrder` if the log does not end where
  the writer thinks. A refused or failed commit of one session touches no other, also when they
  were written in one batch.
- `claim` gives a new, higher epoch: whoever held the session before can write no more.
- A commit whose caller was cancelled may or may not have happened: the caller looks again.
- Nothing that was acknowledged is lost by a full disk, a crash of the program or of the machine.

Errors: `StoreFailed` for the disk, the file or the server (a `WorldError`), with a sentence that
names the file and what to do. After one the store looks afresh: the next operation may succeed.
"""

from typing import Protocol

import msgspec

from bargein.contracts.event import Event, Recorded
from bargein.errors import BargeinError, WorldError


class StaleEpoch(BargeinError):
    """Another owner has claimed the session. This one must stop at once and write no more."""


class OutOfOrder(BargeinError):
    """The log of the session does not end where the writer expected."""


class DuplicateKey(BargeinError):
    """A message with this sender and client id was accepted before."""


class StoreFailed(WorldError):
    """The store could not do it. The message names the file and says what to do."""


class AcceptKey(msgspec.Struct, frozen=True):
    """What makes a message's second delivery recognisable. Unique by (session, sender, client_id)."""

    sender: str
    client_id: str
    message: str
    body_hash: bytes


class SessionHead(msgspec.Struct, frozen=True):
    """All that is needed to go on with a session without reading its log."""

    id: str
    root: str
    epoch: int
    seq: int
    state: bytes
    title: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0


class Commit(msgspec.Struct, frozen=True):
    """One step of one session's log.

    `expected_seq` is the seq of the last event before these. `state` replaces the head's state.
    `unfinished` marks it as having work to go on with after a restart. `text` is added to what
    `search` looks through.
    """

    session: str
    root: str
    epoch: int
    expected_seq: int
    at: float
    events: tuple[Event, ...]
    state: bytes
    unfinished: bool = False
    keys: tuple[AcceptKey, ...] = ()
    title: str | None = None
    text: str = ""


class Found(msgspec.Struct, frozen=True):
    session: str
    seq: int
    excerpt: str


class Store(Protocol):
    async def create(self, session: str, *, root: str, at: float) -> SessionHead | None:
        """Make an empty session at epoch 0 and seq 0; None if it exists."""
        ...

    async def claim(self, session: str) -> SessionHead | None:
        """Raise the epoch of a root session by one and give the head; None if there is none."""
        ...

    async def head(self, session: str) -> SessionHead | None: ...

    async def commit(self, commit: Commit) -> None: ...

    async def events(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> list[Recorded]: ...

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None: ...

    async def sessions(self, *, limit: int = 100, before: float | None = None) -> list[SessionHead]:
        """The newest first, by `updated_at`; only those older than `before`, if given."""
        ...

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        """Ids of root sessions whose last commit said so, in the order of ids."""
        ...

    async def search(self, words: str, *, limit: int = 50) -> list[Found]: ...

    async def delete(self, session: str) -> bool:
        """Remove a session and the sessions under it; False if there is none."""
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy while others read and write."""
        ...

    async def aclose(self) -> None: ...
