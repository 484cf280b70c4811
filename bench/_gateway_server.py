"""The server of the gateway's bench, in a process of its own, with the baselines beside it. Python
is set up in it as in `bargein serve`.

Prints its port. The routes under /bench are the least that a baseline needs: an answer without
anything behind it, the engine's own interrupt and send without HTTP, and a bare loop of
server-sent events. A message `PACE PARTS` is answered with so many parts, so far apart.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bargein.cli.event_loop import run_in_loop
from bargein.contracts.live import TextDelta
from bargein.server.access import Access
from bargein.server.app import build_app
from bargein.server.gateway import Gateway
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.limits import GatewayLimits
from bargein.server.running import GatewayServer, collect_seldom, listen
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.session.session import Session
from bargein.session.turn import Turn
from bargein.stores.sqlite import SqliteStore

TOKEN = "the-token-of-the-bench-which-is-long-enough"
WORD = "a word or two, as models say them "
LIMITS = GatewayLimits(
    requests_per_s=1e9,
    requests_burst=10**9,
    turns_max=10**6,
    streams_max=10**6,
    sessions_max=10**6,
    connections_max=10**6,
    connections_per_s=1e9,
    connections_burst=10**9,
    strangers_max=10**6,
    strangers_per_address_max=10**6,
)


async def paced_agent(turn: Turn) -> str:
    """Says what a scripted model would say, without the model: parts, each after its pause."""
    # The rest, which may be megabytes, does not matter.
    words = turn.messages[0].text[:100].split(maxsplit=2)
    pace_s, parts = float(words[0]), int(words[1])
    for _ in range(parts):
        await asyncio.sleep(pace_s)
        turn.emit(WORD)
    return ""


async def serve(home: Path) -> None:
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(home / "sessions.sqlite3")
        stack.push_async_callback(store.aclose)
        limits = Limits(watcher_events_max=100_000, waiting_max=10**6)
        engine = await stack.enter_async_context(SessionEngine(paced_agent, store, limits=limits))
        book = GatewayDb.open(home / FILE)
        stack.callback(book.close)
        gateway = Gateway(engine, book, Access(book, start_token=TOKEN), limits=LIMITS)
        listening = listen("127.0.0.1", 0)
        server = GatewayServer(gateway, build_app(gateway, more_routes=baselines(engine)))
        print(listening.getsockname()[1], flush=True)
        await server.run_until_left([listening])


def baselines(engine: SessionEngine) -> list[Route]:
    async def nothing(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    async def interrupt(request: Request) -> Response:
        """Measures the engine itself: from the request for the stop until its receipt."""
        session = Session(engine, request.path_params["session"])
        began = time.perf_counter()
        receipt = await session.interrupt(by="bench")
        elapsed_s = time.perf_counter() - began
        body = {"elapsed_s": elapsed_s, "status": receipt.status}
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def send(request: Request) -> Response:
        """Measures the engine itself: this many messages by this many producers, without HTTP."""
        asked = msgspec.json.decode(await request.body(), type=dict[str, list[str]])
        each = int(request.query_params["each"])

        async def produce(session_id: str) -> None:
            session = Session(engine, session_id)
            for _ in range(each):
                await session.send("0 0", mode="queue")

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for session_id in asked["sessions"]:
                group.start_soon(produce, session_id)
        body = {"elapsed_s": time.perf_counter() - began}
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def events(request: Request) -> Response:
        parts = int(request.query_params["parts"])
        return StreamingResponse(bare(parts), media_type="text/event-stream")

    return [
        Route("/bench/nothing", nothing, methods=["POST"]),
        Route("/bench/interrupt/{session}", interrupt, methods=["POST"]),
        Route("/bench/send", send, methods=["POST"]),
        Route("/bench/events", events),
    ]


async def bare(parts: int) -> AsyncIterator[bytes]:
    """A loop that encodes a part, yields it, and lets other tasks run."""
    encode = msgspec.json.encode
    for _ in range(parts):
        await asyncio.sleep(0)
        yield b"data: " + encode(TextDelta("t1", WORD)) + b"\n\n"


if __name__ == "__main__":
    collect_seldom()
    run_in_loop(serve, Path(sys.argv[1]))
