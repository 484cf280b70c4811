"""The OpenAI-compatible routes do not bypass the other routes' refusals, deletions and audit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import pytest

from bargein.contracts.event import TurnSettled
from bargein.contracts.model import Text, ToolMessage
from bargein.contracts.store import StoreFailed
from bargein.models.script import Call, Say, Step, Wait
from bargein.server.access import revoke_token
from bargein.server.app import OPERATIONS
from bargein.server.limits import GatewayLimits
from bargein.server.openapi import document
from bargein.stores.memory import MemoryStore
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import START_TOKEN, WITHIN_S, Json, Stage, serving
from tests.server.test_openai import until_nothing_is_kept
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
ASK: Json = {"messages": [{"role": "user", "content": "Hello"}]}
TALK: Json = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


@asynccontextmanager
async def streaming(stage: Stage, body: Json, token: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with stage.http.post(
        stage.url + CHAT,
        json={**body, "stream": True},
        headers={"authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as response:
        assert response.status == 200, await response.text()
        yield response


def waiting(stage: Stage) -> int:
    return sum(len(state.waiting) for state in stage.gateway.now().sessions)


async def audited(stage: Stage, count: int, token: str) -> list[Json]:
    """The audit log, once it has so many entries beside those of the tokens that were made."""
    entries: list[Json] = []
    with anyio.fail_after(WITHIN_S):
        while len(entries) < count:
            await anyio.lowlevel.checkpoint()
            told = (await stage.get("/v1/admin/audit", token=token))["entries"]
            entries = [each for each in told if each["action"] != "add_token"]
    return entries


def asked(stage: Stage, place: int = 0) -> tuple[str, list[str]]:
    """The instructions and the words of a request to the model."""
    request = stage.model.requests[place]
    words = [
        part.text
        for message in request.messages
        if not isinstance(message, ToolMessage)
        for part in message.content
        if isinstance(part, Text)
    ]
    return request.system, words


async def test_sessions_and_streams_are_bounded_here_too(tmp_path: Path) -> None:
    limits = GatewayLimits(sessions_max=2, streams_max=1)
    async with serving([HOLD] * 9, tmp_path, limits=limits, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        named = {**ASK, "metadata": {"session": session.rpartition("/")[2]}}
        async with streaming(stage, named, alice):
            status, _ = await stage.ask("GET", f"{session}/events", token=alice)
            assert status == 429
            status, _ = await stage.ask("POST", CHAT, {**named, "stream": True}, token=alice)
            assert status == 429
        begun = {"input": "x", "background": True}
        assert (await stage.ask("POST", RESPONSES, begun, token=alice))[0] == 200
        for path, body in ((RESPONSES, begun), (CHAT, ASK)):
            status, answer = await stage.ask("POST", path, body, token=alice)
            assert (status, answer["error"]["code"]) == (429, "too_many"), path


async def test_one_that_is_refused_leaves_no_session_behind(tmp_path: Path) -> None:
    limits = GatewayLimits(turns_max=1)
    async with serving([HOLD, [Say("later")]], tmp_path, limits=limits) as stage:
        running = {"input": "x", "background": True}
        begun = await stage.post(RESPONSES, running)
        await stage.model.gate("hold").reached()
        for path, body in ((RESPONSES, running), (CHAT, ASK)):
            assert (await stage.ask("POST", path, body))[0] == 429
        assert len((await stage.get("/v1/sessions"))["sessions"]) == 1
        # With a key the same request comes again, and nothing of it may be missing then.
        assert (await stage.ask("POST", CHAT, TALK, headers=keyed("k")))[0] == 429
        await stage.post(f"{RESPONSES}/{begun['id']}/cancel")
        await stage.post(CHAT, TALK, headers=keyed("k"))
        system, words = asked(stage, 1)
        assert "Be brief." in system
        assert words == ["one", "two", "three"]


async def test_many_at_once_with_one_key_are_one_turn_with_its_history(tmp_path: Path) -> None:
    async with serving([[Say("four")], [Say("twice")]], tmp_path) as stage:
        answers: list[str] = []

        async def ask() -> None:
            answer = await stage.post(CHAT, TALK, headers=keyed("k"))
            answers.append(answer["choices"][0]["message"]["content"])

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
        assert answers == ["four"] * 20
        assert len(stage.model.plays) == 1
        assert asked(stage)[1] == ["one", "two", "three"]


async def test_of_two_who_wait_for_one_answer_the_first_to_go_stops_nothing(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        answers: list[str] = []

        async def ask() -> None:
            answer = await stage.post(CHAT, ASK, headers=keyed("k"))
            answers.append(answer["choices"][0]["message"]["content"])

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            async with anyio.create_task_group() as other:
                other.start_soon(ask)
                await until(lambda: len(stage.gateway.streams) == 2)
                await stage.model.gate("hold").reached()
                other.cancel_scope.cancel()
            await until(lambda: len(stage.gateway.streams) == 1)
            stage.model.gate("hold").open()
        assert answers == ["One two."]


async def test_a_key_whose_session_was_deleted_makes_no_session_of_nobody(tmp_path: Path) -> None:
    async with serving([[Say("a")], [Say("b")]], tmp_path) as stage:
        made = await stage.post(CHAT, ASK, headers=keyed("k"))
        session = made["bargein"]["session"]
        await stage.ask("DELETE", f"/v1/sessions/{session}")
        status, _ = await stage.ask("POST", CHAT, ASK, headers=keyed("k"))
        assert status == 404
        assert await stage.engine.store.sessions() == []
        assert len(stage.model.plays) == 1


async def test_a_revoked_token_ends_a_completion_and_its_turn(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        async with streaming(stage, ASK, alice) as response:
            await stage.model.gate("hold").reached()
            await revoke_token(stage.gateway.db, alice.split("_")[1])
            with anyio.fail_after(WITHIN_S):
                rest = await response.content.read()
        assert b"revoked" in rest
        assert b"[DONE]" not in rest
        await until(lambda: stage.model.plays[0].outcome == "cancelled")


async def test_what_waits_when_the_server_goes_is_taken_back(tmp_path: Path) -> None:
    """Its client got a failure and will ask again, so the message must not run too."""
    limits = GatewayLimits(drain_s=0.2)
    async with serving([HOLD, [Say("never")]], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        name = session.rpartition("/")[2]
        await stage.post(f"{session}/messages", {"text": "first"})
        await stage.model.gate("hold").reached()
        answers: list[tuple[int, Json]] = []

        async def ask() -> None:
            answers.append(await stage.ask("POST", CHAT, {**ASK, "metadata": {"session": name}}))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: waiting(stage) == 1)
            stage.gateway.drain()
            stage.server.leaving.set()
            with anyio.fail_after(WITHIN_S):
                await until(lambda: answers)
        assert (answers[0][0], answers[0][1]["error"]["code"]) == (503, "shutting_down")
        assert waiting(stage) == 0


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_what_is_done_here_is_in_the_audit_log(tmp_path: Path, path: str) -> None:
    async with serving([[Say("a")], HOLD], tmp_path, start_token=None) as stage:
        alice, root = await stage.person("alice"), await stage.person("root", admin=True)
        looking = await stage.person("alice", read_only=True)
        body: Json = ASK if path == CHAT else {"input": "secret words"}
        await stage.post(path, body, token=alice)
        assert (await stage.ask("POST", path, body, token=looking))[0] == 403
        begun = await stage.post(RESPONSES, {"input": "x", "background": True}, token=alice)
        await stage.post(f"{RESPONSES}/{begun['id']}/cancel", token=alice)
        # Of a completion it is told when its session is gone, which is after its answer.
        entries = await audited(stage, 4, root)
        name = "create_chat_completion" if path == CHAT else "create_response"
        told = sorted((each["action"], each["status"]) for each in entries)
        expected = [(name, 200), (name, 403), ("create_response", 200), ("cancel_response", 200)]
        assert told == sorted(expected)
        assert {each["principal"] for each in entries} == {"alice"}
        assert all(each["session"] for each in entries if each["status"] == 200)
        (stop,) = [each for each in entries if each["action"] == "cancel_response"]
        assert stop["session"] == begun["metadata"]["session"]
        assert b"secret words" not in msgspec.json.encode(entries)


async def test_a_client_that_is_gone_is_in_the_audit_log_and_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving([HOLD], tmp_path) as stage:
        host, port = stage.url.removeprefix("http://").split(":")
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {START_TOKEN}\r\n"
        )
        for path in (CHAT, "/v1/sessions"):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(
                    f"{head}content-length: 500\r\n\r\n{{".replace(CHAT, path).encode()
                )
        async with streaming(stage, ASK, START_TOKEN):
            await stage.model.gate("hold").reached()
        await until(lambda: stage.model.plays[0].outcome == "cancelled")

        entries = await audited(stage, 2, START_TOKEN)
        assert [each["status"] for each in entries] == [499, 499]
        assert "failed" not in caplog.text


async def test_a_turn_that_runs_a_tool_stops_with_its_client(tmp_path: Path) -> None:
    began, stopped = anyio.Event(), anyio.Event()

    async def slow() -> str:
        """Takes long."""
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    async with serving([[Call("slow", {})], [Say("never")]], tmp_path, tools=[slow]) as stage:
        async with anyio.create_task_group() as group:
            group.start_soon(stage.ask, "POST", CHAT, ASK)
            await began.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(WITHIN_S):
            await stopped.wait()
        await until_nothing_is_kept(stage)


async def test_no_token_can_do_here_what_it_cannot_do_elsewhere(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("x")]], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        begun = await stage.post(RESPONSES, {"input": "x", "background": True}, token=alice)
        await stage.model.gate("hold").reached()
        name = begun["metadata"]["session"]
        other = (await stage.new_session(token=alice)).rpartition("/")[2]
        bound = await stage.person("alice", sessions=(other,))
        looking = await stage.person("alice", read_only=True)
        child = f"{name}/t1_1_1.1"
        tries: list[tuple[str, Json]] = [
            (CHAT, ASK),
            (CHAT, {**ASK, "metadata": {"session": name}}),
            (CHAT, {**ASK, "metadata": {"session": child}}),
            (RESPONSES, {"input": "x"}),
            (RESPONSES, {"input": "x", "previous_response_id": begun["id"]}),
            (f"{RESPONSES}/{begun['id']}/cancel", {}),
        ]
        for path, body in tries:
            for token in (bound, looking):
                status, _ = await stage.ask("POST", path, body, token=token)
                assert status in (403, 404), (path, body)
        unknown = begun["id"].replace(name, "A" * len(name))
        for path, body in tries[1:3] + tries[4:]:
            status, answer = await stage.ask("POST", path, body, token=bob)
            gone = msgspec.json.encode(body).replace(name.encode(), b"A" * len(name))
            none = await stage.ask("POST", path.replace(begun["id"], unknown), gone, token=bob)
            assert (status, none[0]) == (404, 404)
            said = [each["error"]["message"] for each in (answer, none[1])]
            assert said[0].replace(name, "ID") == said[1].replace("A" * len(name), "ID")
        again = await stage.get(f"{RESPONSES}/{begun['id']}", token=looking)
        assert again["status"] == "in_progress"


async def test_no_turn_of_a_completion_begins_once_the_server_is_to_go(tmp_path: Path) -> None:
    async with serving([[Say("never")]], tmp_path) as stage:
        began = anyio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            content = msgspec.json.encode(ASK)
            yield content[:5]
            await began.wait()
            yield content[5:]

        async def drain() -> None:
            await until(lambda: stage.gateway.budget.count)
            stage.gateway.drain()
            began.set()

        headers = {
            "authorization": f"Bearer {START_TOKEN}",
            "content-type": "application/json",
        }
        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            async with stage.http.post(
                stage.url + CHAT, data=slowly(), headers=headers
            ) as response:
                assert response.status == 503
        assert await stage.engine.store.sessions() == []
        assert not stage.model.plays


def test_the_document_describes_these_routes() -> None:
    paths: dict[str, Any] = msgspec.json.decode(document(OPERATIONS))["paths"]
    for method, path in (
        ("post", CHAT),
        ("post", RESPONSES),
        ("get", f"{RESPONSES}/{{response}}"),
        ("post", f"{RESPONSES}/{{response}}/cancel"),
        ("delete", f"{RESPONSES}/{{response}}"),
        ("get", f"{RESPONSES}/{{response}}/input_items"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{model}"),
    ):
        described = paths[path][method]
        assert described["operationId"], path
        assert "goes away" in described["description"], path
        for status in ("200", "401", "429", "503"):
            assert status in described["responses"], (path, status)
    assert "stops the turn" in paths[CHAT]["post"]["description"]


async def test_a_completion_that_streams_when_the_server_goes_is_told_and_stopped(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(drain_s=0.1)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = (await stage.new_session()).rpartition("/")[2]
        body = {**ASK, "metadata": {"session": session}}
        async with streaming(stage, body, START_TOKEN) as response:
            await stage.model.gate("hold").reached()
            stage.gateway.drain()
            stage.server.leaving.set()
            with anyio.fail_after(WITHIN_S):
                rest = await response.content.read()
        assert b"shutting_down" in rest
        events = [each.event for each in await stage.engine.store.events(session)]
        (settled,) = [event for event in events if isinstance(event, TurnSettled)]
        assert settled.outcome == "stopped"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_key_holds_across_a_restart(tmp_path: Path, path: str) -> None:
    store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
    body: Json = TALK if path == CHAT else {"input": "three"}
    told: list[Json] = []
    played = 0
    try:
        for words in ("first", "second"):
            async with serving([[Say(words)]], tmp_path, store=store) as stage:
                told.append(await stage.post(path, body, headers=keyed("k")))
                status, _ = await stage.ask(
                    "POST", path, {**body, "metadata": {"a": "b"}}, headers=keyed("k")
                )
                assert status == 409
                played += len(stage.model.plays)
    finally:
        await store.aclose()
    assert played == 1
    assert told[0]["id"] == told[1]["id"]
    assert "first" in str(told[1])
    assert "second" not in str(told[1])


async def test_an_answer_that_is_out_stays_as_it_is_when_the_store_fails_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MemoryStore):
        async def delete(self, session: str, *, epoch: int | None = None) -> bool:
            raise StoreFailed("the disk is gone", retryable=True)

    async with serving([[Say("a")]], tmp_path, store=Failing()) as stage:
        answer = await stage.post(CHAT, ASK)
        assert answer["choices"][0]["message"]["content"] == "a"
        (entry,) = await audited(stage, 1, START_TOKEN)
        assert "the disk is gone" in entry["detail"]
    assert "ASGI" not in caplog.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ""}]}),
        (RESPONSES, {"input": ""}),
        (RESPONSES, {"input": "", "background": True}),
        (RESPONSES, {"input": [{"content": []}], "stream": True}),
        *(
            (
                RESPONSES,
                {"input": [{"content": [{"type": "input_image", "image_url": address}]}]},
            )
            for address in (
                "data:image/png\r\nx: y;base64,AAAA",
                "data:image/;base64,AAAA",
                "data:image/png;base64,",
            )
        ),
    ],
)
async def test_what_the_engine_would_refuse_leaves_nothing(
    tmp_path: Path, path: str, body: Json
) -> None:
    async with serving([[Say("never")]], tmp_path) as stage:
        status, answer = await stage.ask("POST", path, body)
        assert (status, answer["error"]["code"]) == (400, "bad_request")
        await until_nothing_is_kept(stage)
        assert not stage.model.plays
