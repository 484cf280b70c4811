"""What surrounds a request over HTTP: proxies, threads, loops, signals, lazy imports."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
from types import FrameType

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import Part
from bargein.models.http_endpoint import split_base_url
from bargein.models.retrying import RetryingModel
from bargein.testing.fault_server import FaultServer, serve_in_thread
from bargein.testing.fault_steps import Hang
from bargein.testing.fault_zoo import choose_by_path, whole
from tests.models.harness import (
    HELLO,
    KEY,
    collect,
    endpoint,
    one_try,
    open_sockets,
    text_of,
    until,
)

pytestmark = pytest.mark.anyio


async def test_the_request_that_is_sent() -> None:
    async with FaultServer([whole("openai")]) as server:
        await collect(one_try(endpoint(server.url)))
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["accept"] == "text/event-stream"
        assert request.headers["accept-encoding"] == "identity"
        assert b'"stream":true' in request.body


async def test_a_proxy_is_asked_instead_and_cut_the_same() -> None:
    async with FaultServer([whole("openai"), [Hang()]]) as proxy:
        model = one_try(endpoint("http://model.invalid", proxy=proxy.url))
        assert text_of(await collect(model)) == "Hello, wörld"
        assert proxy.requests[0].path == "http://model.invalid/v1/chat/completions"
        source = CancelSource("request")
        task = asyncio.create_task(collect(model, source.token))
        visit = await proxy.visit(1)
        await visit.requested.wait_async()
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await task
        await visit.gone.wait_async()


async def test_a_tunnel_to_a_model_behind_tls_is_cut_the_same() -> None:
    """The proxy has not said yes to the tunnel."""
    async with FaultServer([[Hang()]]) as proxy:
        source = CancelSource("request")
        model = one_try(endpoint("https://model.invalid", proxy=proxy.url))
        task = asyncio.create_task(collect(model, source.token))
        visit = await proxy.visit(0)
        await visit.requested.wait_async()
        assert visit.request is not None
        assert visit.request.method == "CONNECT"
        source.cancel(Cause.USER_STOP)
        with pytest.raises(Cancelled):
            await task
        await visit.gone.wait_async()


async def test_a_model_may_be_used_in_several_loops_at_once() -> None:
    with serve_in_thread(FaultServer([whole("openai")])) as server:
        model = one_try(endpoint(server.url))
        answers: list[list[Part]] = []

        def ask() -> None:
            answers.extend(asyncio.run(collect(model)) for _ in range(10))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(answers) == 30
        assert all(text_of(parts) == "Hello, wörld" for parts in answers)


async def test_a_cancel_of_an_ancestor_is_the_users_too() -> None:
    async with FaultServer([[Hang()]]) as server:
        turn = CancelSource("turn")
        request = turn.token.child("request")
        task = asyncio.create_task(collect(one_try(endpoint(server.url)), request.token))
        await (await server.visit(0)).requested.wait_async()
        turn.cancel(Cause.REDIRECT)
        with pytest.raises(Cancelled) as caught:
            await task
        assert caught.value.token is request.token
        assert request.token.reason is not None
        assert request.token.reason.root.cause is Cause.REDIRECT


ANIMALS = ("silent-before-headers", "silent-mid-answer", "paced", "ok", "500", "stall")


async def test_cancels_in_a_signal_handler_that_interrupts_anything() -> None:
    """The handler runs in the middle of whatever the main thread does, this very loop included."""
    chance = random.Random(7)
    source = CancelSource("none yet")

    def handler(_: int, __: FrameType | None) -> None:
        source.cancel(Cause.USER_STOP)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with serve_in_thread(FaultServer(choose_by_path)) as server:
            sockets = open_sockets()
            for _ in range(150):
                source = CancelSource("request")
                model = RetryingModel([endpoint(f"{server.url}/{chance.choice(ANIMALS)}")])
                signal.setitimer(signal.ITIMER_REAL, chance.random() ** 2 * 0.02 + 1e-5)
                try:
                    async with model.open(HELLO, source.token) as stream:
                        async for _part in stream:
                            pass
                except Cancelled as cancelled:
                    if cancelled.token is not source.token:
                        pytest.fail("another request's cancel came out")
                # The signal comes also after an answer that was quick.
                token = source.token
                await until(lambda token=token: token.cancelled, "the signal")  # type: ignore[misc]
            await until(lambda: all(v.gone.is_set() for v in server.visits), "all were cut")
            await until(lambda: open_sockets() <= sockets, "no socket is left")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://api.openai.com/v1", "api.openai.com"),
        ("http://127.0.0.1:8080/v1", "127.0.0.1:8080"),
        ("http://[::1]:8080/v1", "[::1]:8080"),
        ("http://me:secret@host.example/v1", "host.example"),
    ],
)
def test_the_host_that_is_shown(url: str, host: str) -> None:
    assert split_base_url(url, "OPENAI_BASE_URL") == host


def test_naming_a_model_or_playing_a_script_loads_no_http_client() -> None:
    code = """
import sys
from bargein.models import ModelSettings, ScriptedModel, resolve_model
resolve_model("openai:x", ModelSettings(openai_base_url="http://127.0.0.1:1/v1"))
ScriptedModel([[]])
print([name for name in ("aiohttp", "ssl", "asyncio") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
