"""What a principal can make the server hold in memory has a bound; a stop still gets through."""

import base64
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import aiohttp
import anyio
import pytest
from msgspec.structs import replace

from bargein.contracts.store import LeasedStore
from bargein.models.script import Say, Step, Wait
from bargein.server.access import Principal
from bargein.server.anywhere import Anywhere
from bargein.server.app import OPERATIONS
from bargein.server.edge import Edge
from bargein.server.keys import Kept
from bargein.server.limits import FREE_BYTES, ByteBudget, GatewayLimits, Hold
from bargein.server.operation import ApiRequest, Body, Operation, Reply
from bargein.server.problems import MEDIA_TYPE, Problem
from bargein.server.talking import send_message
from bargein.session.elsewhere import Elsewhere
from bargein.session.limits import Limits
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import LIMITS, START_TOKEN, WITHIN_S, Json, serving, type_of
from tests.server.test_attacks_wire import frame, head, raw_socket
from tests.server.test_socket import talking
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
KIB = 1024
TEXT = 1


def small(**more: int) -> Limits:
    return replace(LIMITS, **more)


def test_bytes_held_are_bounded_for_each_and_for_all() -> None:
    budget = ByteBudget(each_max=10_000, all_max=15_000)
    alice, bob = Hold(budget, "alice"), Hold(budget, "bob")
    alice.resize(10_000 + FREE_BYTES)
    with pytest.raises(Problem, match="alice"):
        Hold(budget, "alice").resize(FREE_BYTES + 1)
    Hold(budget, "alice").resize(FREE_BYTES)
    with pytest.raises(Problem, match="the server holds too many bytes"):
        bob.resize(FREE_BYTES + 6_000)
    alice.release()
    bob.resize(FREE_BYTES + 6_000)
    bob.release()
    assert not budget.held


async def test_commands_on_a_socket_count_until_they_are_done(tmp_path: Path) -> None:
    """Incomplete frames count too. Small commands still get through."""
    limits = GatewayLimits(held_bytes_max=300 * KIB)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as one, talking(stage, session) as talker:
            half = frame(TEXT, b"x" * 250 * KIB)[:-1]
            await one.send(half)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: stage.gateway.budget.held["operator"] > 200 * KIB)
            await talker.say("1", "send_message", {"text": "x" * 200 * KIB})
            with anyio.fail_after(WITHIN_S):
                while True:
                    message = await talker.socket.receive()
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        break
            assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            await stage.post(f"{session}/messages", {"text": "go"})
            async with talking(stage, session) as other:
                await other.say("stop", "interrupt")
                with anyio.fail_after(WITHIN_S):
                    assert (await other.reply("stop"))["body"]["status"] == "stopped"
        with anyio.fail_after(WITHIN_S):
            await until(lambda: not stage.gateway.budget.held)


async def test_messages_that_wait_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    engine_limits = small(waiting_bytes_max=100 * KIB)
    async with serving([HOLD], tmp_path, engine_limits=engine_limits) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "go"})
        body = {"text": "x" * 40 * KIB, "mode": "queue"}
        statuses = [(await stage.ask("POST", f"{session}/messages", body))[0] for _ in range(5)]
        assert statuses == [202, 202, 429, 429, 429]
        assert (await stage.post(f"{session}/messages", {"text": "stop"}))["command"] == "stop"
        (first, _) = (await stage.get(f"{session}/inbox"))["messages"]
        await stage.ask("DELETE", f"{session}/inbox/{first['message']['id']}")
        assert (await stage.ask("POST", f"{session}/messages", body))[0] == 202


async def test_what_is_sent_to_one_session_has_a_bound(tmp_path: Path) -> None:
    """The bound holds after a restart too: the count is kept with the session."""
    engine_limits = small(said_bytes_max=100 * KIB)
    session = ""
    for expected in ([202, 202, 400], [400]):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        try:
            script = [[Say("x")]] * 5
            async with serving(script, tmp_path, store=store, engine_limits=engine_limits) as stage:
                session = session or await stage.new_session()
                statuses = []
                for _ in expected:
                    body = {"text": "x" * 40 * KIB, "mode": "queue"}
                    statuses.append((await stage.ask("POST", f"{session}/messages", body))[0])
                assert statuses == expected
                assert (await stage.ask("POST", f"{session}/messages", {"text": "hi"}))[0] == 202
                await until(lambda: not any(s.busy for s in stage.gateway.now().sessions))
        finally:
            await store.aclose()


