"""The Protocol of a store, which keeps sessions; and of a reserve, for when the store fails.

`bargein.testing.store_conformance` checks all of this. What holds for every store:

- Each `Commit` is all or nothing, and durable when the store says so. The store refuses it with
  `StaleEpoch` if the root session was claimed again or deleted since, and with `OutOfOrder` if the
  log does not end where the writer expects. A refused or failed commit does not affect the others
  written together with it.
- The writes of one session happen in the order in which they were asked for.
- A write whose caller was cancelled or got `StoreFailed` may or may not have happened. The next
  answer of `head`, `events` or `find_key` for that session settles it: the write shows there, or it
  never will.
- A full disk, or a crash of the program or of the machine, loses no acknowledged write.

Who may write:

- A store is opened for one owner: a process, or a node of a cluster. A root session belongs to the
  owner that made or last claimed it. Sessions under it belong to the same owner.
- `claim` takes a session that is free, that belongs to this owner already, or whose owner is dead.
  Otherwise it raises `OwnedElsewhere` with the owner and its address.
- The store knows which owners are dead, each kind of store by its own means. SQLite: one process
  owns the data directory by a lock that dies with it, so every other owner is dead. A store that
  several nodes share declares a node dead if it does not renew its lease. An owner that was
  declared dead can neither make nor claim sessions; it comes back under a new name.
- Being declared dead does not stop an owner from writing. The epoch does: `create` and `claim` draw
  one that was never given before, across all sessions of the store and across deletions, and every
  write shows the epoch of its root.

Errors: a fault of the disk, the file or the server raises `StoreFailed` (a `WorldError`). Its
message names the file and what to do. The next operation tries again and may succeed. Text that is
not Unicode, a time that is not finite and the like raise `ValueError` before anything is written.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from bargein.contracts.event import Event, Recorded
from bargein.contracts.mail import Mail
from bargein.contracts.receipt import Receipt
from bargein.contracts.size import size_of_event
from bargein.contracts.value import Value
from bargein.errors import BargeinError, WorldError


class StaleEpoch(BargeinError):
    """The session was claimed again or deleted. This writer must stop at once."""


class OwnedElsewhere(BargeinError):
    """The session belongs to another owner that is alive. `address` is where to reach that owner,
    "" if the store does not know."""

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
    """The store could not do what was asked. The message names the file and what to do."""


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
    """Identifies a message that is delivered twice. Unique by (session, sender, client_id)."""

    sender: str
    client_id: str
    message: str
    body_hash: bytes


class SessionHead(Value, frozen=True):
    """Everything needed to continue a session without reading its log.

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
    `unfinished`: the session has work to continue after a restart. `title` replaces the title,
    unless it is None. `search` finds `text` as part of the last of the events, so a commit with a
    text must have an event.
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


LARGE_BYTES = 64 * 1024


def is_large(commit: Commit) -> bool:
    """Whether a commit writes so much that smaller commits of other sessions should not wait for
    it. Its writer passes it to the store in a call of its own, and a store may write others
    first."""
    return sum(map(size_of_event, commit.events)) > LARGE_BYTES


class Found(Value, frozen=True):
    """A text that contains all the words: its event, and an excerpt around them."""

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

        Only the owner of a root can make a session under it, by passing the root's `epoch`.
        """
        ...

    async def claim(self, session: str) -> SessionHead | None:
        """Take a root session for this owner, at a new epoch. Returns None if it does not exist.

        Raises `OwnedElsewhere` if the session belongs to another owner that is alive.
        """
        ...

    async def head(self, session: str) -> SessionHead | None: ...

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Write the commits in this order. Returns for each None if it is durable, else its error.
        If this raises, the error concerns all of them."""
        ...

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        """Return the log in order, from the event after `after`. With `bytes_max` the list ends
        once the stored events take that many bytes, but has at least one event."""
        ...

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None: ...

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        """Return the root sessions, or those under one root; the last updated first.

        For the next page, `before` is `(updated_at, id)` of the last head.
        """
        ...

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        """Return the sorted ids of roots that are unfinished or have an unfinished session under
        them."""
        ...

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        """Find texts in which all the words occur, each as the beginning of a word; newest first.

        Case and accents do not matter. `roots` limits the search to these roots and the sessions
        under them.
        """
        ...

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        """Remove a session and the sessions under it. Returns False if it does not exist.

        Raises `StaleEpoch` if `epoch` is given and the root has a newer one.
        """
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy while others read and write. Never overwrites a file.

        A cancel leaves no partial copy behind.
        """
        ...

    async def aclose(self) -> None:
        """Finish the operations that were asked for, then release everything. Bounded; may be
        called twice.

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

    def on_deadline(self, call: Callable[[float], object]) -> None:
        """Have `call` called with the time of CLOCK_BOOTTIME by which nothing of this owner may run
        any more, now and in any thread whenever it moves: for those who can act while this process
        is frozen."""
        ...

    async def orphans(self) -> list[str]:
        """Wait until there are unfinished root sessions that no living owner has. Returns some."""
        ...

    async def release(self, session: str, *, epoch: int) -> bool:
        """Give up a root session, at a raised epoch: it is free. Returns False if it was not this
        owner's at this epoch any more."""
        ...


class NodeRow(Value, frozen=True):
    """A node as the shared database knows it. `lease_s` is how long its lease still lasts, by the
    database's clock; `unfinished` counts the sessions that it has work with."""

    id: str
    address: str
    version: str
    dead: bool
    lease_s: float
    joined_at: float
    unfinished: int


@runtime_checkable
class ClusterStore(Protocol):
    """A store through which nodes find each other."""

    @property
    def server_host(self) -> str:
        """The host of the database; "" for one on this machine."""
        ...

    async def cluster_secret(self) -> str:
        """The secret that all nodes share. Made by the first one that asks."""
        ...

    async def announce(self, address: str) -> None:
        """Tell the others where this node is, from now on and under each of its names."""
        ...

    async def nodes(self) -> list[NodeRow]:
        """Returns all nodes, the living first."""
        ...

    async def replication(self) -> str:
        """Says in a few words what a failover of the database can lose."""
        ...


async def commit_one(store: Store, commit: Commit) -> None:
    """Write one commit. It is durable when this returns; raises its error otherwise."""
    (error,) = await store.commit([commit])
    if error is not None:
        raise error


class UnstoredStop(Value, frozen=True):
    """A turn that was stopped and whose end the store could not write. `created_at` is that of the
    session: a session that was deleted and made anew under the same name is a different one."""

    session: str
    created_at: float
    turn: str
    receipt: Receipt


class Reserve(Protocol):
    """Keeps a few stops where a full disk cannot prevent it. The next start then settles those
    turns as stopped, not as crashed. A hint beside the log, never a replacement: losing it loses no
    message."""

    def keep(self, stop: UnstoredStop) -> bool:
        """Write the stop down. Returns False if there is no room or the disk refuses. May block."""
        ...

    def find(self, session: str, created_at: float, turn: str) -> UnstoredStop | None: ...

    def forget(self, session: str) -> None:
        """Drop the session's stop, because the log now has the end of the turn. May block."""
        ...
