"""Retention is off unless set, deletes in slices, and never deletes what is in use."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import anyio
import msgspec
import pytest

from bargein.models.script import Say, Wait
from bargein.server.retention import Retention, apply, shorten_audit
from bargein.session import retention as session_retention
from bargein.session.retention import delete_unused, deleting
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import START_TOKEN, WITHIN_S, Script, Stage, serving
from tests.server.test_unreadable import say, spoil_state

pytestmark = pytest.mark.anyio

DATABASE = "sessions.sqlite3"
DAY_S = 86400.0


async def age(store: SqliteStore, session: str, days: float) -> None:
    def work(connection: sqlite3.Connection) -> None:
        at = time.time() - days * DAY_S
        connection.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (at, session))

    await store._writer.run(work)


async def talked(stage: Stage, count: int) -> list[str]:
    found = []
    for _ in range(count):
        session = await stage.new_session()
        await say(stage, session, START_TOKEN)
        found.append(session.rpartition("/")[2])
    return found


async def test_sessions_unused_for_long_are_deleted_and_others_are_not(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / DATABASE)
    script: Script = [*([[Say("hello")]] * 4), [Say("One "), Wait("hold")]]
    async with serving(script, tmp_path, store=store) as stage:
        old, young, spoilt, watched = await talked(stage, 4)
        held = (await stage.new_session()).rpartition("/")[2]
        await stage.post(f"/v1/sessions/{held}/messages", {"text": "1"})
        await stage.model.gate("hold").reached()
        await stage.post(f"/v1/sessions/{held}/messages", {"text": "2", "mode": "queue"})
        await stage.post(f"/v1/sessions/{held}/interrupt", {})
    for session in (old, spoilt, watched, held):
        await age(store, session, 31)
    await age(store, young, 29)
    await spoil_state(store, spoilt)
    async with serving([[Say("again")]] * 9, tmp_path, store=store) as stage:
        await stage.get(f"/v1/sessions/{watched}")
        assert stage.engine.is_at_hand(watched)
        await apply(stage.gateway, Retention())
        assert await store.head(old) is not None
        with anyio.fail_after(WITHIN_S):
            await apply(stage.gateway, Retention(sessions_s=30 * DAY_S))
        kept = {head.id for head in await store.sessions()}
        assert kept == {young, spoilt, watched, held}
        status, _ = await stage.ask("GET", f"/v1/sessions/{old}")
        assert status == 404
        assert stage.gateway.access.owned(old) is None
        assert stage.gateway.access.owned(held) is not None
    await store.aclose()


async def test_one_who_takes_a_session_up_at_that_moment_keeps_it(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / DATABASE)
    async with serving([[Say("hello")]], tmp_path, store=store) as stage:
        (session,) = await talked(stage, 1)
    await age(store, session, 31)
    async with serving([[Say("again")]], tmp_path, store=store) as stage:
        head = await store.head(session)
        assert head is not None
        await say(stage, f"/v1/sessions/{session}", START_TOKEN)
        stale = [msgspec.structs.replace(head)]

        async def delete(_: object) -> bool:
            return await deleting(store)(stale[0])

        await delete_unused(stage.engine, before=time.time() + 1, delete=delete)
        assert await store.head(session) is not None
    await store.aclose()


async def test_a_session_removed_behind_its_back_leaves_no_owner(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / DATABASE)
    async with serving([[Say("hello")]] * 2, tmp_path, store=store) as stage:
        gone, kept = await talked(stage, 2)
    await store.delete(gone)
    async with serving([], tmp_path, store=store) as stage:
        owned = stage.gateway.access.owned(gone)
        assert owned is not None
        owned.created_at -= DAY_S
        await apply(stage.gateway, Retention(sessions_s=30 * DAY_S))
        assert stage.gateway.access.all_owned() == [kept]
    await store.aclose()


async def test_the_audit_log_is_shortened_as_set_and_not_otherwise(tmp_path: Path) -> None:
    async with serving([[Say("hello")]] * 3, tmp_path) as stage:
        gone, kept = await talked(stage, 2)
        stage.gateway.audit.flush()
        db = stage.db

        def backdate(connection: sqlite3.Connection) -> None:
            connection.execute("DROP TRIGGER audit_is_not_changed")
            connection.execute("UPDATE audit SET at = at - ?", (10 * DAY_S,))

        await db.run(backdate)
        await stage.ask("DELETE", f"/v1/sessions/{gone}")
        await stage.gateway.audit.read(0, 1)

        async def sessions_in_audit() -> list[str]:
            return [each.session for each in await stage.gateway.audit.read(0, 1000)]

        before = await sessions_in_audit()
        assert {gone, kept} <= set(before)

        def shorten(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM audit WHERE at > 0")

        with pytest.raises(sqlite3.IntegrityError, match="can only be added to"):
            await db.run(shorten)
        await apply(stage.gateway, Retention(traces_s=5 * DAY_S))
        after = await sessions_in_audit()
        # What is young stays, also of the one that is gone: that it was deleted, and by whom.
        assert after.count(gone) == 1
        assert after.count(kept) == before.count(kept)
        assert await shorten_audit(db, time.time() - 5 * DAY_S) == len(after) - 1
        assert await sessions_in_audit() == [gone]
        with pytest.raises(sqlite3.IntegrityError, match="can only be added to"):
            await db.run(shorten)


async def test_a_send_does_not_wait_for_a_thousand_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two slices there is a pause, and each session is a commit of its own."""
    monkeypatch.setattr(session_retention, "PAUSE_S", 0.0)
    store = await SqliteStore.open(tmp_path / DATABASE)
    for number in range(1000):
        await store.create(f"old {number}", root=f"old {number}", at=1.0)
    async with serving([[Say("hello")]] * 50, tmp_path, store=store) as stage:
        async with anyio.create_task_group() as group:
            group.start_soon(apply, stage.gateway, Retention(sessions_s=DAY_S))
            session = await stage.new_session()
            for _ in range(5):
                await say(stage, session, START_TOKEN)
            left = len(await store.sessions(limit=2000))
            assert left > 1, "the turns came before all was deleted"
        assert [head.id for head in await store.sessions(limit=2000)] == [session.split("/")[-1]]
    await store.aclose()
