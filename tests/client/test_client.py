"""A session over the wire: every method, against a real server on a real socket."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from bargein.client import (
    Busy,
    Client,
    Disconnected,
    Forbidden,
    IdReused,
    MessageGone,
    NotFound,
    TooLate,
    TurnFailed,
    Unauthenticated,
    connection,
)
from bargein.contracts.event import QuestionAsked, Recorded, TurnOutcome, TurnSettled, TurnStarted
from bargein.contracts.live import AnswerSoFar, TextDelta
from bargein.contracts.message import Attachment, Disposition, QuestionPolicy
from bargein.contracts.model import Image, Text, UserMessage
from bargein.contracts.permission import PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import ReceiptStatus
from bargein.errors import UserError
from bargein.models.script import Call, Fail, Say, Script, Step, Wait
from bargein.server.access import revoke_token
from bargein.session.state import Phase
from bargein.tools import ToolContext
from tests.client.joined import Watcher, check_same, joined, local
from tests.server.stage import WITHIN_S, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


async def test_send_and_result(tmp_path: Path) -> None:
    async with serving([[Say("Hello")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session(title="Greeting")
        sent = await session.send("Hi")
        assert (sent.message, sent.disposition, sent.turn) == ("m1", Disposition.STARTED, "t1")
        result = await sent.result()
        assert (result.outcome, str(result), result.turn) == (TurnOutcome.COMPLETED, "Hello", "t1")
        assert await session.result("m1") == result
        assert len(await session.transcript()) == 2
        assert [each.title for each in await client.sessions()] == ["Greeting"]
        assert (await client.me()).principal == "operator"


async def test_a_stream_yields_its_turn_to_the_end(tmp_path: Path) -> None:
    async with serving([[Say("Hello there")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        events = [event async for event in session.stream("Hi")]
        assert isinstance(events[0], TurnStarted)
        assert isinstance(events[-1], TurnSettled)
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Hello there"


async def test_a_failed_turn_raises_what_it_raises_in_process(tmp_path: Path) -> None:
    script = [[Fail(status=400)], [Fail(status=400)]]
    async with serving(script, tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        with pytest.raises(TurnFailed) as over_the_wire:
            await (await session.send("Hi")).result()
        with pytest.raises(TurnFailed) as in_process:
            await (await local(stage, session).send("Hi")).result()
        assert str(over_the_wire.value) == str(in_process.value)
        with pytest.raises(TurnFailed):
            await session.result("m1")


async def test_a_stop_returns_its_receipt(tmp_path: Path) -> None:
    async with serving([HOLD, HOLD], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        sent = await session.send("Count")
        await stage.model.gate("hold").reached()
        receipt = await session.interrupt()
        assert (receipt.status, receipt.target) == (ReceiptStatus.STOPPED, "t1")
        assert (await sent.result()).outcome is TurnOutcome.STOPPED
        late = await session.interrupt(expected_turn="t1")
        assert late.status is ReceiptStatus.TOO_LATE
        await session.send("Again")
        await stage.model.gate("hold").reached()
        receipt = await session.interrupt_now().receipt()
        assert (receipt.status, receipt.target) == (ReceiptStatus.STOPPED, "t2")


async def test_cancelling_a_call_ends_only_the_waiting(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("x")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        sent = await session.send("Count")
        await stage.model.gate("hold").reached()
        with anyio.move_on_after(0.01):
            await sent.result()
        assert (await session.state()).phase is Phase.RUNNING
        async with anyio.create_task_group() as group:
            group.start_soon(session.interrupt)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        with anyio.fail_after(WITHIN_S):
            assert (await sent.result()).outcome is TurnOutcome.STOPPED


async def test_leaving_a_stream_stops_nothing(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        async with aclosing(session.stream("Count")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        stage.model.gate("hold").open()
        assert (await session.result("m1")).text == "One two"


async def test_one_who_comes_in_the_middle_is_told_how_far_it_is(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.send("Count")
        await stage.model.gate("hold").reached()
        seen = []
        async with aclosing(session.watch()) as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, AnswerSoFar):
                    stage.model.gate("hold").open()
                if isinstance(event, Recorded) and isinstance(event.event, TurnSettled):
                    break
        assert [e.text for e in seen if isinstance(e, AnswerSoFar)] == ["One "]
        assert "".join(e.text for e in seen if isinstance(e, TextDelta)) == "two"


async def test_the_inbox(tmp_path: Path) -> None:
    script: list[list[Step]] = [HOLD, [Say("b")], [Say("a")]]
    async with serving(script, tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.send("Count")
        await stage.model.gate("hold").reached()
        await session.send("a", mode="queue")
        await session.send("b", mode="queue")
        gone = await session.send("c", mode="queue")
        with pytest.raises(Busy):
            await session.send("d", mode="reject")
        await session.withdraw("m4")
        with pytest.raises(TooLate):
            await session.withdraw("m4")
        with pytest.raises(MessageGone):
            await gone.result()
        await session.edit("m2", (Text("edited"), Image("image/png", b"pixels")))
        await session.move("m3", before="m2")
        items = await session.inbox()
        assert [(each.message.id, each.lane) for each in items] == [
            ("m3", "queue"),
            ("m2", "queue"),
        ]
        assert items[1].message.text == "edited"
        assert (await session.interrupt()).held == ("m3", "m2")
        assert (await session.state()).held
        await session.continue_()
        assert (await session.result("m2")).text == "a"
        await session.settled()
        assert await session.inbox() == ()


async def test_pause_a_question_its_answer_and_a_call_in_the_background(tmp_path: Path) -> None:
    async def work(context: ToolContext) -> str:
        """Ask, then work."""
        said = await context.ask("Really?", choices=("yes", "no"))
        await go_on.wait()
        return said

    go_on = anyio.Event()
    script: list[list[Step]] = [[Call("work"), Wait("hold")], [Say("Moved")], [Say("Done")]]
    async with serving(script, tmp_path, tools=[work]) as stage, joined(stage) as client:
        session = await client.new_session()
        sent = await session.send("Work")
        await stage.model.gate("hold").reached()
        await session.pause()
        assert (await session.state()).phase is Phase.PAUSED
        await session.resume()
        stage.model.gate("hold").open()
        async with aclosing(session.watch(after=0)) as events:
            async for event in events:
                if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                    break
        (asked,) = await session.questions()
        assert asked.question.text == "Really?"
        assert await session.answer(asked.id, "1") is None
        with pytest.raises(TooLate):
            await session.answer(asked.id, "1")
        await session.detach(asked.call_id)
        assert (await sent.result()).text == "Moved"
        assert (await session.state()).background == (asked.call_id,)
        go_on.set()
        with anyio.fail_after(WITHIN_S):
            while (await session.state()).background or (await session.state()).busy:
                await session.settled()
        assert (await session.usage()).requests == 3


async def test_files_come_by_reference(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("x")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.send((Text("See"), Image("image/png", b"pixels")))
        await stage.model.gate("hold").reached()
        file = Attachment("notes.txt", "text/plain", b"words")
        await session.send("And this", mode="queue", attachments=[file])
        (item,) = await session.inbox()
        assert item.message.attachments == (Attachment("notes.txt", "text/plain", b""),)
        (waiting,) = (await session.state()).waiting
        assert waiting.message == item.message
        log = await session.events()
        mine = await local(stage, session).events()
        assert [each.seq for each in log] == [each.seq for each in mine]
        assert {type(each.event) for each in log} == {type(each.event) for each in mine}
        assert [each async for each in session.log()] == log
        said = (await session.transcript())[0]
        assert isinstance(said, UserMessage)
        assert said.content[1] == Image("image/png", b"")


async def test_a_message_that_is_too_large_for_the_socket_goes_by_a_request(tmp_path: Path) -> None:
    async with serving([[Say("long")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        words = "word " * 300_000
        sent = await session.send(words, client_id="mine")
        assert (await sent.result()).text == "long"
        again = await session.send(words, client_id="mine")
        assert (again.disposition, again.message) == (Disposition.DUPLICATE, "m1")


async def test_undo_rename_mode_and_end(tmp_path: Path) -> None:
    async with serving([[Say("one")], [Say("two")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        with pytest.raises(TooLate):
            await session.undo()
        await (await session.send("first")).result()
        undone = await session.undo()
        assert (undone.turn, undone.text) == ("t1", "first")
        assert await session.mode() is PermissionMode.ASK
        assert await session.set_mode("plan") is PermissionMode.PLAN
        await session.rename("A name")
        (head,) = await client.sessions()
        assert (head.title, head.last_seq) == ("A name", await session.position())
        assert await session.grants() == ()
        with pytest.raises(TooLate):
            await session.revoke("none")
        with pytest.raises(TooLate):
            await session.dismiss("none")
        assert await session.children() == ()
        await session.end()
        with pytest.raises(TooLate, match="ended"):
            await session.send("late")
        await client.delete(session.id)
        with pytest.raises(NotFound):
            await client.session(session.id)


async def test_a_history_an_output_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    script = [[Say('{"a": 1}')], [Say("plain")]]
    async with serving(script, tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await session.begin_with([UserMessage((Text("before"),))], instructions="Be brief.")
        with pytest.raises(UserError, match="already begun"):
            await session.begin_with([UserMessage((Text("again"),))])
        sent = await session.send("now", output=dict[str, int])
        assert (await sent.result()).output == {"a": 1}
        assert (await (await session.send("words", output=str)).result()).output == "plain"
        with pytest.raises(UserError, match="cannot compress"):
            await session.compact()
        with pytest.raises(UserError, match="empty"):
            await session.send("  ")


async def test_errors_are_those_of_the_engine(tmp_path: Path) -> None:
    async with serving([[Say("x")]], tmp_path) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob", read_only=True)
        async with joined(stage, token=alice) as client:
            session = await client.new_session()
            await session.send("one", client_id="7")
            with pytest.raises(IdReused, match="'7'"):
                await session.send("two", client_id="7")
            with pytest.raises(NotFound):
                await client.session("another")
            with pytest.raises(Forbidden, match="questions"):
                await session.send("three", questions=QuestionPolicy.ALLOW)
        async with joined(stage, token=bob) as client:
            with pytest.raises(Forbidden):
                await client.new_session()
            watching = client.connection.watch(session.id, None)
            with pytest.raises(NotFound):
                await watching.began()
        with pytest.raises(Unauthenticated, match="not known"):
            async with joined(stage, token="wrong"):
                raise AssertionError
        url = stage.url
    with pytest.raises(Disconnected, match="cannot be reached"):
        async with Client(url, token=alice):
            raise AssertionError


async def test_a_token_that_is_revoked_ends_what_is_open(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        token = await stage.person("alice")
        async with joined(stage, token=token) as client:
            session = await client.new_session()
            watch = client.connection.watch(session.id, 0)
            await watch.began()
            await revoke_token(stage.gateway.db, token.split("_")[1])
            with anyio.fail_after(WITHIN_S), pytest.raises(Unauthenticated):
                await watch.next()
            with pytest.raises(Unauthenticated):
                await session.state()


async def test_many_sessions_and_watches_share_one_connection(tmp_path: Path) -> None:
    script = Script([[Say("a few words")]], repeat=True)
    async with serving(script, tmp_path) as stage, joined(stage) as client:
        sessions = [await client.new_session() for _ in range(5)]
        watchers = [Watcher(each) for each in sessions for _ in range(2)]
        async with anyio.create_task_group() as group:
            for watcher in watchers:
                group.start_soon(watcher.run)
            for session in sessions:
                await (await session.send("Hi")).result()
            for watcher in watchers:
                await check_same(stage, watcher)
            group.cancel_scope.cancel()
        assert len(stage.gateway.streams) == 1 + 2 * len(sessions)
        await until(lambda: len(stage.gateway.streams) == 1)


async def test_a_fork_belongs_to_who_made_it(tmp_path: Path) -> None:
    async with serving([[Say("one")], [Say("two")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        await (await session.send("first")).result()
        await (await session.send("second")).result()
        forked = await client.session(await session.fork("t1"))
        assert await forked.transcript() == (await session.transcript())[:2]
        assert {each.id for each in await client.sessions()} == {session.id, forked.id}
        with pytest.raises(UserError, match="no turn t9"):
            await session.fork("t9")


async def test_only_the_door_places_a_session(tmp_path: Path) -> None:
    async with serving([[Say("one")]], tmp_path) as stage, joined(stage) as client:
        session = await client.new_session()
        assert await session.place() is None
        with pytest.raises(Forbidden, match="only a terminal"):
            await session.set_place(SessionPlace(str(tmp_path)))
        with pytest.raises(Forbidden, match="only a terminal"):
            await session.set_staged()
        assert await session.staged() is None
        for asked in (session.accept_staged, session.discard_staged):
            with pytest.raises(UserError, match="not staged"):
                await asked()


@pytest.mark.parametrize("takes_it", [False, True])
async def test_a_server_that_never_answers_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, takes_it: bool
) -> None:
    """Neither one that takes the connection, nor one that takes the WebSocket and says nothing."""

    async def silent(request: web.Request) -> web.StreamResponse:
        if takes_it:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive()
            return socket
        await gone.wait()
        return web.Response()

    monkeypatch.setattr(connection, "ANSWER_S", 0.3)
    gone = anyio.Event()
    app = web.Application()
    app.router.add_get("/v1/socket", silent)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        with anyio.fail_after(WITHIN_S), pytest.raises(Disconnected, match="does not answer"):
            async with Client(url, token="x"):
                raise AssertionError("it is connected")
    finally:
        gone.set()
        await runner.cleanup()
