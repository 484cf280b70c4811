"""The WebSocket: the same events, and commands with replies, at the same time."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import pytest

from bargein.models.script import Say, Step, Wait
from bargein.server.access import Principal, revoke_token
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.problems import Problem
from bargein.server.tickets import VALID_S, WAITING_MAX, Tickets
from tests.server.stage import START_TOKEN, WITHIN_S, Json, Stage, serving, type_of

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


class Talker:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.events: list[Json] = []
        self.replies: dict[str, Json] = {}

    async def say(self, command_id: str, do: str, body: object = None, **more: object) -> None:
        command = {"id": command_id, "do": do, "body": body or {}, **more}
        await self.socket.send_str(msgspec.json.encode(command).decode())

    async def reply(self, command_id: str) -> Json:
        while command_id not in self.replies:
            await self.next()
        return self.replies[command_id]

    async def until(self, kind: str) -> Json:
        """Waits for the next event of this kind. What keeps the connection alive is no progress."""
        with anyio.fail_after(WITHIN_S):
            while True:
                event = await self.next()
                if event.get("type") != "reply" and type_of(event) == kind:
                    return event

    async def seen(self, kind: str) -> Json:
        """Returns the first event of this kind, which may have come before a reply."""
        came = (each for each in self.events if type_of(each) == kind)
        return next(came, None) or await self.until(kind)

    async def next(self) -> Json:
        message = await self.socket.receive(timeout=WITHIN_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        event = msgspec.json.decode(message.data, type=Json)
        if event.get("type") == "reply":
            self.replies[event["id"]] = event
        else:
            self.events.append(event)
        return event


@asynccontextmanager
async def talking(
    stage: Stage, session: str, *, after: int | None = None, token: str = START_TOKEN
) -> AsyncIterator[Talker]:
    address = stage.url.replace("http", "ws") + f"{session}/socket"
    address += f"?after={after}" if after is not None else ""
    headers = {"authorization": f"Bearer {token}"}
    async with stage.http.ws_connect(address, headers=headers) as socket:
        yield Talker(socket)


async def test_commands_and_events_share_a_socket(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session, after=0) as talker:
            await talker.say("1", "send_message", {"text": "count"})
            sent = await talker.reply("1")
            assert (sent["status"], sent["body"]["disposition"]) == (202, "started")
            await talker.until("text_delta")
            await talker.say("2", "interrupt", {"expected_turn_id": sent["body"]["turn"]})
            stopped = await talker.reply("2")
            assert (stopped["status"], stopped["body"]["status"]) == (200, "stopped")
            if not any(type_of(each) == "turn_settled" for each in talker.events):
                await talker.until("turn_settled")
            told = [each["seq"] for each in talker.events if "seq" in each]
            assert told == list(range(1, told[-1] + 1))


async def test_a_command_that_waits_for_a_receipt_holds_no_other_up(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            await talker.say("1", "send_message", {"text": "count"})
            sent = await talker.reply("1")
            query = {"wait": "true"}
            await talker.say("2", "get_turn", params={"turn": sent["body"]["turn"]}, query=query)
            await talker.say("3", "get_inbox")
            assert (await talker.reply("3"))["body"]["messages"] == []
            assert "2" not in talker.replies
            await talker.say("4", "interrupt")
            assert (await talker.reply("2"))["body"]["outcome"] == "stopped"


async def test_messages_are_handed_over_in_their_order(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            for number in range(50):
                body = {"text": f"{number}", "mode": "queue", "client_message_id": f"c{number}"}
                await talker.say(f"{number}", "send_message", body)
            ids = [(await talker.reply(f"{number}"))["body"]["message"] for number in range(50)]
        assert ids == [f"m{number + 1}" for number in range(50)]


async def test_what_is_wrong_is_told_and_the_socket_stays_open(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            for number, (text, code) in enumerate(
                [
                    ("not json", "bad_json"),
                    ("[]", "bad_request"),
                    ('{"id": "x"}', "bad_request"),
                    ('{"id": "x", "do": "fly"}', "bad_request"),
                    ('{"id": "x", "do": "send_message", "body": {"text": 5}}', "bad_request"),
                    ('{"id": "x", "do": "send_message", "body": {}}', "bad_request"),
                    ('{"id": "x", "do": "get_turn"}', "bad_request"),
                    ('{"id": "x", "do": "get_inbox", "query": {"limit": "3"}}', "bad_request"),
                    ('{"id": "x", "do": "get_turn", "params": {"turn": "t9"}}', "not_found"),
                    (
                        '{"id": "x", "do": "change_message", "params": {"message": "m9"}}',
                        "not_found",
                    ),
                ]
            ):
                await talker.socket.send_str(text)
                reply = await talker.next()
                assert (reply["type"], reply["body"]["code"]) == ("reply", code), (number, reply)
            await talker.say("mode", "send_message", {"text": "x", "mode": "dance"})
            told = (await talker.reply("mode"))["body"]["detail"]
            assert "say steer, interrupt, queue, rollback or reject" in told
            await talker.say("ok", "get_session")
            assert (await talker.reply("ok"))["status"] == 200


async def test_a_command_that_cannot_be_read_is_answered_by_its_id_if_that_can(
    tmp_path: Path,
) -> None:
    commands = {
        '{"id": "a"}': "a",
        '{"id": "b", "do": "send_message", "text": "hi"}': "b",
        '{"id": "c", "do": "get_turn", "params": {"turn": 1}}': "c",
        '{"id": 5, "do": "get_inbox"}': "",
        '{"id": "", "do": "get_inbox"}': "",
        '{"id": "d"': "",
    }
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            for text, command_id in commands.items():
                await talker.socket.send_str(text)
                reply = await talker.next()
                assert (reply["id"], reply["status"]) == (command_id, 400), text


async def test_a_frame_that_is_not_text_closes_the_socket(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            await talker.socket.send_bytes(b"\xff\x00")
            message = await talker.socket.receive(timeout=WITHIN_S)
            assert message.type is aiohttp.WSMsgType.CLOSE


async def test_a_socket_of_anothers_session_is_not_found(tmp_path: Path) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        for token, status in ((bob, 404), ("wrong", 401)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with talking(stage, session, token=token):
                    pass
            assert refused.value.status == status


async def test_a_socket_that_is_cut_off_is_told_why_and_where(tmp_path: Path) -> None:
    async with serving([[Say("x")]], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session, after=0) as talker:
            await talker.say("1", "send_message", {"text": "x"})
            settled = await talker.until("turn_settled")
            stage.gateway.cut_streams()
            off = await talker.until("cut_off")
            assert (off["reason"], off["after"]) == ("shutting_down", settled["seq"])
            message = await talker.socket.receive(timeout=WITHIN_S)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)


async def test_a_socket_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            await talker.say("1", "send_message", {"text": "x"})
            await talker.reply("1")
        stage.model.gate("hold").open()
        turn = await stage.get(f"{session}/turns/t1?wait=true")
        assert turn["outcome"] == "completed"


def offered(ticket: str) -> tuple[str, str]:
    """What a page offers in the handshake."""
    return ("bargein.v1", f"bargein.ticket.{ticket}")


async def refused_with(stage: Stage, session: str, ticket: str) -> int:
    address = stage.url.replace("http", "ws") + f"{session}/socket"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await stage.http.ws_connect(address, protocols=offered(ticket))
    return refused.value.status


async def test_a_page_opens_a_socket_by_a_ticket_once(tmp_path: Path) -> None:
    async with serving([[Say("Hello.")]], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        other = await stage.new_session(token=alice)
        made = await stage.post(f"{session}/ticket", token=alice)
        address = stage.url.replace("http", "ws") + f"{session}/socket?after=0"
        protocols = offered(made["ticket"])
        async with stage.http.ws_connect(address, protocols=protocols) as socket:
            assert socket.protocol == "bargein.v1"
            talker = Talker(socket)
            await talker.say("1", "send_message", {"text": "x"})
            assert (await talker.reply("1"))["status"] == 202
            await talker.until("turn_settled")
        assert await refused_with(stage, session, made["ticket"]) == 401
        for_other = (await stage.post(f"{other}/ticket", token=alice))["ticket"]
        assert await refused_with(stage, session, for_other) == 401
        assert await refused_with(stage, other, for_other) == 401, "a wrong use is a use"
        last = (await stage.post(f"{session}/ticket", token=alice))["ticket"]
        assert await revoke_token(stage.gateway.db, alice.split("_")[1])
        assert await refused_with(stage, session, last) == 401


async def test_a_socket_opened_by_a_ticket_is_its_principals(tmp_path: Path) -> None:
    """The connection counts as the principal's, not as a stranger's, whose bounds are tighter."""
    async with serving([[Say("Read.")]], tmp_path, start_token=None) as stage:
        alice = await stage.person("alice")
        session = await stage.new_session(token=alice)
        ticket = (await stage.post(f"{session}/ticket", token=alice))["ticket"]
        address = stage.url.replace("http", "ws") + f"{session}/socket"
        # On a connection of its own, as browsers do it: no token was ever shown on that.
        async with (
            aiohttp.ClientSession() as browser,
            browser.ws_connect(address, protocols=offered(ticket)) as socket,
        ):
            talker = Talker(socket)
            await talker.say("1", "send_message", {"text": "x" * 200_000})
            assert (await talker.reply("1"))["status"] == 202


async def test_who_may_not_watch_is_given_no_ticket_and_is_told_why(tmp_path: Path) -> None:
    """A page cannot read why a handshake was refused."""
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        root = await stage.person("root", admin=True)
        session = await stage.new_session(token=alice)
        status, _ = await stage.ask("POST", f"{session}/ticket", token=bob)
        assert status == 404
        status, answer = await stage.ask("POST", f"{session}/ticket", {"after": 99}, token=alice)
        assert (status, "Begin again" in answer["detail"]) == (400, True)
        looking = await stage.person("alice", read_only=True)
        ticket = (await stage.post(f"{session}/ticket", token=looking))["ticket"]
        address = stage.url.replace("http", "ws") + f"{session}/socket"
        async with stage.http.ws_connect(address, protocols=offered(ticket)) as socket:
            talker = Talker(socket)
            await talker.say("1", "send_message", {"text": "x"})
            assert (await talker.reply("1"))["status"] == 403
        entries = (await stage.get("/v1/admin/audit", token=root))["entries"]
        assert "make_ticket" not in {each["action"] for each in entries}


async def test_a_ping_is_answered_with_the_time(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as talker:
            before = time.time()
            await talker.say("1", "ping")
            pong = await talker.reply("1")
            assert pong["status"] == 200
            assert before <= pong["body"]["at"] <= time.time()


async def test_tickets_expire_and_only_so_many_wait(tmp_path: Path) -> None:
    now = 0.0
    db = GatewayDb.open(tmp_path / FILE)
    tickets = Tickets(db, lambda: now)
    alice, bob = Principal("alice"), Principal("bob")
    of_bob = await tickets.give(bob, "s")
    first, *others = [await tickets.give(alice, "s") for _ in range(WAITING_MAX + 1)]
    with pytest.raises(Problem, match="expired"):
        await tickets.take(first, "s")
    assert await tickets.take(others[0], "s") == alice
    assert await tickets.take(of_bob, "s") == bob
    now = VALID_S
    with pytest.raises(Problem, match="expired"):
        await tickets.take(others[-1], "s")
    await tickets.give(bob, "s")
    assert len(db._tickets) == 1, "expired tickets are not kept"
    db.close()


async def test_a_large_event_comes_whole_also_where_it_is_not_ascii(tmp_path: Path) -> None:
    words = "ein Satz mit Umlauten: äöü, und 日本語 🎉. " * 20_000
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with talking(stage, session) as first, talking(stage, session) as second:
            await stage.post(f"{session}/messages", {"text": words})
            for talker in (first, second):
                event = await talker.until("message_accepted")
                assert event["event"]["message"]["content"][0]["text"] == words


async def test_tickets_may_be_asked_for_at_the_same_time(tmp_path: Path) -> None:
    class Slow(GatewayDb):
        async def take_ticket(self, digest: bytes, now: float) -> bytes | None:
            await anyio.lowlevel.checkpoint()
            return await super().take_ticket(digest, now)

    db = Slow.open(tmp_path / FILE)
    tickets, alice = Tickets(db, lambda: 0.0), Principal("alice")
    for _ in range(WAITING_MAX):
        await tickets.give(alice, "s")
    given: list[str] = []

    async def give() -> None:
        given.append(await tickets.give(alice, "s"))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(give)
    assert len(db._tickets) == WAITING_MAX
    for ticket in given:
        assert await tickets.take(ticket, "s") == alice
    db.close()
