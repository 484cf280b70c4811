"""Idempotency-Key: sent twice, done once, answered the same."""

from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import HistoryImported
from bargein.models.script import Say, Step, Wait
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import Json, Stage, serving
from tests.session.world import HeldStore

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def keyed(stage: Stage, path: str, body: object, key: str) -> tuple[int, Json]:
    return await stage.ask("POST", path, body, headers={"idempotency-key": key})


async def test_a_session_is_made_once_also_across_a_restart(tmp_path: Path) -> None:
    made = set()
    for _ in range(2):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        async with serving([], tmp_path, store=store) as stage:
            for _ in range(3):
                status, answer = await keyed(stage, "/v1/sessions", {"title": "a"}, "k")
                assert status == 201
                made.add(answer["session"]["id"])
            status, answer = await keyed(stage, "/v1/sessions", {"title": "b"}, "k")
            assert (status, answer["code"]) == (409, "id_reused")
            assert len((await stage.get("/v1/sessions"))["sessions"]) == 1
        await store.aclose()
    assert len(made) == 1


async def test_a_message_is_taken_once_by_key_or_by_its_own_id(tmp_path: Path) -> None:
    async with serving([[Say("x")], [Say("y")]], tmp_path) as stage:
        session = await stage.new_session()
        path = f"{session}/messages"
        status, first = await keyed(stage, path, {"text": "a"}, "k1")
        assert status == 202
        status, again = await keyed(stage, path, {"text": "a"}, "k1")
        assert (status, again["disposition"]) == (200, "duplicate")
        assert again["message"] == first["message"]
        body = {"text": "a", "client_message_id": "k1"}
        assert (await stage.post(path, body))["message"] == first["message"]
        status, answer = await keyed(stage, path, {"text": "other"}, "k1")
        assert (status, answer["code"]) == (409, "id_reused")


async def test_many_at_once_with_one_key_have_one_effect(tmp_path: Path) -> None:
    async with serving([HOLD, HOLD], tmp_path) as stage:
        session = await stage.new_session()
        answers: list[Json] = []

        async def send() -> None:
            answers.append((await keyed(stage, f"{session}/messages", {"text": "a"}, "k"))[1])

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(send)
        assert len({each["message"] for each in answers}) == 1
        await stage.model.gate("hold").reached()

        receipts: list[Json] = []

        async def stop() -> None:
            receipts.append((await keyed(stage, f"{session}/interrupt", {}, "s"))[1])

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(stop)
        assert len(receipts) == 30
        assert all(each == receipts[0] for each in receipts)
        assert receipts[0]["status"] == "stopped"


async def test_a_stop_that_is_sent_again_does_not_stop_the_next_turn(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("b"), Wait("second"), Say("c")]], tmp_path) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "a"})
        await stage.model.gate("hold").reached()
        _, first = await keyed(stage, f"{session}/interrupt", {}, "s")
        await stage.post(f"{session}/messages", {"text": "b"})
        await stage.model.gate("second").reached()
        _, again = await keyed(stage, f"{session}/interrupt", {}, "s")
        assert again == first
        assert (await stage.get(session))["session"]["phase"] == "running"
        status, answer = await keyed(stage, f"{session}/interrupt", {"scope": "session"}, "s")
        assert (status, answer["code"]) == (409, "id_reused")
        other = await stage.new_session()
        status, answer = await keyed(stage, f"{other}/interrupt", {}, "s")
        assert (status, answer["code"]) == (409, "id_reused")


async def test_a_key_belongs_to_its_principal(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        made = set()
        for name in ("alice", "bob"):
            token = await stage.person(name)
            headers = {"idempotency-key": "k"}
            answer = await stage.post("/v1/sessions", {}, token=token, headers=headers)
            made.add(answer["session"]["id"])
        assert len(made) == 2


async def test_a_spoken_stop_with_a_key_is_obeyed_once(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("b"), Wait("second"), Say("c")]], tmp_path) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "a"})
        await stage.model.gate("hold").reached()
        _, first = await keyed(stage, f"{session}/messages", {"text": "stop"}, "s")
        assert first["receipt"]["status"] == "stopped"
        await stage.post(f"{session}/messages", {"text": "b"})
        await stage.model.gate("second").reached()
        _, again = await keyed(stage, f"{session}/messages", {"text": "stop"}, "s")
        assert again == first
        assert (await stage.get(session))["session"]["phase"] == "running"


async def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        for key in ("", "x" * 201):
            status, answer = await keyed(stage, "/v1/sessions", {}, key)
            assert (status, answer["code"]) == (400, "bad_request")


async def test_a_fork_is_made_once_of_the_session_that_was_named(tmp_path: Path) -> None:
    async with serving([[Say("x")], [Say("y")]], tmp_path) as stage:
        one, other = await stage.new_session(), await stage.new_session()
        for session in (one, other):
            sent = await stage.post(f"{session}/messages", {"text": f"of {session}"})
            await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        forks: dict[str, str] = {}
        for session in (one, other):
            for _ in range(2):
                status, answer = await keyed(stage, f"{session}/fork", {}, f"k {session}")
                assert status == 201
                forks.setdefault(answer["session"]["id"], session)
        assert len(forks) == 2
        for fork, session in forks.items():
            assert session in str(await stage.get(f"/v1/sessions/{fork}/transcript"))
        status, answer = await keyed(stage, f"{other}/fork", {}, f"k {one}")
        assert (status, answer["code"]) == (409, "id_reused")


async def test_a_fork_that_was_cut_off_is_finished_when_it_is_asked_for_again(
    tmp_path: Path,
) -> None:
    store = HeldStore()
    async with serving([[Say("x")]], tmp_path, store=store) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "hello"})
        await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        store.fail_next(HistoryImported)
        status, _ = await keyed(stage, f"{session}/fork", {}, "k")
        assert status == 503
        status, answer = await keyed(stage, f"{session}/fork", {}, "k")
        assert status == 201
        fork = answer["session"]["id"]
        assert "hello" in str(await stage.get(f"/v1/sessions/{fork}/transcript"))
