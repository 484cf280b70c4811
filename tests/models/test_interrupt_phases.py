"""Every phase of a request times every way to end it.

The user's cancel, the caller's own cancel and time-out, and the attempt's time-out: what comes out
differs, what is left behind does not. After each: the server saw the client go, nothing more was
asked, no socket, task or timer of the request is left.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import RetryingPart, TextPart
from bargein.models.retrying import RetryingModel
from bargein.models.watchdog import Timeouts
from bargein.net.resolver import Found
from bargein.testing.fault_server import FaultServer, full_listener, serve_in_thread
from bargein.testing.fault_zoo import refusal, whole
from tests.models.harness import HELLO, collect, connections_to, endpoint, open_sockets, until
from tests.models.scenes import MID_CHUNK, SCENES, SILENT_AFTER_HEADERS, Scene

pytestmark = pytest.mark.anyio
# A bound, not a measurement: `./dev bench models` measures.
PROMPT_S = 30.0


@asynccontextmanager
async def staged(phase: str) -> AsyncIterator[Scene]:
    """The scene, and after it the checks that hold whatever ended it."""
    tasks_before = asyncio.all_tasks()
    async with SCENES[phase]() as scene:
        sockets_before = open_sockets()
        yield scene
        own = {task for task in asyncio.all_tasks() - tasks_before if "fault" not in repr(task)}
        assert own == set(), "no task of the request is left"
        assert scene.clock.pending() == [], "no timer of the request is left"
        if scene.server is not None:
            visits = scene.server.visits
            assert len(visits) == scene.visits, "nothing more was asked"
            for visit in visits:
                await visit.gone.wait_async(PROMPT_S)
        await until(lambda: open_sockets() <= sockets_before, "no socket is left", PROMPT_S)


@pytest.mark.parametrize("phase", SCENES)
@pytest.mark.parametrize("thread", ["loop", "other"])
async def test_the_users_cancel(phase: str, thread: str) -> None:
    async with staged(phase) as scene:
        task = asyncio.create_task(scene.consume())
        await scene.ready()
        begun = time.monotonic_ns()
        if thread == "loop":
            scene.source.cancel(Cause.USER_STOP)
        else:
            canceller = threading.Thread(target=scene.source.cancel, args=(Cause.USER_STOP,))
            canceller.start()
            await asyncio.to_thread(canceller.join)
        with pytest.raises(Cancelled) as caught:
            async with asyncio.timeout(PROMPT_S):
                await task
        assert caught.value.token is scene.source.token
        said = [part for part in scene.seen if not isinstance(part, RetryingPart)]
        assert all(isinstance(part, TextPart) for part in said)
        assert len(scene.seen) == scene.parts_before, "no error, no retry, no end came of it"
        if scene.server is not None and scene.server_sees:
            gone = scene.server.visits[0].gone
            await gone.wait_async(PROMPT_S)
            assert begun <= gone.at_ns


@pytest.mark.parametrize("phase", SCENES)
async def test_the_callers_own_cancel(phase: str) -> None:
    async with staged(phase) as scene:
        task = asyncio.create_task(scene.consume())
        await scene.ready()
        task.cancel("by the caller")
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PROMPT_S):
                await task
        assert task.cancelled()
        assert not scene.source.token.cancelled


@pytest.mark.parametrize("phase", SCENES)
async def test_the_callers_own_time_out(phase: str) -> None:
    async with staged(phase) as scene:
        limit = asyncio.timeout(None)

        async def bounded() -> str:
            try:
                async with limit:
                    await scene.consume()
            except TimeoutError:
                return "timed out"
            return "not timed out"

        task = asyncio.create_task(bounded())
        await scene.ready()
        limit.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(PROMPT_S):
            assert await task == "timed out"
        assert task.cancelling() == 0
        assert not scene.source.token.cancelled


@pytest.mark.parametrize("phase", [phase for phase in SCENES if phase != "backing off"])
async def test_the_attempts_time_out_is_retried(phase: str) -> None:
    """And told. Then the user cancels, so that the second attempt ends whatever it is at."""
    async with staged(phase) as scene:
        first = asyncio.Event()

        async def consume() -> None:
            async with scene.model.open(scene.request, scene.source.token) as stream:
                async for part in stream:
                    scene.seen.append(part)
                    if len(scene.seen) >= scene.parts_before:
                        scene.progress.set()
                    if isinstance(part, RetryingPart):
                        first.set()
                        scene.source.cancel(Cause.USER_STOP)

        task = asyncio.create_task(consume())
        await scene.ready()
        scene.clock.advance(max(Timeouts().first_byte_s, Timeouts().between_chunks_s) + 1)
        async with asyncio.timeout(PROMPT_S):
            await first.wait()
        with pytest.raises(Cancelled):
            await task
        told = scene.seen[-1]
        assert isinstance(told, RetryingPart)
        assert ("500" if phase == "in an error body" else "took longer than") in told.cause


@pytest.mark.parametrize("cause", ["user", "caller", "time-out"])
@pytest.mark.parametrize("step", ["retry", "fall-back"])
async def test_between_two_attempts(cause: str, step: str) -> None:
    """The reader knows of the next attempt, which has not begun."""
    failing = refusal(503 if step == "retry" else 401, "no")
    async with FaultServer([failing]) as first, FaultServer([whole("openai")]) as second:
        targets = [endpoint(first.url), endpoint(second.url)]
        source = CancelSource("request")
        limit = asyncio.timeout(None)

        async def consume() -> None:
            async with limit, RetryingModel(targets).open(HELLO, source.token) as stream:
                async for part in stream:
                    assert isinstance(part, RetryingPart)
                    if cause == "user":
                        source.cancel(Cause.USER_STOP)
                    elif cause == "caller":
                        task.cancel()
                    else:
                        limit.reschedule(asyncio.get_running_loop().time())

        task = asyncio.create_task(consume())
        expected = {"user": Cancelled, "caller": asyncio.CancelledError, "time-out": TimeoutError}
        with pytest.raises(expected[cause]):
            await task
        assert len(first.visits) == 1
        assert len(second.visits) <= (1 if cause == "time-out" else 0)


@pytest.mark.parametrize("phase", [phase for phase in SCENES if phase != "backing off"])
async def test_an_attempt_itself_tells_a_cancel_from_a_fault(phase: str) -> None:
    """Below retrying, which asks once more: the contract holds for each attempt alone."""
    async with staged(phase) as scene:
        attempt = scene.model.endpoints[0].attempt(scene.request, scene.source.token)

        async def read() -> None:
            try:
                while True:
                    scene.seen.extend(await attempt.read())
                    scene.progress.set()
            finally:
                await attempt.aclose()

        task = asyncio.create_task(read())
        await scene.ready()
        scene.source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled) as caught:
            async with asyncio.timeout(PROMPT_S):
                await task
        assert caught.value.token is scene.source.token


async def test_only_the_winner_of_a_race_to_connect_is_kept() -> None:
    """The first address hangs; the second answers. Nothing goes on connecting to the first."""
    async with FaultServer([SILENT_AFTER_HEADERS], host="127.0.0.1") as server:
        with full_listener("127.0.0.2", server.port):

            def lookup(*_: object, **__: object) -> Found:
                addresses = ("127.0.0.2", "127.0.0.1")
                kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
                return [(*kind, (address, server.port)) for address in addresses]

            source = CancelSource("request")
            target = endpoint(f"http://model.test:{server.port}", lookup=lookup)
            task = asyncio.create_task(collect(RetryingModel([target]), source.token))
            await (await server.visit(0)).at("hold").wait_async()
            await until(lambda: "SYN_SENT" not in connections_to(server.port), "one is left")
            source.cancel(Cause.USER_STOP)
            with pytest.raises(Cancelled):
                await task


async def test_a_cancel_reaches_the_server_while_our_own_loop_is_busy() -> None:
    """The canceller cuts the socket, not the loop when it gets round to it."""
    server = FaultServer([MID_CHUNK])
    with serve_in_thread(server):
        source = CancelSource("request")

        async def consume() -> None:
            async with RetryingModel([endpoint(server.url)]).open(HELLO, source.token) as stream:
                async for _ in stream:
                    pass

        task = asyncio.create_task(consume())
        visit = await asyncio.to_thread(server.wait_visit, 0)
        await visit.at("hold").wait_async()
        canceller = threading.Thread(target=source.cancel, args=(Cause.USER_STOP,))
        canceller.start()
        # The loop does nothing else until the server has seen it.
        assert visit.gone.wait(PROMPT_S)
        canceller.join()
        with pytest.raises(Cancelled):
            await task
