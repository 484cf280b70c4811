"""An unreadable session affects no other, and every answer names it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import anyio
import msgspec
import pytest

from bargein.models.script import Say
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import WITHIN_S, Json, Stage, serving

pytestmark = pytest.mark.anyio

DATABASE = "sessions.sqlite3"
NEWER = msgspec.msgpack.encode({"type": "dream_dreamt", "turn": "t1"})


async def spoil_event(
    store: SqliteStore, session: str, body: bytes = b"\xc1", seq: int = 2
) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TRIGGER IF EXISTS events_are_not_changed")
        connection.execute(
            """UPDATE events SET body = ? WHERE seq = ?
            AND session = (SELECT number FROM sessions WHERE id = ?)""",
            (body, seq, session),
        )

    await store._writer.run(work)


async def spoil_state(store: SqliteStore, session: str) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET state = x'c1' WHERE id = ?", (session,))

    await store._writer.run(work)


async def talked(stage: Stage, token: str) -> str:
    """The id of a session with a turn in it."""
    session = await stage.new_session(token=token)
    await say(stage, session, token)
    return session.rpartition("/")[2]


async def say(stage: Stage, session: str, token: str) -> Json:
    sent = await stage.post(f"{session}/messages", {"text": "Hi"}, token=token)
    return await stage.get(f"{session}/turns/{sent['turn']}?wait=true", token=token)


@pytest.mark.parametrize("body", [b"\xc1", NEWER], ids=["damaged", "newer"])
async def test_an_unreadable_session_is_refused_and_nobody_else_notices(
    tmp_path: Path, body: bytes
) -> None:
    home = tmp_path
    store = await SqliteStore.open(home / DATABASE)
    async with serving([[Say("hello")]] * 2, home, store=store, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        spoilt = await talked(stage, alice)
        fine = await talked(stage, bob)
    await spoil_event(store, spoilt, body)
    # A new start: nothing of it is in memory.
    async with serving([[Say("again")]] * 99, home, store=store, start_token=None) as stage:
        with anyio.fail_after(WITHIN_S):
            await refused_by_name(stage, spoilt, alice)
            for number in range(30):
                status, _ = await stage.ask(
                    "POST", f"/v1/sessions/{spoilt}/messages", {"text": "still?"}, token=alice
                )
                assert status == 422
                made = await stage.new_session(token=bob)
                turn = await say(stage, made, bob)
                assert (turn["outcome"], turn["text"]) == ("completed", "again"), number
            assert (await say(stage, f"/v1/sessions/{fine}", bob))["outcome"] == "completed"
            await named_in_lists(stage, spoilt, alice)
            # It can be got rid of.
            status, _ = await stage.ask("DELETE", f"/v1/sessions/{spoilt}", token=alice)
            assert status == 204
    await store.aclose()


async def refused_by_name(stage: Stage, session: str, token: str) -> None:
    """Everything that must read it answers with `unreadable`, and names the session and the
    event."""
    path = f"/v1/sessions/{session}"
    for method, where, body in (
        ("POST", f"{path}/messages", {"text": "are you there?"}),
        ("POST", f"{path}/messages", {"text": "are you there?", "mode": "queue"}),
        ("GET", f"{path}/transcript", None),
        ("GET", f"{path}/turns/t1", None),
    ):
        status, answer = await stage.ask(method, where, body, token=token)
        assert (status, answer["code"]) == (422, "unreadable"), (where, answer)
        assert f"event 2 of session {session!r} cannot be read" in answer["detail"]
    async with stage.events(f"{path}/events?after=0", token=token) as reader:
        last = (await reader.rest())[-1]
        assert (last["type"], last["reason"]) == ("cut_off", "unreadable")
        assert session in last["detail"]


async def named_in_lists(stage: Stage, session: str, token: str) -> None:
    listed = (await stage.get("/v1/sessions", token=token))["sessions"]
    (view,) = [each for each in listed if each["id"] == session]
    assert "cannot be read" in view["unreadable"]
    assert all(each["unreadable"] == "" for each in listed if each["id"] != session)


async def test_a_state_that_cannot_be_read_is_named_and_the_list_is_whole(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / DATABASE)
    async with serving([[Say("hello")]] * 3, tmp_path, store=store, start_token=None) as stage:
        alice = await stage.person("alice", admin=True)
        spoilt, fine = await talked(stage, alice), await talked(stage, alice)
    await spoil_state(store, spoilt)
    async with serving([[Say("again")]] * 9, tmp_path, store=store, start_token=None) as stage:
        await named_in_lists(stage, spoilt, alice)
        for method, where, body in (
            ("POST", "messages", {"text": "there?"}),
            ("POST", "interrupt", {}),
            ("GET", "inbox", None),
            ("POST", "continue", {}),
        ):
            status, answer = await stage.ask(
                method, f"/v1/sessions/{spoilt}/{where}", body, token=alice
            )
            assert (status, answer["code"]) == (422, "unreadable"), (where, answer)
        status, answer = await stage.ask("GET", f"/v1/sessions/{spoilt}", token=alice)
        assert status == 200
        assert spoilt in answer["session"]["unreadable"]
        assert (await stage.get("/v1/search?words=hello", token=alice))["found"]
        assert (await stage.get("/v1/admin/running", token=alice))["sessions"] == []
        assert (await say(stage, f"/v1/sessions/{fine}", alice))["outcome"] == "completed"
        status, _ = await stage.ask("DELETE", f"/v1/sessions/{spoilt}", token=alice)
        assert status == 204
    await store.aclose()
