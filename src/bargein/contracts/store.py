"""Where sessions are kept: one Protocol for every store.

`bargein.testing.store_conformance` checks all of this. What holds for every store:

- Each `Commit` is all or nothing, and durable when the store says so. The store refuses it with
  `StaleEpoch` if the root session was claimed again or deleted since, and with `OutOfOrder` if the
  log does not end where the writer thinks. A refused or failed commit touches no other, also when
  they were written together.
- Writes of one session happen in the order of asking.
- A write whose caller was cancelled or got `StoreFailed` may or may not have happened. It is
  decided as soon as `head`, `events` or `find_key` of the same session answers: it either shows
  there or never will.
- Nothing that was acknowledged is lost by a full disk, a crash of the program or of the machine.

Who may write:

- A store is opened for one owner: a process, or a node of a cluster. A root session belongs to the
  owner that made or last claimed it. Sessions under it belong to its owner.
- `claim` takes a session that is free, that is this owner's already, or whose owner is dead.
  Otherwise it raises `OwnedElsewhere`, which says who the owner is and where it can be reached.
- The store knows which owners are dead, each kind by its own means. SQLite: one process owns the
  data directory by a lock that dies with it, so every other owner is dead. A store that several
  nodes share: a node that did not renew its lease was declared dead. An owner that was declared
  dead can neither make nor claim sessions; it comes back under a new name.
- Being declared dead does not stop an owner from writing. The epoch does: `create` and `claim` draw
  one that was never given before, across all sessions of the store and across deletions, and every
  write shows the epoch of its root.

Errors: `StoreFailed` for the disk, the file or the server (a `WorldError`), with a sentence that
names the file and what to do. After one the store looks afresh: the next operation may succeed.
Text that is not Unicode, a time that is not finite and the like are a `ValueError`, before anything
is written.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from bargein.contracts.event import Event, Recorded
from bargein.contracts.mail import Mail
from bargein.contracts.value import Value
from bargein.errors import BargeinError, WorldError


class StaleEpoch(BargeinError):
    """The session was claimed again or deleted. This writer must stop at once."""


class OwnedElsewhere(BargeinError):
    """The session belongs to another owner that is alive. `address` says where that owner can be
    reached; "" if the store does not know."""

    def __init__(self, session: str, owner: str, address: str = "") -> None:
        where = f" at {address}" if address else ""
        super().__init__(f"session {session!r} belongs to {owner}{where}")
        self.session = session
        self.owner = owner
        self.address = address

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.session, self.owner, self.address)


class OutOfOrder(BargeinError):
    """The log of the session does not end where the writer expected."""


class DuplicateKey(BargeinError):
    """A message with this sender and client id was accepted before."""


class StoreFailed(WorldError):
    """The store could not do it. The message names the file and says what to do."""


class SessionUnreadable(StoreFailed):
    """This one session cannot be read: it is damaged, or a newer version wrote it. Other sessions
    are not affected. `seq` is the event that cannot be read; 0 for the session's state."""

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
    """Recognises a message that is delivered twice. Unique by (session, sender, client_id)."""

    sender: str
    client_id: str
    message: str
    body_hash: bytes


class SessionHead(Value, frozen=True):
    """All that is needed to go on with a session without reading its log.

    `epoch` and `owner` are those of the root session; a free session has the owner "".
    `updated_at` is the `at` of the last commit.
    """

    id: str
    root: str
    epoch: int
    seq: int
    state: bytes
    title: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    owner: str = ""


class Commit(Value, frozen=True):
    """One step of one session's log.

    `expected_seq` is the seq of the last event before these. `state` replaces the head's state.
    `unfinished` says that the session has work to go on with after a restart. `title` replaces the
    title, unless it is None. `search` finds `text` as said by the last of the events: there must be
    one.
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
    """A text that has all the words: its event, and an excerpt around the words."""

    session: str
    seq: int
    excerpt: str


class Store(Protocol):
    @property
    def owner(self) -> str:
        """The owner that this store was opened for."""
        ...

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        """Make an empty session for this owner, at a new epoch. Returns None if it exists.

        Only the owner of a root can make a session under it, and shows the root's `epoch`.
        """
        ...

    async def claim(self, session: str) -> SessionHead | None:
        """Take a root session for this owner, at a new epoch. Returns None if there is none.

        Raises `OwnedElsewhere` if the session belongs to another owner that is alive.
        """
        ...

    async def head(self, session: str) -> SessionHead | None: ...

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write each of them, in this order. Returns the outcome of each: None if it is durable.
        An exception concerns all of them."""
        ...

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        """The log in order, from the event behind `after`. With `bytes_max` it ends once the events
        take that much as they are stored, but has at least one."""
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

        For the next page, `before` is `(updated_at, id)` of the last head.
        """
        ...

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        """Ids of roots that are unfinished or have an unfinished session under them, sorted."""
        ...

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        """Texts that have all the words, each as the beginning of a word; the newest first.

        Neither case nor accents matter. `roots` limits it to these and the sessions under them.
        """
        ...

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        """Remove a session and the sessions under it. Returns False if there is none.

        Raises `StaleEpoch` if `epoch` is given and is not the root's any more.
        """
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy while others read and write; never over an existing file.

        A cancelled caller leaves no half copy.
        """
        ...

    async def aclose(self) -> None:
        """Finish what was asked for, then let go of everything. Bounded; may be called twice.

        Later operations raise `StoreFailed`.
        """
        ...


@runtime_checkable
class LeasedStore(Protocol):
    """A store that several owners share. Each holds a lease, which it can lose while it runs; then
    it goes on under another name."""

    @property
    def owner(self) -> str: ...

    @property
    def mail(self) -> Mail: ...

    def on_lost(self, call: Callable[[], object]) -> None:
        """Have the store's event loop call `call` when the owner may be declared dead from now on:
        nothing of its sessions may run any longer."""
        ...

    async def orphans(self) -> list[str]:
        """Wait until there are unfinished root sessions that no living owner has. Returns some."""
        ...


async def commit_one(store: Store, commit: Commit) -> None:
    """Write one commit. It is durable when this returns; raises if it is not."""
    (error,) = await store.commit([commit])
    if error is not None:
        raise error