async def test_messages_in_memory_are_bounded_for_each_principal(tmp_path: Path) -> None:
    """The bound is for all sessions together. Idle sessions leave memory first."""
    limits = GatewayLimits(memory_bytes_max=100 * KIB)
    script = [[Say("x")]] * 6 + [HOLD] * 3
    async with serving(script, tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")

        async def send(token: str) -> tuple[str, int]:
            session = await stage.new_session(token=token)
            body = {"text": "x" * 40 * KIB}
            return session, (await stage.ask("POST", f"{session}/messages", body, token=token))[0]

        for _ in range(6):
            session, status = await send(alice)
            assert status == 202
            turn = f"{session}/turns/t1?wait=true"
            assert (await stage.get(turn, token=alice))["state"] == "settled"
        statuses = [(await send(alice))[1] for _ in range(3)]
        assert statuses == [202, 202, 429]
        assert (await send(bob))[1] == 202


async def test_attachments_are_told_by_reference(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        data = b"\x00\x01" * 50_000
        file = {"name": "a.png", "media_type": "image/png", "data": base64.b64encode(data).decode()}
        reference = {"name": "a.png", "media_type": "image/png", "number": 0, "size": len(data)}
        await stage.post(f"{session}/messages", {"text": "go"})
        body = {"text": "look", "mode": "queue", "attachments": [file]}
        message = (await stage.post(f"{session}/messages", body))["message"]
        (waiting,) = (await stage.get(f"{session}/inbox"))["messages"]
        assert waiting["message"]["attachments"] == [reference]
        found = await stage.get(f"{session}/messages/{message}/attachments/0")
        assert base64.b64decode(found["data"]) == data
        for wrong in ("1", "x", "-1"):
            path = f"{session}/messages/{message}/attachments/{wrong}"
            assert (await stage.ask("GET", path))[0] == 404
        bob = await stage.person("bob")
        path = f"{session}/messages/{message}/attachments/0"
        assert (await stage.ask("GET", path, token=bob))[0] == 404
        told: list[Json] = []
        async with stage.events(f"{session}/events?after=0") as events:
            while len(told) < 2:
                event = await events.next()
                told += [event] if type_of(event) == "message_accepted" else []
        assert told[1]["event"]["message"]["attachments"] == [reference]


async def test_answers_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    """The bound covers everything that a principal has not read, on any number of connections."""
    limits = GatewayLimits(held_bytes_max=10 * 1024 * KIB, answer_bytes_max=2**30)
    async with serving([HOLD] * 9, tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        for _ in range(9):
            await stage.post(f"{session}/messages", {"text": "x" * 900 * KIB})
        await until(lambda: stage.gateway.now().sessions[0].waiting == ())
        host, port = stage.url.removeprefix("http://").split(":")
        with ExitStack() as stack:
            for _ in range(6):
                reader = stack.enter_context(socket.socket())
                # Small, so that what is not read stays with the server.
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect((host, int(port)))
                reader.send(head(stage, f"GET {session}/transcript HTTP/1.1"))
            with anyio.fail_after(WITHIN_S):
                await until(lambda: stage.gateway.budget.held["operator"] > 0)
                path = f"{stage.url}{session}/transcript"
                headers = {"authorization": f"Bearer {START_TOKEN}"}
                async with stage.http.get(path, headers=headers) as response:
                    assert (response.status, response.content_type) == (429, MEDIA_TYPE)
                    assert "content-security-policy" in response.headers
            assert stage.gateway.budget.held["operator"] <= 10 * 1024 * KIB
            assert (await stage.post(f"{session}/interrupt"))["status"] == "stopped"
        with anyio.fail_after(WITHIN_S):
            await until(lambda: not stage.gateway.budget.held)
        assert (await stage.ask("GET", f"{session}/transcript"))[0] == 200


async def test_a_reader_who_does_not_read_holds_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    engine_limits = small(watcher_bytes_max=200 * KIB)
    script: list[list[Step]] = [[Say("x" * 100 * KIB)] * 60, [Say("y")]]
    async with serving(script, tmp_path, engine_limits=engine_limits) as stage:
        session = await stage.new_session()
        actor = await stage.engine.actor(session.rpartition("/")[2])
        watcher = actor.broadcast.watch()
        await stage.post(f"{session}/messages", {"text": "go"})
        turn = await stage.get(f"{session}/turns/t1?wait=true")
        assert turn["state"] == "settled"
        assert sum(len(getattr(each, "text", "")) for each in watcher._events) <= 201 * KIB
        assert not actor.broadcast.is_watched


async def test_a_log_is_read_in_pages_of_bounded_size(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
    try:
        async with serving([[Say("x")]] * 5, tmp_path, store=store) as stage:
            session = await stage.new_session()
            for _ in range(5):
                body = {"text": "x" * 300 * KIB, "mode": "queue"}
                await stage.post(f"{session}/messages", body)
            name = session.rpartition("/")[2]
            handle = await stage.engine.session(name)
            await handle.settled()
            whole = await store.events(name)
            page = await store.events(name, bytes_max=1024 * KIB)
            assert 0 < len(page) < len(whole)
            assert page == whole[: len(page)]
            assert len(await store.events(name, bytes_max=1)) == 1
            assert [each async for each in handle.log()] == whole
            seen: list[int] = []
            async with stage.events(f"{session}/events?after=0") as events:
                while not seen or seen[-1] < whole[-1].seq:
                    event = await events.next()
                    seen += [event["id"]] if "id" in event else []
            assert seen == [each.seq for each in whole]
    finally:
        await store.aclose()


async def test_what_a_node_keeps_to_send_on_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where other nodes may have the session, a body is there twice."""
    seen: list[int] = []

    class Looking(Edge):
        async def perform_here(
            self, operation: Operation, api_request: ApiRequest, body: Body
        ) -> Reply | Kept:
            seen.append(self.gateway.budget.held["ann"])
            return Reply(200)

    async with serving([], tmp_path) as stage:
        gateway = stage.gateway
        asked = ApiRequest(gateway, Principal("ann"), {}, {})
        anywhere = Anywhere(Looking(gateway), OPERATIONS)
        body, nodes = bytearray(100 * KIB), cast(LeasedStore, stage.engine.store)
        await anywhere.perform(send_message, asked, body)
        with monkeypatch.context() as patch:
            patch.setattr(stage.engine, "elsewhere", Elsewhere(stage.engine, nodes))
            await anywhere.perform(send_message, asked, body)
            with pytest.raises(Problem, match="of requests and answers"):
                await anywhere.perform(send_message, asked, bytearray(17 * KIB * KIB))
        assert seen == [0, 100 * KIB - FREE_BYTES]
        assert not gateway.budget.held["ann"]
