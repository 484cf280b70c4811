"""A thousand requests cut at random moments leave no socket, task, thread, timer or token."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from bargein.cancel import SYSTEM_CLOCK, Cancelled, CancelSource, Cause
from bargein.models.errors import ModelError
from bargein.models.retry import RetryPolicy
from bargein.models.retrying import RetryingModel
from bargein.models.watchdog import Timeouts
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer, make_tls, serve_in_thread
from bargein.testing.fault_steps import Body, Head, Stall
from bargein.testing.fault_zoo import choose_by_path
from tests.garbage import what_only_the_collector_frees
from tests.models.harness import HELLO, endpoint, open_sockets, until

pytestmark = pytest.mark.anyio

CANCELS = 1000
TOGETHER = 20
ANIMALS = (
    "ok",
    "429",
    "500",
    "drop",
    "reset",
    "silent-before-headers",
    "silent-after-headers",
    "silent-mid-answer",
    "silent-in-error-body",
    "slow-loris",
    "endless-line",
    "paced",
    "stall",
)


@contextmanager
def but_for_uvloop_in_a_handshake() -> Iterator[None]:
    """uvloop tells its exception handler when a connection dies in a TLS handshake, whatever the
    client; any other word to the handler fails the test."""
    loop = asyncio.get_running_loop()
    told: list[str] = []

    def listen(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        told.append(str(context.get("message")))

    before = loop.get_exception_handler()
    loop.set_exception_handler(listen)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
    # What uvloop itself says, of the bare client as well, when a TLS handshake is cut.
    noise = {"Fatal error on SSL protocol", "Future exception was never retrieved"}
    assert set(told) <= (noise if "uvloop" in type(loop).__module__ else set())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_thousand_random_cancels(tls: bool) -> None:
    chance = random.Random(20260301)
    server_tls, client_tls = make_tls() if tls else (None, None)
    server = FaultServer(choose_by_path, tls=server_tls)
    outcomes: Counter[str] = Counter()

    async def one() -> None:
        target = endpoint(
            f"{server.url}/{chance.choice(ANIMALS)}",
            chance.choice(("openai", "openai-responses", "anthropic")),
            tls=client_tls,
            timeouts=Timeouts(error_body_s=0.02),
        )
        policy = RetryPolicy(attempts_max=3, delay_first_s=0.01)
        source = CancelSource("request")
        ways = ("user", "user in a thread", "caller", "leaving")
        way = chance.choice(ways)
        patience_s = chance.random() ** 2 * 0.04

        async def consume() -> None:
            async with RetryingModel([target], policy=policy).open(HELLO, source.token) as stream:
                async for _ in stream:
                    if way == "leaving" and chance.random() < 0.3:
                        return

        task = asyncio.create_task(consume())
        await asyncio.sleep(patience_s)
        if way == "user":
            source.cancel(Cause.USER_STOP)
        elif way == "user in a thread":
            thread = threading.Thread(target=source.cancel, args=(Cause.USER_STOP,))
            thread.start()
            thread.join()
        else:
            task.cancel()
        try:
            async with asyncio.timeout(30):
                await task
            outcomes["finished"] += 1
        except (Cancelled, asyncio.CancelledError) as cancelled:
            outcomes[type(cancelled).__name__] += 1
        except ModelError:
            outcomes["failed"] += 1

    with serve_in_thread(server), but_for_uvloop_in_a_handshake():
        await one()
        await asyncio.sleep(0.1)
        gc.collect()
        sockets, tasks = open_sockets(), len(asyncio.all_tasks())
        threads, timers = threading.active_count(), SYSTEM_CLOCK.timers_held()
        for _ in range(CANCELS // TOGETHER):
            await asyncio.gather(*(one() for _ in range(TOGETHER)))
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")
        await until(lambda: all(v.gone.is_set() for v in server.visits), "all were seen to go")
        await until(lambda: open_sockets() <= sockets, "no socket is left")
        await until(lambda: threading.active_count() <= threads + 1, "no thread is left")
        # Cancelled timers are swept out now and then; they do not add up.
        await until(lambda: SYSTEM_CLOCK.timers_held() <= timers + 1000, "no timer is left")
    assert outcomes["Cancelled"] > 200
    assert outcomes["CancelledError"] > 200


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_leaving_early_does_not_depend_on_the_other_side(tls: bool) -> None:
    """The server has stopped reading, so it answers no closing handshake and reads no body."""
    server_tls, client_tls = make_tls() if tls else (None, None)
    begin = Body(b"".join(events_of("openai")[:3]))
    server = FaultServer([[Head(), begin, Stall()]], tls=server_tls)
    async with server:
        sockets = open_sockets()
        target = endpoint(server.url, tls=client_tls)
        async with RetryingModel([target]).open(HELLO, CancelSource("request").token) as stream:
            async for _ in stream:
                break
        await server.visits[0].gone.wait_async(30)
        await until(lambda: open_sockets() <= sockets, "no socket is left")


async def test_a_token_keeps_nothing_of_requests_that_ended() -> None:
    turn = CancelSource("turn")
    async with FaultServer(choose_by_path) as server:
        for animal in ("ok", "429", "drop", "ok"):
            model = RetryingModel(
                [endpoint(f"{server.url}/{animal}")], policy=RetryPolicy(attempts_max=1)
            )
            try:
                async with model.open(HELLO, turn.token) as stream:
                    async for _ in stream:
                        pass
            except ModelError:
                pass
    assert turn.token._below == {}
    assert turn.token._hooks == {}


@pytest.mark.parametrize("animal", ["ok", "silent-mid-answer"])
async def test_the_collector_finds_nothing_of_a_request(animal: str) -> None:
    async with FaultServer(choose_by_path) as server:
        model = RetryingModel([endpoint(f"{server.url}/{animal}")])

        async def ask() -> None:
            with CancelSource("turn") as turn:
                async with model.open(HELLO, turn.token) as stream:
                    async for _ in stream:
                        if animal != "ok":
                            turn.cancel(Cause.USER_STOP)

        with suppress(Cancelled):
            await ask()
        # (The socket itself is in a circle of asyncio's own transports.)
        with what_only_the_collector_frees(of="bargein.models.http") as found:
            with suppress(Cancelled):
                await ask()
            await until(lambda: all(v.gone.is_set() for v in server.visits), "all were seen to go")
        assert found == []
