"""Operations and streams at one node, for a session that another one has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.contracts.mail import RoadBlocked
from bargein.models.script import Say, Step, Wait
from bargein.session.session import Session
from tests.cluster.nodes import nodes
from tests.cluster.test_one_set_of_users import until_known
from tests.server.stage import WITHIN_S, Stage, serving, type_of
from tests.stores.postgres_kinds import database, sql

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

HOLD: list[Step] = [Say("working"), Wait("hold")]
TALK: list[Step] = [Say("one "), Wait("middle"), Say("two")]


@asynccontextmanager
async def two_nodes(
    tmp_path: Path, *scripts: list[Step]
) -> AsyncIterator[tuple[Stage, Stage, str]]:
    """Two nodes and the token of somebody whom both know."""
    async with (
        database() as address,
        nodes(address, tmp_path, [list(scripts), list(scripts)]) as (one, two),
    ):
        alice = await one.person("alice")
        await until_known(two, alice)
        yield one, two, alice


async def begun(stage: Stage, token: str, text: str = "go") -> tuple[str, str]:
    """A session of this node, and its turn."""
    session = await stage.new_session(token=token)
    sent = await stage.post(f"{session}/messages", {"text": text}, token=token)
    return session, sent["turn"]


async def test_every_operation_reaches_the_owner(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, HOLD) as (one, two, alice):
        session, turn = await begun(one, alice)
        await one.model.gate("hold").reached()
        sent = await two.post(
            f"{session}/messages", {"text": "later", "mode": "queue"}, token=alice
        )
        assert sent["disposition"] == "queued"
        message = sent["message"]
        (entry,) = (await two.get(f"{session}/inbox", token=alice))["messages"]
        assert entry["message"]["id"] == message
        status, _ = await two.ask(
            "PATCH", f"{session}/inbox/{message}", {"text": "changed"}, token=alice
        )
        assert status == 200
        shown = await two.get(session, token=alice)
        assert (shown["session"]["phase"], shown["session"]["waiting"]) == ("running", 1)
        status, answer = await two.ask("POST", f"{session}/pause", token=alice)
        assert status == 200, answer
        assert (await two.ask("POST", f"{session}/resume", token=alice))[0] == 200
        status, answer = await two.ask("POST", f"{session}/calls/nothing/detach", token=alice)
        assert (status, answer["status"]) == (200, "too_late"), answer
        status, answer = await two.ask(
            "POST", f"{session}/questions/nothing/answer", {"text": "yes"}, token=alice
        )
        assert (status, answer["status"]) == (200, "too_late"), answer
        receipt = await two.post(f"{session}/interrupt", token=alice)
        assert (receipt["status"], receipt["target"]) == ("stopped", turn)
        assert receipt["held"] == [message]
        status, _ = await two.ask("DELETE", session, token=alice)
        assert status == 204
        assert (await one.ask("GET", session, token=alice))[0] == 404
        # The node that was asked wrote it down, once.
        one.gateway.audit.flush()
        two.gateway.audit.flush()
        entries = await two.gateway.audit.read(0, 100)
        deleted = [each for each in entries if each.action == "delete_session"]
        assert [each.status for each in deleted] == [204]


async def test_a_message_sent_twice_to_two_nodes_is_taken_once(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, HOLD) as (one, two, alice):
        session, _ = await begun(one, alice)
        body = {"text": "again", "mode": "queue", "client_message_id": "c1"}
        first = await one.post(f"{session}/messages", body, token=alice)
        second = await two.post(f"{session}/messages", body, token=alice)
        assert second["message"] == first["message"]
        assert second["disposition"] == "duplicate"
        key = {"idempotency-key": "k1"}
        body = {"text": "once", "mode": "queue"}
        third = await two.post(f"{session}/messages", body, token=alice, headers=key)
        fourth = await one.post(f"{session}/messages", body, token=alice, headers=key)
        assert third["message"] == fourth["message"]


async def test_where_nodes_cannot_reach_each_other_letters_do(tmp_path: Path) -> None:
    class Blocked:
        async def ask(self, address: str, key: str, body: bytes) -> bytes:
            raise RoadBlocked("cut")

    async with two_nodes(tmp_path, HOLD) as (one, two, alice):
        session, turn = await begun(one, alice)
        assert two.engine.elsewhere is not None
        two.engine.elsewhere.road = Blocked()
        sent = await two.post(
            f"{session}/messages", {"text": "later", "mode": "queue"}, token=alice
        )
        assert sent["disposition"] == "queued"
        receipt = await two.post(f"{session}/interrupt", token=alice)
        assert (receipt["status"], receipt["target"]) == ("stopped", turn)


async def test_a_stream_at_another_node_shows_the_words_as_they_come(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, TALK) as (one, two, alice):
        session, _ = await begun(one, alice)
        await one.model.gate("middle").reached()
        async with two.events(f"{session}/events?after=0", token=alice) as events:
            await events.until("turn_started")
            assert "one " in str(await events.until("answer_so_far"))
            one.model.gate("middle").open()
            settled = await events.until("turn_settled")
        # Each once, in order, with the numbers of the log.
        async with two.events(f"{session}/events?after=0", token=alice) as again:
            seqs = []
            while True:
                event = await again.next()
                if "seq" in event:
                    seqs.append(event["seq"])
                if event.get("seq") == settled["seq"]:
                    break
        assert seqs == list(range(1, settled["seq"] + 1))


async def test_a_stream_goes_on_at_the_next_owner(tmp_path: Path) -> None:
    """The owner leaves; the node with the reader takes over, and the reader notices nothing."""
    async with two_nodes(tmp_path, TALK) as (one, two, alice):
        session, _ = await begun(one, alice)
        await one.model.gate("middle").reached()
        name = session.rpartition("/")[2]
        async with two.events(f"{session}/events?after=0", token=alice) as events:
            await events.until("answer_so_far")
            assert one.engine.elsewhere is not None
            one.model.gate("middle").open()
            first = await events.until("turn_settled")
            await Session(one.engine, name).settled()
            await one.engine.hand_over(name)
            assert name not in one.engine.in_memory
            two.model.gate("middle").open()
            sent = await two.post(f"{session}/messages", {"text": "more"}, token=alice)
            assert sent["disposition"] == "started"
            seen = first["seq"]
            with anyio.fail_after(WITHIN_S):
                while True:
                    event = await events.next()
                    if "seq" not in event:
                        continue
                    assert event["seq"] == seen + 1
                    seen = event["seq"]
                    if type_of(event) == "turn_settled":
                        break
        assert name in two.engine.in_memory


async def test_a_dead_owner_is_answered_for(tmp_path: Path) -> None:
    """A request waits at the owner's node when that is declared dead: the node that was asked
    claims the session, and says what became of the turn."""
    async with (
        database() as address,
        nodes(address, tmp_path, [[HOLD], [[Say("here")]]]) as (one, two),
    ):
        alice = await one.person("alice")
        await until_known(two, alice)
        session, turn = await begun(one, alice)
        await one.model.gate("hold").reached()
        found: list[object] = []

        async def wait_for_it() -> None:
            path = f"{session}/turns/{turn}?wait=true"
            found.append((await two.get(path, token=alice))["outcome"])

        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_it)
            async with sql(address) as connection:
                await connection.execute("UPDATE bargein.nodes SET dead = true WHERE id = 'node0'")
            sent = await two.post(f"{session}/messages", {"text": "go on"}, token=alice)
        # The dying node may still have stored, before the claim, that the turn failed. What the
        # waiting request got is what the log says.
        stored = (await two.get(f"{session}/turns/{turn}", token=alice))["outcome"]
        assert found == [stored]
        assert stored in ("crashed", "failed")
        result = await two.get(f"{session}/turns/{sent['turn']}?wait=true", token=alice)
        assert result["outcome"] == "completed"


async def test_a_node_that_leaves_gives_up_what_rests(tmp_path: Path) -> None:
    """While it drains, because one of its turns goes on."""
    async with two_nodes(tmp_path, HOLD, [Say("second")]) as (one, two, alice):
        resting = await one.new_session(token=alice)
        busy, turn = await begun(one, alice)
        one.gateway.drain()
        # A message for the session that rests goes to the other node; a stop reaches this one.
        two.model.gate("hold").open()
        sent = await two.post(f"{resting}/messages", {"text": "now"}, token=alice)
        assert sent["disposition"] == "started"
        assert resting.rpartition("/")[2] in two.engine.in_memory
        receipt = await two.post(f"{busy}/interrupt", token=alice)
        assert (receipt["status"], receipt["target"]) == ("stopped", turn)


async def test_a_stop_that_is_sent_again_to_another_node_still_stops(tmp_path: Path) -> None:
    """A client whose node went away comes back at another one; its turn goes on at a third place,
    so nothing has started anew."""
    async with two_nodes(tmp_path, HOLD) as (one, two, alice):
        session, turn = await begun(one, alice)
        start = (await one.get("/v1/me", token=alice))["start"]
        receipt = await two.post(f"{session}/interrupt", {"start": start}, token=alice)
        assert (receipt["status"], receipt["target"]) == ("stopped", turn)


async def test_an_admin_stops_everything_at_all_nodes(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, HOLD) as (one, two, alice):
        turns = {(await begun(each, alice))[1]: each for each in (one, two)}
        await one.model.gate("hold").reached()
        await two.model.gate("hold").reached()
        admin = await two.person("root", admin=True)
        stopped = (await two.post("/v1/admin/stop", {}, token=admin))["receipts"]
        assert [each["status"] for each in stopped] == ["stopped"] * 2
        assert {each["target"] for each in stopped} == set(turns)
        async with two.http.get(
            f"{two.url}/metrics", headers={"authorization": f"Bearer {admin}"}
        ) as response:
            assert 'bargein_node_requests{road="http"} 1.0' in await response.text()


async def test_an_admin_sees_the_nodes_and_what_moved(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, HOLD, [Say("second")]) as (one, two, alice):
        assert (await one.ask("GET", "/v1/admin/nodes", token=alice))[0] == 403
        resting = await one.new_session(token=alice)
        await begun(one, alice)
        admin = await two.person("root", admin=True)
        listed = await two.get("/v1/admin/nodes", token=admin)
        assert listed["failover"].startswith("NOT DURABLE: fsync"), "as the tests' server is set"
        found = {each["id"]: each for each in listed["nodes"]}
        assert set(found) == {"node0", "node1"}
        assert (found["node0"]["unfinished"], found["node0"]["here"]) == (1, False)
        assert (found["node1"]["unfinished"], found["node1"]["here"]) == (0, True)
        assert found["node1"]["address"].startswith("http://127.0.0.1:")
        assert 0 < found["node1"]["lease_s"] <= 1.5
        one.gateway.drain()
        await two.post(f"{resting}/messages", {"text": "now"}, token=alice)
        async with one.http.get(
            f"{one.url}/metrics", headers={"authorization": f"Bearer {admin}"}
        ) as response:
            moved = 'bargein_node_sessions_moved{cause="given up"} 1.0'
            assert moved in await response.text()


async def test_a_server_alone_has_no_nodes(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        assert await stage.get("/v1/admin/nodes") == {"nodes": [], "failover": ""}
