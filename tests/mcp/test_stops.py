"""How a stop of a call goes: the server is told, its late answer goes nowhere, others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.contracts.tool import CallResult, CallStatus
from tests.mcp.harness import House, bad_server, house, sdk_server
from tests.process import zoo
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]

# A stop of a server that does not respond takes half a second; the rest is for a busy machine.
BOUND_S = 5.0


async def stopped(
    home: House,
    tool: str,
    arguments: dict[str, object] | None = None,
    *,
    when: Callable[[], Awaitable[None]] | None = None,
    session: str = "s1",
) -> tuple[CallResult, float]:
    """Stops a call when the server has it; returns its result and how long that took."""
    with CancelSource("call") as source:
        began = 0.0

        async def stop() -> None:
            nonlocal began
            if when is not None:
                await when()
            else:
                await until(lambda: _is_sent(home, tool, session))
            began = time.monotonic()
            source.cancel(Cause.USER_STOP)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            result = await home.call(tool, arguments, session=session, source=source)
        return result, time.monotonic() - began


def _is_sent(home: House, tool: str, session: str = "") -> bool:
    server = tool.split("__")[1]
    connection = home.servers.life_of(server).connection
    return connection is not None and any(
        pending.label.startswith(tool) and session in ("", pending.session)
        for pending in connection._open.values()
    )


async def answers(home: House, tool: str = "mcp__bad__echo") -> bool:
    result = await home.call(tool, {"text": "still there"}, session="other")
    return text_of(result) == "still there"


async def test_a_server_that_says_nothing_was_told_and_may_still_be_running() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        result, took_s = await stopped(home, "mcp__bad__hang")
        assert result.status is CallStatus.STOPPED
        assert "was told to stop; the call may still be running" in text_of(result)
        assert result.stop is not None
        assert result.stop.told == "MCP server bad told, may still be running"
        assert not result.stop.confirmed
        assert took_s < BOUND_S
        assert await answers(home)


async def test_a_server_that_answers_the_cancel_confirmed_it() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        result, _ = await stopped(home, "mcp__bad__confirm")
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.told == "MCP server bad confirmed"
        assert result.stop.confirmed
        assert "may have happened in part or in whole" in text_of(result)


async def test_a_result_that_comes_after_the_stop_is_dropped_and_said() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        result, _ = await stopped(home, "mcp__bad__finish_late")
        assert result.status is CallStatus.STOPPED
        assert "ran to its end" in text_of(result)
        assert "finished all the same" not in text_of(result)
        assert await answers(home)


async def test_a_server_that_does_not_respond_is_left_alone_by_default() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        life = home.servers.life_of("bad")
        before = life.connection
        result, took_s = await stopped(home, "mcp__bad__deaf")
        assert took_s < BOUND_S
        assert result.stop is not None
        assert result.stop.told == "MCP server bad told, does not respond, may still be running"
        assert life.connection is before


async def test_a_server_that_does_not_respond_is_restarted_if_it_should_be() -> None:
    mark = zoo.new_mark()
    async with house(bad_server("plain", on_stop="restart"), mark=mark) as home:
        await home.prepare()
        other: list[CallResult] = []

        async def of_another_session() -> None:
            other.append(await home.call("mcp__bad__hang", session="other"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(of_another_session)
            await until(lambda: _is_sent(home, "mcp__bad__hang"))
            result, took_s = await stopped(home, "mcp__bad__deaf")
        assert took_s < BOUND_S
        assert result.stop is not None
        assert "did not respond and was restarted" in result.stop.told
        assert "mcp__bad__hang of session other" in result.stop.told
        assert [each.ended_by for each in result.stop.processes] == ["SIGKILL"]
        assert other[0].status is CallStatus.UNKNOWN
        assert "was restarted" in text_of(other[0])
        assert zoo.alive(mark) == []
        assert await answers(home)


async def test_a_server_that_responds_is_not_restarted() -> None:
    async with house(bad_server("plain", on_stop="restart")) as home:
        await home.prepare()
        before = home.servers.life_of("bad").connection
        await stopped(home, "mcp__bad__hang")
        assert home.servers.life_of("bad").connection is before


async def test_a_call_that_was_not_written_yet_did_not_happen() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(home.call, "mcp__bad__deaf")
            await until(lambda: _is_sent(home, "mcp__bad__deaf"))
            # Fills the pipe to a server that does not read.
            big = {"text": "x" * (1 << 20)}
            tasks.start_soon(lambda: home.call("mcp__bad__echo", big, session="big"))
            await until(lambda: _is_sent(home, "mcp__bad__echo"))
            result, took_s = await stopped(home, "mcp__bad__count")
            assert result.status is CallStatus.NOT_STARTED
            assert took_s < BOUND_S
            result, took_s = await stopped(home, "mcp__bad__count", session="third")
            assert result.status is CallStatus.NOT_STARTED
            for desk in home.desks.values():
                desk.turn.cancel(Cause.USER_STOP)


async def test_a_server_that_reads_nothing_could_not_be_told() -> None:
    async with house(bad_server("plain")) as home:
        await home.prepare()
        async with anyio.create_task_group() as tasks:

            async def fill_its_pipe() -> None:
                await until(lambda: _is_sent(home, "mcp__bad__deaf"))
                big = {"text": "x" * (1 << 20)}
                tasks.start_soon(lambda: home.call("mcp__bad__echo", big, session="big"))
                await until(lambda: _is_sent(home, "mcp__bad__echo"))

            result, took_s = await stopped(home, "mcp__bad__deaf", when=fill_its_pipe)
            assert took_s < BOUND_S
            assert result.stop is not None
            told = "MCP server bad could not be told, reads nothing, may still be running"
            assert result.stop.told == told
            assert "could not be told to stop" in text_of(result)
            home.desks["big"].turn.cancel(Cause.USER_STOP)


async def test_a_stopped_call_is_let_go() -> None:
    """What still comes for it is counted for a while; its arguments are not kept for that."""
    async with house(bad_server("plain")) as home:
        await home.prepare()
        await stopped(home, "mcp__bad__hang", {"text": "x"})
        connection = home.servers.life_of("bad").connection
        assert connection is not None
        (fenced,) = [each for each in connection._fenced.values() if each.label]
        assert fenced.on_progress is None


async def test_a_time_limit_stops_like_the_user_does() -> None:
    async with house(bad_server("plain", tool_timeout_s=0.3)) as home:
        await home.prepare()
        result = await home.call("mcp__bad__hang")
        assert result.status is CallStatus.STOPPED
        assert "its time limit of 0.3 s was reached" in text_of(result)
        assert "was told to stop" in text_of(result)
        assert result.stop is not None
        assert await answers(home)


async def test_the_server_is_not_told_why(tmp_path: object) -> None:
    async with house(sdk_server()) as home:
        await home.prepare()
        note = f"{tmp_path}/note"
        began = lambda: until(lambda: _lines(note) == ["began"])  # noqa: E731
        result, _ = await stopped(home, "mcp__sdk__wait", {"seconds": 60, "note": note}, when=began)
        assert result.status is CallStatus.STOPPED
        # The server's own code was cancelled.
        await until(lambda: _lines(note) == ["began", "stopped"])


@pytest.mark.parametrize("tool", ["wait", "wait_in_thread", "block"])
async def test_tools_of_the_official_sdk(tool: str, tmp_path: object) -> None:
    async with house(sdk_server()) as home:
        await home.prepare()
        note = f"{tmp_path}/note"
        result, took_s = await stopped(
            home,
            f"mcp__sdk__{tool}",
            {"seconds": 1.5, "note": note},
            when=lambda: until(lambda: _lines(note) == ["began"]),
        )
        assert result.status is CallStatus.STOPPED
        assert took_s < BOUND_S
        assert result.stop is not None
        silent = "does not respond" in result.stop.told
        assert silent == (tool == "block")
        # Of a blocking server the next call has to wait; it is not lost.
        assert text_of(await home.call("mcp__sdk__add", {"a": 1, "b": 2})) == "3"


async def test_stops_disturb_no_other_session() -> None:
    """200 stops of one session; each call of the other has its own answer."""
    async with house(bad_server("plain")) as home:
        await home.prepare()
        done = anyio.Event()
        answered = 0

        async def of_the_other() -> None:
            nonlocal answered
            while not done.is_set():
                words = f"words {answered}"
                result = await home.call("mcp__bad__echo", {"text": words}, session="other")
                assert result.status is CallStatus.FINISHED
                assert text_of(result) == words
                answered += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(of_the_other)
            for number in range(200):
                tool = ("hang", "confirm", "finish_late")[number % 3]
                result, _ = await stopped(home, f"mcp__bad__{tool}")
                assert result.status is CallStatus.STOPPED
            done.set()
        assert answered > 50
        connection = home.servers.life_of("bad").connection
        assert connection is not None
        assert not connection._open


async def test_a_stop_during_the_start_kills_the_child() -> None:
    mark = zoo.new_mark()
    async with house(bad_server("silent"), mark=mark) as home:
        turn = home.desk().turn
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(home.prepare)
            await until(lambda: zoo.alive(mark))
            turn.cancel(Cause.USER_STOP)
        await until(lambda: zoo.alive(mark) == [])


async def test_a_start_that_another_session_waits_for_goes_on() -> None:
    async with house(bad_server("silent_probe")) as home:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(home.prepare, "first")
            tasks.start_soon(home.prepare, "second")
            await until(lambda: home.servers.life_of("bad").connection)
            home.desk("first").turn.cancel(Cause.USER_STOP)
        assert await answers(home)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except FileNotFoundError:
        return []


async def test_the_end_of_the_program_ends_a_call_and_its_server() -> None:
    mark = zoo.new_mark()
    task: asyncio.Task[CallResult] | None = None
    async with house(bad_server("ignores_end"), mark=mark) as home:
        await home.prepare()
        task = asyncio.create_task(home.call("mcp__bad__hang"))
        await until(lambda: _is_sent(home, "mcp__bad__hang"))
    assert (await task).status in (CallStatus.UNKNOWN, CallStatus.STOPPED)
    assert zoo.alive(mark) == []
