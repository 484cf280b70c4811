"""Copies made while the store is written to, and taken into use again."""

# ruff: noqa: ASYNC240  (that a test looks at files holds nobody up)

from __future__ import annotations

import sqlite3
import threading
from itertools import count
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bargein.cancel import Token
from bargein.contracts.store import StoreFailed, commit_one
from bargein.errors import UserError
from bargein.stores.sqlite import SqliteStore, backup
from bargein.stores.sqlite.backup import restore_backup
from bargein.testing.store_conformance.scene import looked, made, said, step, written
from tests.stores import children

pytestmark = pytest.mark.anyio


async def large(path: Path) -> SqliteStore:
    """A store of several megabytes."""
    store = await SqliteStore.open(path)
    head = await made(store, "large")
    for seq in range(0, 40_000, 4_000):
        events = tuple(said(seq + n) for n in range(4_000))
        await commit_one(store, step(head, *events, expected_seq=seq, text="large"))
    return store


async def test_a_backup_is_of_one_moment_and_ends_though_writing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions are always written in turn, so no copy may have them differ by more than one."""
    monkeypatch.setattr(backup, "SLICE_PAGES", 8)
    store = await large(tmp_path / "store.db")
    first, second = await made(store, "first"), await made(store, "second")
    written_before = written_after = 0
    done = anyio.Event()

    async def write() -> None:
        nonlocal written_after
        for seq in count():
            if done.is_set():
                break
            await commit_one(store, step(first, said(seq), expected_seq=seq))
            await commit_one(store, step(second, said(seq), expected_seq=seq))
            written_after = seq + 1

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        while written_after < 3:  # noqa: ASYNC110  (nobody can tell us)
            await anyio.sleep(0.001)
        written_before = written_after
        with anyio.fail_after(30):
            await store.backup(str(tmp_path / "copy.db"))
        done.set()
    await store.aclose()

    assert written_after > written_before
    restore_backup(tmp_path / "copy.db", tmp_path / "restored.db")
    restored = await SqliteStore.open(tmp_path / "restored.db")
    one, two = await looked(restored, "first"), await looked(restored, "second")
    assert 0 <= one.seq - two.seq <= 1
    assert written_before <= one.seq <= written_after
    assert len(await restored.events("first")) == one.seq
    assert len(await restored.events("large")) == 40_000
    assert len(await restored.search("large")) == 10
    await restored.aclose()


async def test_a_backup_is_one_file_that_can_be_read_from_anywhere(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    head = await written(store, "s", 3)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    await store.backup(str(shelf / "copy.db"))
    await store.aclose()
    assert [path.name for path in shelf.iterdir()] == ["copy.db"]
    with sqlite3.connect(f"{(shelf / 'copy.db').as_uri()}?mode=ro&immutable=1", uri=True) as copy:
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert copy.execute("SELECT seq FROM sessions").fetchone() == (head.seq,)
    copy.close()
    restore_backup(shelf / "copy.db", tmp_path / "restored.db")
    assert [path.name for path in shelf.iterdir()] == ["copy.db"]
    restored = await SqliteStore.open(tmp_path / "restored.db")
    assert await restored.head("s") == head
    await restored.aclose()


async def test_a_commit_between_any_two_slices_does_not_make_it_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await large(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    slices = 0

    def write(token: Token | None) -> None:
        nonlocal slices
        slices += 1
        assert slices < 1_000, "it began anew, again and again"
        other.execute("UPDATE sessions SET title = title || 'x'")

    monkeypatch.setattr(backup, "SLICE_PAGES", 8)
    monkeypatch.setattr(backup, "_check", write)
    await store.backup(str(tmp_path / "copy.db"))
    other.close()
    await store.aclose()
    assert slices > 10
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("SELECT title FROM sessions").fetchone() == ("",)
    copy.close()


async def test_a_cancelled_backup_stops_at_the_next_slice_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await large(tmp_path / "store.db")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    sizes: list[int] = []
    begun = threading.Event()

    def wait_for_the_cancel(token: Token | None) -> None:
        assert token is not None
        sizes.append((shelf / "copy.db.part").stat().st_size)
        begun.set()
        token.wait(40)
        token.check()

    monkeypatch.setattr(backup, "SLICE_PAGES", 8)
    with monkeypatch.context() as patch:
        patch.setattr(backup, "_check", wait_for_the_cancel)
        async with anyio.create_task_group() as group:
            group.start_soon(store.backup, str(shelf / "copy.db"))
            await anyio.to_thread.run_sync(begun.wait)
            group.cancel_scope.cancel()
    assert list(shelf.iterdir()) == []
    await store.backup(str(shelf / "copy.db"))
    assert len(sizes) == 1
    assert sizes[0] < (shelf / "copy.db").stat().st_size / 2
    await store.aclose()


async def test_a_backup_that_has_no_place_says_so(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await written(store, "s", 1)
    with pytest.raises(UserError, match="missing"):
        await store.backup(str(tmp_path / "missing" / "copy.db"))
    with pytest.raises(UserError, match=r"store\.db exists"):
        await store.backup(str(tmp_path / "store.db"))
    await commit_one(store, step(await looked(store, "s"), said(2)))
    await store.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_backup_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    seen = children.run("backup_to_full_disk", tmp_path)
    if "cannot" in seen:
        pytest.skip(str(seen["cannot"]))
    assert "the disk is full" in str(seen["said"])
    assert "copy.db" in str(seen["said"])
    assert seen["left"] == []
    assert seen["goes_on"] is True


async def test_a_restore_overwrites_nothing(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await written(store, "s", 1)
    await store.backup(str(tmp_path / "copy.db"))
    with pytest.raises(UserError, match=r"store\.db(-wal|-shm)? "):
        restore_backup(tmp_path / "copy.db", tmp_path / "store.db")
    await store.aclose()
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(UserError, match=r"store\.db exists"):
        restore_backup(tmp_path / "copy.db", tmp_path / "store.db")
    assert (tmp_path / "store.db").read_bytes() == before
    (tmp_path / "new.db-wal").write_bytes(b"left over")
    with pytest.raises(UserError, match=r"new\.db-wal belongs to an earlier store"):
        restore_backup(tmp_path / "copy.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


async def test_only_a_whole_backup_is_restored(tmp_path: Path) -> None:
    store = await large(tmp_path / "store.db")
    await store.backup(str(tmp_path / "copy.db"))
    await store.aclose()
    body = (tmp_path / "copy.db").read_bytes()
    place = body.index(b"text 20000") // 4096 * 4096
    bad = {
        "empty": b"",
        "text": b"not a backup" * 1_000,
        "cut": body[: len(body) // 2],
        "spoilt": body[:place] + b"\xff" * 4096 + body[place + 4096 :],
    }
    for name, contents in bad.items():
        (tmp_path / name).write_bytes(contents)
        with pytest.raises((UserError, StoreFailed)) as caught:
            restore_backup(tmp_path / name, tmp_path / "restored.db")
        assert str(tmp_path / name) in str(caught.value)
        assert not list(tmp_path.glob("restored.db*"))
    with pytest.raises(UserError, match="there is no backup"):
        restore_backup(tmp_path / "absent", tmp_path / "restored.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    with pytest.raises(UserError, match=r"other\.db is a database of another program"):
        restore_backup(tmp_path / "other.db", tmp_path / "restored.db")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_that_was_killed_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    await written(store, "s", 1)
    (tmp_path / "copy.db").touch()
    (tmp_path / "copy.db.part").write_bytes(b"half")
    with pytest.raises(UserError, match="contains no store"):
        restore_backup(tmp_path / "copy.db", tmp_path / "restored.db")
    await store.backup(str(tmp_path / "copy2.db"))
    await store.aclose()
