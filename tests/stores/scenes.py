"""What happens in a process of its own; see `children`. Each scene returns what it saw."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from bargein.contracts.event import TextCheckpoint, TurnSettled
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    OwnedElsewhere,
    SessionHead,
    Store,
    StoreFailed,
    commit_one,
)
from bargein.errors import BargeinError
from bargein.stores.postgres import PostgresStore
from bargein.stores.postgres.lease import LeaseTimes
from bargein.stores.sqlite import SqliteStore
from tests.stores.children import (
    fill_disk,
    heed_permissions,
    limit_file_size,
    make_disk_read_only,
    mount_small_disk,
    no_files_to_open,
    unlimit_file_size,
)

# With a limit on each file, a large text may be partly in the store and partly in its log.
SMALL, LARGE = 2_000, 6_000_000
DISK = 2_000_000

Result = dict[str, object]


def one(head: SessionHead, seq: int, size: int) -> Commit:
    event = TextCheckpoint("turn", "x" * size)
    return Commit(head.id, head.root, head.epoch, seq, 1.0, (event,), str(seq + 1).encode())


async def fill(store: SqliteStore, head: SessionHead) -> tuple[int, StoreFailed]:
    """Write until nothing more can be written; how much was acknowledged, and what was said."""
    for seq in count(head.seq):
        try:
            await commit_one(store, one(head, seq, 20_000))
        except StoreFailed as error:
            return seq, error
    raise AssertionError


async def run_out_of_space(
    directory: Path, take_space: Callable[[], None], give_space: Callable[[], None]
) -> Result:
    """Fill the disk, look, reopen, look again, get space, go on."""
    take_space()
    store = await SqliteStore.open(directory / "store.db")
    head = await store.create("s", root="s", at=0.0)
    other = await store.create("other", root="other", at=0.0)
    assert head is not None
    assert other is not None
    acknowledged, error = await fill(store, head)
    while_full = await store.head("s")
    assert while_full is not None

    await store.aclose()
    store = await SqliteStore.open(directory / "store.db")
    reopened = await store.events("s")
    still, _ = await fill(store, msgspec.structs.replace(head, seq=len(reopened)))

    give_space()
    await commit_one(store, one(head, still, SMALL))
    await commit_one(store, one(other, 0, SMALL))
    events = await store.events("s")
    await store.aclose()
    return {
        "acknowledged": acknowledged,
        "error": str(error),
        "retryable": error.retryable,
        "while_full": while_full.seq,
        "state_while_full": while_full.state.decode(),
        "reopened": len(reopened),
        "in_the_end": len(events),
        "expected_in_the_end": still + 1,
    }


async def full_disk(directory: Path) -> Result:
    disk = directory / "disk"
    disk.mkdir()
    mount_small_disk(disk, DISK)
    filler = disk / "filler"
    filler.write_bytes(b"x" * (DISK // 2))
    return await run_out_of_space(disk, lambda: None, filler.unlink)


async def low_limit(directory: Path) -> Result:
    return await run_out_of_space(directory, lambda: limit_file_size(DISK), unlimit_file_size)


async def twenty(store: SqliteStore) -> list[SessionHead]:
    heads = []
    for number in range(20):
        head = await store.create(f"s{number}", root=f"s{number}", at=0.0)
        assert head is not None
        heads.append(head)
    return heads


async def one_too_large(directory: Path, means: str) -> Result:
    """Many small writes and a large one at the same time, on a disk that has room for the small."""
    if means == "disk":
        directory = directory / "disk"
        directory.mkdir()
        mount_small_disk(directory, DISK)
    else:
        limit_file_size(DISK)
    store = await SqliteStore.open(directory / "store.db")
    heads = await twenty(store)
    outcomes: dict[str, str] = {}

    async def write(head: SessionHead) -> None:
        size = LARGE if head.id == "s7" else SMALL
        try:
            await commit_one(store, one(head, 0, size))
            outcomes[head.id] = "saved"
        except StoreFailed:
            outcomes[head.id] = "failed"

    async with anyio.create_task_group() as group:
        for head in heads:
            group.start_soon(write, head)
    found = {}
    for head in heads:
        now = await store.head(head.id)
        assert now is not None
        found[head.id] = "saved" if now.seq else "failed"
    await store.aclose()
    return {"outcomes": outcomes, "found": found}


async def said_when_opening(path: Path) -> str:
    try:
        store = await SqliteStore.open(path, busy_s=0.2)
    except BargeinError as error:
        return f"{type(error).__name__}: {error}"
    await store.aclose()
    return "opened"


async def without_rights(directory: Path, what: str) -> Result:
    """Open a store whose file or directory this user may not write or read."""
    path = directory / "store.db"
    if what != "empty directory":
        store = await SqliteStore.open(path)
        await store.aclose()
    target, mode = {
        "file": (path, 0o400),
        "unreadable": (path, 0o000),
        "directory": (directory, 0o500),
        "empty directory": (directory, 0o500),
    }[what]
    target.chmod(mode)
    heed_permissions()
    said = await said_when_opening(path)
    target.chmod(0o700)
    return {"said": said, "afterwards": await said_when_opening(path)}


async def read_only_disk(directory: Path) -> Result:
    """A disk that became read-only, as after an error of its file system."""
    disk = directory / "disk"
    disk.mkdir()
    mount_small_disk(disk, DISK)
    store = await SqliteStore.open(disk / "store.db")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    await commit_one(store, one(head, 0, SMALL))
    await store.aclose()
    make_disk_read_only(disk)
    return {"said": await said_when_opening(disk / "store.db")}


async def forked(directory: Path) -> Result:
    store = await SqliteStore.open(directory / "store.db")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            await store.head("s")
        except BargeinError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)  # noqa: ASYNC222
    head = await store.create("s", root="s", at=0.0)
    await store.aclose()
    return {"said": said, "parent_goes_on": head is not None}


async def commit_until_killed(directory: Path, sessions: str, address: str = "") -> Result:
    """Commit from several tasks and say so on standard output, line by line, for ever. With an
    `address` the store is that PostgreSQL, and a dead node's sessions are claimed when its lease is
    over.

    Every commit writes three events, a key and a state, which must all be there or none.
    """
    store: Store
    if address:
        store = await PostgresStore.open(address, lease=LeaseTimes(0.1, 1.0, 0.7))
    else:
        store = await SqliteStore.open(directory / "store.db")
    out = sys.stdout.fileno()

    async def take(name: str) -> SessionHead | None:
        while True:
            try:
                return await store.claim(name) or await store.create(name, root=name, at=0.0)
            except OwnedElsewhere:
                await anyio.sleep(0.05)

    async def work(name: str) -> None:
        head = await take(name)
        assert head is not None
        for seq in count(head.seq, 3):
            number = seq // 3
            commit = Commit(
                session=name,
                root=name,
                epoch=head.epoch,
                expected_seq=seq,
                at=float(number),
                events=tuple(TextCheckpoint(f"{number}", "x" * 700 * part) for part in range(3)),
                state=str(number).encode(),
                unfinished=True,
                keys=(AcceptKey("ann", str(number), "m", b""),),
                text=f"number {number}",
            )
            await commit_one(store, commit)
            os.write(out, f"{name} {seq + 3}\n".encode())

    async with anyio.create_task_group() as group:
        for number in range(int(sessions)):
            group.start_soon(work, f"s{number}")
    raise AssertionError


async def exit_while_writing(directory: Path) -> Result:
    """Return with writes still under way and nothing closed: the process must end at once."""
    store = await SqliteStore.open(directory / "store.db")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    async with anyio.create_task_group() as group:
        for seq in range(200):
            group.start_soon(commit_one, store, one(head, seq, 20_000))
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    return {"left": True}


async def backup_to_full_disk(directory: Path) -> Result:
    disk = directory / "disk"
    disk.mkdir()
    mount_small_disk(disk, 200_000)
    store = await SqliteStore.open(directory / "store.db")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    await commit_one(store, one(head, 0, LARGE))
    try:
        await store.backup(str(disk / "copy.db"))
        said = "copied"
    except StoreFailed as error:
        said = str(error)
    await commit_one(store, one(head, 1, SMALL))
    await store.aclose()
    return {"said": said, "left": [path.name for path in disk.iterdir()], "goes_on": True}


async def log_at_its_limit(directory: Path) -> Result:
    """The log may grow no more, but the file has room for all that is in it."""
    limit_file_size(DISK)
    store = await SqliteStore.open(directory / "store.db")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    failures = 0
    for number in range(300):
        state = str(number).encode() * 5_000
        try:
            await commit_one(store, Commit("s", "s", head.epoch, 0, 1.0, (), state))
        except StoreFailed:
            failures += 1
    await store.aclose()
    return {"failures": failures}


async def no_more_files(directory: Path) -> Result:
    """Many large writes at the same time, where no file but the store's own can be opened."""
    store = await SqliteStore.open(directory / "store.db")
    heads = await twenty(store)
    with no_files_to_open():
        outcomes = await store.commit([one(head, 0, LARGE) for head in heads])
    await store.aclose()
    return {"failures": [str(outcome) for outcome in outcomes if outcome is not None]}


