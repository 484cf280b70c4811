"""The building blocks of the checks: a store to check, a scene around it, and the next commit."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from bargein.contracts.event import Event, TextCheckpoint
from bargein.contracts.store import AcceptKey, Commit, SessionHead, Store, StoreFailed, commit_one

CHECK_S = 50.0

E = TypeVar("E", bound=BaseException)


class StoreUnderTest:
    """Says how to open a store on the data in `directory`, an empty directory at first. Subclass it
    for your store, with `open` and `open_backup`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def open(self, owner: str) -> Store:
        """Open the data for this owner. Called again, it opens the same data again."""
        raise NotImplementedError

    async def open_backup(self, path: Path, owner: str) -> Store:
        """Open a store with the data of a backup that `Store.backup` wrote to `path`."""
        raise NotImplementedError

    async def bury(self, owner: str) -> None:
        """Declare an owner dead, without closing its store. Where opening the data for one owner
        means that all others are dead, there is nothing to do."""

    async def tidy(self, store: Store, *, whole: bool) -> None:
        """Do some or all of the work that the store would do later by itself. It must not change
        any answer; random operations use it."""

    async def damage_event(self, session: str, seq: int, body: bytes) -> None:
        """Replace what the store has of an event, past the store. For `DAMAGE_CHECKS` alone."""
        raise NotImplementedError


class Scene:
    """One check at work: `store` is open for the owner "one"."""

    def __init__(self, stores: StoreUnderTest, store: Store) -> None:
        self.stores = stores
        self.store = store
        self.directory = stores.directory
        self.opened = [store]

    async def open(self, owner: str) -> Store:
        self.opened.append(await self.stores.open(owner))
        return self.opened[-1]

    async def open_backup(self, path: Path) -> Store:
        self.opened.append(await self.stores.open_backup(path, "restorer"))
        return self.opened[-1]

    async def take_over(self, owner: str) -> Store:
        """Open the store for `owner` after "one" was declared dead. `store` stays open, and its
        owner does not know yet."""
        await self.stores.bury("one")
        return await self.open(owner)


class StoreCheck:
    """One rule of the contract. Raises AssertionError if the store breaks it."""

    def __init__(self, function: Callable[[Scene], Awaitable[None]], name: str) -> None:
        self.name = name
        self._function = function

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<StoreCheck {self.name}>"

    async def __call__(self, stores: StoreUnderTest) -> None:
        with anyio.fail_after(CHECK_S):
            scene = Scene(stores, await stores.open("one"))
            try:
                await self._function(scene)
            finally:
                for store in scene.opened:
                    with suppress(StoreFailed):
                        await store.aclose()


class Checks(list[StoreCheck]):
    """Collects functions as checks, under their own names."""

    def of_store(
        self, function: Callable[[Store], Awaitable[None]]
    ) -> Callable[[Store], Awaitable[None]]:
        async def run(scene: Scene) -> None:
            await function(scene.store)

        self.append(StoreCheck(run, getattr(function, "__name__", repr(function))))
        return function

    def of_scene(
        self, function: Callable[[Scene], Awaitable[None]]
    ) -> Callable[[Scene], Awaitable[None]]:
        self.append(StoreCheck(function, getattr(function, "__name__", repr(function))))
        return function


# --- saying what must hold; no `assert`, which `python -O` would leave out


def equal(found: object, wanted: object, about: str = "") -> None:
    if found != wanted:
        raise AssertionError(f"{about + ': ' if about else ''}found {found!r}, not {wanted!r}")


def true(holds: bool, about: str) -> None:
    if not holds:
        raise AssertionError(about)


async def refused(kind: type[E], attempt: Awaitable[object], about: str = "") -> E:
    """Returns the error of this kind that `attempt` must raise."""
    try:
        result = await attempt
    except kind as error:
        return error
    where = f"{about}: " if about else ""
    raise AssertionError(f"{where}{kind.__name__} expected, but it returned {result!r}")


def known(head: SessionHead | None) -> SessionHead:
    if head is None:
        raise AssertionError("the session is not found")
    return head


# --- sessions and commits to check with


def said(number: int) -> Event:
    return TextCheckpoint("turn", f"text {number}")


def step(head: SessionHead, *events: Event, **changes: object) -> Commit:
    """The next commit after `head`."""
    commit = Commit(
        session=head.id,
        root=head.root,
        epoch=head.epoch,
        expected_seq=head.seq,
        at=1.0,
        events=events,
        state=b"",
    )
    return msgspec.structs.replace(commit, **changes)


def key(client_id: str, *, sender: str = "ann", message: str = "m1") -> AcceptKey:
    return AcceptKey(sender, client_id, message, b"hash")


async def made(store: Store, session: str, at: float = 0.0) -> SessionHead:
    return known(await store.create(session, root=session, at=at))


async def made_under(store: Store, root: SessionHead, session: str, at: float = 0.0) -> SessionHead:
    return known(await store.create(session, root=root.id, at=at, epoch=root.epoch))


async def looked(store: Store, session: str) -> SessionHead:
    return known(await store.head(session))


async def claimed(store: Store, session: str) -> SessionHead:
    return known(await store.claim(session))


async def written(store: Store, session: str, count: int) -> SessionHead:
    """A session with `count` events."""
    await commit_one(store, step(await made(store, session), *map(said, range(1, count + 1))))
    return await looked(store, session)


async def log(store: Store, session: str) -> list[Event]:
    return [recorded.event for recorded in await store.events(session)]
