"""A client that floods, dribbles or hoards: its cost is bounded, and others notice nothing."""

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server.audit import Audit
from bargein.server.gateway_db import FILE
from bargein.server.limits import GatewayLimits
from bargein.server.logs import JsonLines
from bargein.server.shapes import MEMBERS_MAX
from bargein.stores.sqlite import SqliteStore
from tests.server.stage import START_TOKEN, WITHIN_S, Json, Script, Stage, serving
from tests.server.test_socket import talking
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def test_what_is_noted_of_a_command_is_short_whatever_it_names(tmp_path: Path) -> None:
    """The audit log cannot be shortened: nobody may fill the disk with it."""
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            await talker.say("1", "interrupt_call", params={"call": "x" * 1_000_000})
            await talker.reply("1")
        entries = (await stage.get("/v1/admin/audit"))["entries"]
        (entry,) = [each for each in entries if each["action"] == "interrupt_call"]
        assert entry["target"].startswith("xxx")
        assert len(entry["target"]) <= 200


async def test_refusals_of_many_addresses_are_noted_at_a_bounded_rate(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        audit = Audit(stage.gateway.db)
        for number in range(5000):
            audit.refused(f"2001:db8::{number:x}", "admission to /", 401, "")
        audit.flush()
        await stage.db.run(lambda connection: None)
        with closing(sqlite3.connect(tmp_path / FILE)) as db:
            (noted,) = db.execute("SELECT count(*) FROM audit").fetchone()
        assert 0 < noted <= 300


async def test_names_that_are_made_up_are_not_remembered_for_ever(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        known = stage.gateway.access._by_principal
        for number in range(3):
            members = {f"{number}-{each}": "read" for each in range(MEMBERS_MAX)}
            assert (await stage.ask("PATCH", session, {"members": members}))[0] == 200
        assert len(known) <= MEMBERS_MAX + 1
        members = {f"x-{each}": "read" for each in range(MEMBERS_MAX + 1)}
        status, answer = await stage.ask("PATCH", session, {"members": members})
        assert (status, answer["code"]) == (400, "bad_request")


async def test_what_a_stop_has_held_counts_when_it_goes_on(tmp_path: Path) -> None:
    limits = GatewayLimits(turns_max=1)
    script: Script = [HOLD, HOLD, [Say("x"), Wait("third")], [Say("y")]]
    async with serving(script, tmp_path, limits=limits) as stage:
        sessions = [await stage.new_session() for _ in range(2)]
        for session in sessions:
            await stage.post(f"{session}/messages", {"text": "a"})
            await stage.post(f"{session}/messages", {"text": "b", "mode": "queue"})
            await stage.post(f"{session}/interrupt")
        await stage.post(f"{sessions[0]}/continue")
        status, answer = await stage.ask("POST", f"{sessions[1]}/continue")
        assert (status, answer["code"]) == (429, "too_many")
        assert (await stage.get(f"{sessions[1]}/inbox"))["held"]


async def test_bodies_that_come_slowly_hold_a_bounded_amount(tmp_path: Path) -> None:
    limits = GatewayLimits(body_bytes_max=50_000, held_bytes_max=100_000)
    async with serving([], tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        told: list[bytes] = []
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(dribble, stage, f"{session}/messages", alice, told)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: told)
            assert b" 429 " in told[0]
            assert (await stage.ask("POST", "/v1/sessions", {"title": "x" * 150}, token=bob))[
                0
            ] == 201
            group.cancel_scope.cancel()
        with anyio.fail_after(WITHIN_S):
            await until(lambda: not stage.gateway.budget.count)
        title = {"title": "x" * 150}
        assert (await stage.ask("POST", "/v1/sessions", title, token=alice))[0] == 201


async def dribble(stage: Stage, path: str, token: str, told: list[bytes]) -> None:
    """All of a body but its last byte."""
    host, port = stage.url.removeprefix("http://").split(":")
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {token}\r\ncontent-length: 50000\r\n\r\n"
    )
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(head.encode() + b"x" * 49_999)
        told.append(await stream.receive())


async def test_whoever_has_no_token_can_send_no_body(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        body = {"title": "x" * 100_000}
        for path in ("/v1/sessions", "/v1/sessions/x/messages", "/v1/chat/completions"):
            status, answer = await stage.ask("POST", path, body, token=None)
            assert status == 401, answer
        assert not stage.gateway.budget.count


def test_a_line_of_the_log_has_no_secret_and_no_end_in_it() -> None:
    record = logging.LogRecord("bargein.server", logging.INFO, "", 0, "get_session", (), None)
    record.session = "bgn_abc123_verysecret\n\x9b31m{" + "x" * 100_000
    record.principal = "alice"
    line = JsonLines().format(record)
    assert "verysecret" not in line
    assert line.isascii()
    assert len(line) < 1000
    assert "\n" not in line
    assert json.loads(line)["principal"] == "alice"


async def test_a_session_that_is_being_deleted_takes_no_message(tmp_path: Path) -> None:
    """No accepted message is lost, and no session comes back without an owner."""
    async with serving([HOLD] * 50, tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        for _ in range(5):
            session = await stage.new_session(token=alice)
            await stage.post(f"{session}/messages", {"text": "a"}, token=alice)
            told: list[int] = []

            async def send(path: str = f"{session}/messages", told: list[int] = told) -> None:
                while not told or told[-1] < 400:
                    told.append((await stage.ask("POST", path, {"text": "b"}, token=alice))[0])

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(send)
                assert (await stage.ask("DELETE", session, token=alice))[0] == 204
            assert set(told) <= {202, 400, 404}
        assert await stage.engine.store.sessions() == []


async def test_a_job_that_fails_in_a_way_nobody_thought_of_ends_no_other(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:

        def broken(connection: sqlite3.Connection) -> None:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        with pytest.raises(UnicodeEncodeError):
            await stage.db.run(broken)
        with anyio.fail_after(WITHIN_S):
            await stage.new_session()


async def test_a_flood_of_one_is_not_felt_by_another(tmp_path: Path) -> None:
    """Hundreds of refused, odd and large requests at once; another's message is answered."""
    limits = GatewayLimits(requests_burst=50, requests_per_s=10)
    async with serving([HOLD], tmp_path, limits=limits, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=bob)
        statuses: list[int] = []

        async def flood() -> None:
            for _ in range(10):
                body = {"text": "x" * 10_000}
                path = "/v1/sessions/none/messages"
                statuses.append((await stage.ask("POST", path, body, token=alice))[0])

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(flood)
            with anyio.fail_after(WITHIN_S):
                sent: Json = await stage.post(f"{session}/messages", {"text": "hi"}, token=bob)
                assert sent["disposition"] == "started"
                receipt = await stage.post(f"{session}/interrupt", {}, token=bob)
        assert receipt["status"] == "stopped"
        assert set(statuses) == {404, 429}
        assert START_TOKEN not in str(receipt)


async def test_a_stop_on_a_socket_is_heard_however_much_waits_there(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            await talker.say("m", "send_message", {"text": "count"})
            turn = (await talker.reply("m"))["body"]["turn"]
            for number in range(60):
                params, query = {"turn": turn}, {"wait": "true"}
                await talker.say(f"{number}", "get_turn", params=params, query=query)
            await talker.say("stop", "interrupt")
            with anyio.fail_after(WITHIN_S):
                assert (await talker.reply("stop"))["body"]["status"] == "stopped"
                replies = [await talker.reply(f"{number}") for number in range(60)]
        statuses = {each["status"] for each in replies}
        assert statuses == {200, 429}


async def test_many_readers_who_leave_anywhere_miss_nothing_across_a_restart(
    tmp_path: Path,
) -> None:
    readers: list[list[int]] = [[] for _ in range(12)]
    session, ends_at = "", 0

    async def read(stage: Stage, seen: list[int], until_seq: int) -> None:
        last = seen[-1] if seen else 0
        if last >= until_seq:
            return
        async with stage.events(f"{session}/events", last_event_id=last) as events:
            while not seen or seen[-1] < until_seq:
                event = await events.next()
                seen += [event["id"]] if "id" in event else []

    for life in range(2):
        store = await SqliteStore.open(tmp_path / "sessions.sqlite3")
        try:
            async with serving([[Say(f"{life}")]] * 3, tmp_path, store=store) as stage:
                session = session or await stage.new_session()
                async with anyio.create_task_group() as group:
                    for place, seen in enumerate(readers):
                        group.start_soon(read, stage, seen, ends_at + 1 + place % 4)
                    for words in ("a", "b", "c"):
                        body = {"text": words, "mode": "queue"}
                        await stage.post(f"{session}/messages", body)
                with anyio.fail_after(WITHIN_S):
                    await until(lambda: all(not s.busy for s in stage.gateway.now().sessions))
                ends_at = (await stage.get(session))["session"]["last_seq"]
                if life:
                    async with anyio.create_task_group() as group:
                        for seen in readers:
                            group.start_soon(read, stage, seen, ends_at)
        finally:
            await store.aclose()
    assert ends_at > 10
    assert readers == [list(range(1, ends_at + 1))] * 12
