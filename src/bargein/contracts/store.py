"""Where sessions are kept. One Protocol, one conformance suite, several stores.

What holds for every store:

- Each `Commit` is all or nothing, and durable when the store says so. It is refused with
  `StaleEpoch` if the root session has been claimed again or deleted since, and with `OutOfOrder` if
  the log does not end where the writer thinks. A refused or failed commit touches no other, also
  when they were written together.
- Epochs only rise, across all sessions of a store and across the deletion of one: `create` and
  `claim` give one that was never given before, and whoever held the session can write no more.
- Writes of one session happen in the order in which they were asked for.
- A write whose caller was cancelled, or was told `StoreFailed`, may or may not have happened. It
  is decided as soon as `head`, `events` or `find_key` of the same session answers: it either shows
  there or never will.
- Nothing that was acknowledged is lost by a full disk, a crash of the program or of the machine.

Errors: `StoreFailed` for the disk, the file or the server (a `WorldError`), with a sentence that
names the file and what to do. After one the store looks afresh: the next operation may succeed.
Text that is not Unicode, a time that is not finite and the like are `ValueError`, before anything
is written.
"""

from collections.abc import Sequence
from typing import Protocol

from bargein.contracts.event import Event, Recorded
from bargein.contracts.value import Value
from bargein.errors import BargeinError, WorldError


class StaleEpoch(BargeinError):
    """Another owner has claimed the session. This one must stop at once and write no more."""


class OutOfOrder(BargeinError):
    """The log of the session does not end where the writer expected."""


class DuplicateKey(BargeinError):
    """A message with this sender and client id was accepted before."""


class StoreFailed(WorldError):
    """The store could not do it. The message names the file and says what to do."""


class SessionUnreadable(StoreFailed):
    """What is stored of this one session cannot be read: it is damaged, or a newer version wrote
    it. Other sessions are not affected. `seq` is the event that cannot be read, 0 if it is the
    session's state."""

    def __init__(self, session: str, what: str, *, seq: int = 0) -> None:
        super().__init__(
            f"{what} of session {session!r} cannot be read: it is damaged, or a newer Bargein "
            "wrote it. Use that version, or restore a backup; other sessions are not affected",
            retryable=False,
        )
        self.session = session
        self.what = what
        self.seq = seq

    def __reduce__(self) -> tuple[object, ...]:
        return _unreadable, (self.session, self.what, self.seq)


def _unreadable(session: str, what: str, seq: int) -> SessionUnreadable:
    return SessionUnreadable(session, what, seq=seq)


class AcceptKey(Value, frozen=True):
    """What makes a second delivery recognisable. Unique by (session, sender, client_id)."""

    sender: str
    client_id: str
    message: str
    body_hash: bytes


class SessionHead(Value, frozen=True):
    """All that is needed to go on with a session without reading its log.

    `epoch` is that of the root session. `updated_at` is the `at` of the last commit.
    """

    id: str
    root: str
    epoch: int
    seq: int
    state: bytes
    title: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0


class Commit(Value, frozen=True):
    """One step of one session's log.

    `expected_seq` is the seq of the last event before these. `state` replaces the head's state.
    `unfinished` marks it as having work to go on with after a restart. `title` replaces the title,
    unless it is None. `text` is added to what `search` looks through, as said by the last of the
    events: there must be one.
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


class Found(Value, frozen=True):
    """A text that has all the words: of which event, and the words with a little around them."""

    session: str
    seq: int
    excerpt: str


class Store(Protocol):
    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        """Make an empty session, owned by whoever makes it: at a new epoch; None if it exists.

        One under another root belongs to the root's owner, who shows the root's `epoch`.
        """
        ...

    async def claim(self, session: str) -> SessionHead | None:
        """Raise the epoch of a root session and give the head; None if there is no such one."""
        ...

    async def head(self, session: str) -> SessionHead | None: ...

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write each of them, in this order: what came of each, None if it is durable. What is
        raised instead is about all of them."""
        ...

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        """In order. With `bytes_max` no more once they take so much, as they are stored; but one
        at least, if there is one."""
        ...

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None: ...

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        """Root sessions, or those under one root; the last updated first.

        A page goes on where the last one ended: `before` is `(updated_at, id)` of its last head.
        """
        ...

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        """Ids of roots that are unfinished or have an unfinished one under them, in order of id."""
        ...

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        """Texts that have all the words, each as the beginning of a word; the newest first.

        Neither case nor accents matter. With `roots`: of these and the sessions under them alone.
        """
        ...

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        """Remove a session and the sessions under it; False if there is none.

        With an `epoch`, only if that is still the root's: `StaleEpoch` otherwise.
        """
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy while others read and write; never over an existing file.

        If the caller is cancelled the half copy is removed.
        """
        ...

    async def aclose(self) -> None:
        """Finish what was asked for, then let go of everything. Bounded; may be called twice.

        Whoever asks for anything afterwards gets `StoreFailed`.
        """
        ...


async def commit_one(store: Store, commit: Commit) -> None:
    """One alone. Durable when this returns; raises why it is not."""
    (error,) = await store.commit([commit])
    if error is not None:
        raise error