async def stop_without_space(directory: Path, means: str) -> Result:
    """A turn is stopped when its end does not fit on the disk; then the program starts anew, first
    while that is still so."""
    from bargein import Agent, Engine
    from bargein.models.script import Say, Wait
    from bargein.models.scripted import ScriptedModel
    from bargein.session.session import Session

    home = directory / "disk"
    home.mkdir()
    filler = home / "filler"
    if means != "limit":
        mount_small_disk(home, 4_000_000)

    def take_space() -> None:
        if means == "limit":
            limit_file_size(1_000_000)
        else:
            fill_disk(filler)

    def give_space() -> None:
        if means == "limit":
            unlimit_file_size()
        else:
            filler.unlink()

    def engine(*steps: Say | Wait) -> tuple[Engine, ScriptedModel]:
        model = ScriptedModel([steps])
        return Engine(Agent(model=model), home=home), model

    async def outcome_of(session: Session) -> list[str]:
        events = [each.event for each in await session.events()]
        return [str(each.outcome) for each in events if isinstance(each, TurnSettled)]

    seen: Result = {}
    size = 3_000_000 if means == "limit" else 1_500_000
    first, model = engine(Say("x" * size), Wait("hold"))
    async with first:
        session = await first.session("s")
        await session.send("1")
        await model.gate("hold").reached()
        take_space()
        receipt = await session.interrupt()
        seen["told"] = [str(receipt.status), receipt.stored]
        try:
            await session.send("2")
        except BargeinError as error:
            seen["refused"] = str(error)
    try:
        async with engine()[0] as while_full:
            await while_full.session("s")
    except BargeinError as error:
        seen["start_refused"] = str(error)
    give_space()
    second, _ = engine(Say("again"))
    async with second:
        session = await second.session("s")
        await session.settled()
        seen["read"] = await outcome_of(session)
        seen["result"] = str(await (await session.send("3")).result())[:9]
    return seen


async def whole_backup_to_full_disk(directory: Path) -> Result:
    """`bargein backup` to a full disk, and `bargein restore` into one."""
    from bargein.cli.backups import DATABASES
    from bargein.runtime.backup import restore, write_backup
    from bargein.server.gateway_db import FILE, GatewayDb

    home, disk = directory / "home", directory / "disk"
    home.mkdir()
    disk.mkdir()
    mount_small_disk(disk, 400_000)
    store = await SqliteStore.open(home / "sessions.sqlite3")
    head = await store.create("s", root="s", at=0.0)
    assert head is not None
    await commit_one(store, one(head, 0, LARGE))
    await store.aclose()
    GatewayDb.open(home / FILE).close()
    write_backup(home, directory / "good", lambda name, done, total: None, DATABASES)
    (disk / "filler").write_bytes(b"x" * 100_000)
    seen: Result = {}
    try:
        write_backup(home, disk / "copy", lambda name, done, total: None, DATABASES)
    except StoreFailed as error:
        seen["backup"] = str(error)
    seen["left_by_backup"] = sorted(path.name for path in disk.iterdir())
    new = disk / "home"
    try:
        restore(directory / "good", new, lambda name, done, total: None, DATABASES, replace=False)
    except StoreFailed as error:
        seen["restore"] = str(error)
    seen["left_by_restore"] = sorted(path.name for path in new.iterdir())
    return seen
