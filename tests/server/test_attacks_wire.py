"""Attacks below the API: heads without an end, pipelines, many connections, odd WebSocket frames.

Each attacker speaks raw bytes to a real server, and each test looks at what the server still holds.
"""

import asyncio
import gc
import logging
import os
import socket
import struct
import types
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
from websockets.frames import Frame

from bargein.models.script import Say, Step, Wait
from bargein.server.limits import GatewayLimits
from bargein.server.protocol import (
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    PIPELINED_MAX,
    GatewayProtocol,
)
from bargein.server.socket_protocol import (
    FRAGMENTS_MAX,
    PIECE_CHARACTERS,
    QUEUED_BYTES_MAX,
    GatewaySocketProtocol,
)
from tests.server.stage import START_TOKEN, WITHIN_S, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]
PIECE = 8192
READ_MAX = 256 * 1024
"""The most that the event loop hands over at once."""


def address(stage: Stage) -> tuple[str, int]:
    host, port = stage.url.removeprefix("http://").split(":")
    return host, int(port)


def head(stage: Stage, request: str, *lines: str, token: str | None = START_TOKEN) -> bytes:
    shown = [f"authorization: Bearer {token}"] if token is not None else []
    host = f"host: {stage.url.removeprefix('http://')}"
    return "\r\n".join([request, host, *shown, *lines, "", ""]).encode()


async def told(stream: anyio.abc.SocketStream) -> bytes:
    """All that the server says until it closes the connection."""
    said = b""
    with anyio.fail_after(WITHIN_S):
        try:
            while True:
                said += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return said


async def pour(
    stream: anyio.abc.SocketStream, piece: bytes, most: int, *, every_s: float = 0.0
) -> int:
    """How many bytes go out before the server closes the connection."""
    sent = 0
    with anyio.fail_after(WITHIN_S):
        try:
            while sent < most:
                await stream.send(piece)
                sent += len(piece)
                await anyio.sleep(every_s)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            pass
    return sent


def protocols(stage: Stage) -> list[GatewayProtocol]:
    found = stage.server.server_state.connections
    return [each for each in found if isinstance(each, GatewayProtocol)]


CHUNKED = (
    b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ENDLESS = {
    "name": (b"GET /healthz HTTP/1.1\r\n", b"x" * PIECE),
    "value": (b"GET /healthz HTTP/1.1\r\nx: ", b"x" * PIECE),
    "many fields": (b"GET /healthz HTTP/1.1\r\n", b"a:\r\n" * (PIECE // 4)),
    "request line": (b"GET /", b"x" * PIECE),
    "method": (b"", b"X" * PIECE),
    "empty lines": (b"", b"\r\n" * (PIECE // 2)),
    "chunk extension": (
        CHUNKED + b"1;",
        b"x" * PIECE,
    ),
    "trailer": (
        CHUNKED + b"1\r\n{\r\n0\r\nx: ",
        b"x" * PIECE,
    ),
    "many trailers": (
        CHUNKED + b"1\r\n{\r\n0\r\n",
        b"x: y\r\n" * (PIECE // 6),
    ),
    "body after the answer": (
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"x" * PIECE,
    ),
    "unwanted body": (
        b"POST /v1/sessions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"x" * PIECE,
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_has_no_end_is_cut_off(tmp_path: Path, kind: str) -> None:
    """The kernel's buffers take a few MiB more than the server reads."""
    begin, piece = ENDLESS[kind]
    async with (
        serving([], tmp_path) as stage,
        await anyio.connect_tcp(*address(stage)) as stream,
    ):
        await stream.send(begin)
        sent = await pour(stream, piece, 64 * 1024 * 1024)
        assert sent < 32 * 1024 * 1024
        assert await stage.get("/healthz", token=None) == {"status": "ok"}


@pytest.mark.parametrize("kind", ["name", "value", "many fields"])
async def test_a_long_head_is_refused_with_a_reason(tmp_path: Path, kind: str) -> None:
    begin, piece = ENDLESS[kind]
    async with (
        serving([], tmp_path) as stage,
        await anyio.connect_tcp(*address(stage)) as stream,
    ):
        await stream.send(begin + piece * (2 * HEAD_BYTES_MAX // PIECE))
        assert (await told(stream)).startswith(b"HTTP/1.1 431 ")


async def test_a_head_within_the_bounds_is_taken_in_any_pieces(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        lines = [f"x-{number}: {'v' * 200}" for number in range(FIELDS_MAX - 4)]
        request = head(stage, "GET /v1/me HTTP/1.1", *lines, "connection: close")
        assert len(request) < HEAD_BYTES_MAX
        for size in (1000, len(request)):
            async with await anyio.connect_tcp(*address(stage)) as stream:
                for place in range(0, len(request), size):
                    await stream.send(request[place : place + size])
                assert (await told(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_trailer_is_not_taken_for_a_header(tmp_path: Path) -> None:
    """Otherwise whoever passes requests on and strips headers would be got around."""
    async with serving([], tmp_path) as stage:
        lines = ("transfer-encoding: chunked", "connection: close")
        request = head(stage, "POST /v1/sessions HTTP/1.1", *lines)
        body = b"2\r\n{}\r\n0\r\ncontent-type: application/json\r\n\r\n"
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(request)
            await anyio.sleep(0.05)
            await stream.send(body)
            assert (await told(stream)).startswith(b"HTTP/1.1 415 ")


async def test_requests_that_nobody_reads_wait_in_a_bounded_number(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        one = head(stage, "GET /v1/me HTTP/1.1")
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(head(stage, f"GET {session}/events HTTP/1.1"))
            assert b" 200 " in await stream.receive()
            with anyio.move_on_after(1.0):
                await pour(stream, one * 100, 64 * 1024 * 1024)
            waiting = max(len(each.pipeline) for each in protocols(stage))
            assert 0 < waiting <= PIPELINED_MAX


async def test_pipelined_requests_are_answered_in_order_and_then_the_connection_ends(
    tmp_path: Path,
) -> None:
    """A client that sends more than may wait is told `connection: close` with the last answer, and
    knows by that which of its requests to send again."""
    async with serving([], tmp_path) as stage:
        one = head(stage, "GET /v1/me HTTP/1.1")
        for count in (PIPELINED_MAX, 10 * PIPELINED_MAX):
            async with await anyio.connect_tcp(*address(stage)) as stream:
                last = head(stage, "GET /healthz HTTP/1.1", "connection: close")
                await stream.send(one * count + last)
                said = (await told(stream)).lower()
            answers = said.count(b"http/1.1 200 ")
            assert answers == count + 1 if count == PIPELINED_MAX else answers > PIPELINED_MAX
            assert said.count(b"connection: close") == 1
            assert said.rindex(b"http/1.1 200 ") < said.index(b"connection: close")


async def test_a_pipelined_body_is_not_lost(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        requests = b""
        for number in range(6):
            body = b'{"title": "number %d"}' % number
            lines = ["content-type: application/json", f"content-length: {len(body)}"]
            lines += ["connection: close"] if number == 5 else []
            requests += head(stage, "POST /v1/sessions HTTP/1.1", *lines) + body
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(requests)
            said = await told(stream)
        assert said.count(b"HTTP/1.1 201 ") == 6
        assert all(b'"title":"number %d"' % number in said for number in range(6))


async def test_a_connection_that_is_one_too_many_counts_as_a_strangers(tmp_path: Path) -> None:
    limits = GatewayLimits(connections_max=1, strangers_per_address_max=5)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events"):
            opened = []
            for _ in range(12):
                stream = await anyio.connect_tcp(*address(stage))
                opened.append(stream)
                await stream.send(head(stage, "GET /v1/me HTTP/1.1"))
                assert b" 429 " in await stream.receive()
            with anyio.fail_after(WITHIN_S):
                await until(lambda: len(protocols(stage)) <= 6)
            for stream in opened:
                await stream.aclose()


async def test_a_body_that_was_refused_is_not_kept_with_its_connection(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        body = b"x" * 200_000
        request = head(stage, "POST /v1/sessions HTTP/1.1", f"content-length: {len(body)}")
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(request + body)
            assert b" 415 " in await stream.receive()
            assert all(not each.cycle.body for each in protocols(stage))


async def test_nobody_sends_an_endless_body_to_a_stream(tmp_path: Path) -> None:
    limits = GatewayLimits(body_bytes_max=100_000)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        length = "content-length: 99999999999"
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(head(stage, f"GET {session}/events HTTP/1.1", length))
            assert await pour(stream, b"x" * PIECE, 64 * 1024 * 1024) < 32 * 1024 * 1024


async def test_a_connection_that_dribbles_empty_lines_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GatewayProtocol, "head_s", 0.2)
    async with (
        serving([], tmp_path) as stage,
        await anyio.connect_tcp(*address(stage)) as stream,
    ):
        await stream.send(head(stage, "GET /healthz HTTP/1.1"))
        assert b" 200 " in await stream.receive()
        assert await pour(stream, b"\r\n", 2**20, every_s=0.05) < 200


async def test_strangers_make_room_for_those_who_come(tmp_path: Path) -> None:
    """Whoever has shown a token keeps its connection, however many come without one."""
    limits = GatewayLimits(strangers_max=20, strangers_per_address_max=20)
    async with (
        serving([], tmp_path, limits=limits) as stage,
        await anyio.connect_tcp(*address(stage)) as known,
    ):
        await known.send(head(stage, "GET /v1/me HTTP/1.1"))
        assert b" 200 " in await known.receive()
        strangers = [await anyio.connect_tcp(*address(stage)) for _ in range(60)]
        with anyio.fail_after(WITHIN_S):
            await until(lambda: len(protocols(stage)) <= 22)
        assert await stage.get("/v1/me")
        await known.send(head(stage, "GET /v1/me HTTP/1.1"))
        assert b" 200 " in await known.receive()
        for each in strangers:
            await each.aclose()


async def test_a_stranger_that_was_answered_outlives_those_that_say_nothing(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(strangers_max=20, strangers_per_address_max=20)
    async with (
        serving([], tmp_path, limits=limits) as stage,
        await anyio.connect_tcp(*address(stage)) as check,
        AsyncExitStack() as stack,
    ):
        for count in (60, 0):
            await check.send(head(stage, "GET /healthz HTTP/1.1", token=None))
            assert b" 200 " in await check.receive()
            for _ in range(count):
                silent = await anyio.connect_tcp(*address(stage))
                stack.push_async_callback(silent.aclose)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: len(protocols(stage)) <= 22)


async def test_a_newcomer_is_let_in_where_all_places_are_taken_by_answered_ones(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(strangers_max=20, strangers_per_address_max=20)
    async with serving([], tmp_path, limits=limits) as stage, AsyncExitStack() as stack:
        for _ in range(30):
            each = await anyio.connect_tcp(*address(stage))
            stack.push_async_callback(each.aclose)
            await each.send(head(stage, "GET /healthz HTTP/1.1", token=None))
            assert b" 200 " in await each.receive()


async def test_connections_of_one_principal_are_bounded(tmp_path: Path) -> None:
    """The one that has been idle for longest goes; one that streams stays."""
    limits = GatewayLimits(connections_max=5)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events") as events:
            opened = []
            for _ in range(12):
                stream = await anyio.connect_tcp(*address(stage))
                opened.append(stream)
                await stream.send(head(stage, "GET /v1/me HTTP/1.1"))
                assert b" 200 " in await stream.receive()
            with anyio.fail_after(WITHIN_S):
                await until(lambda: len(protocols(stage)) <= 5)
            await stage.post(f"{session}/messages", {"text": "a"})
            with anyio.fail_after(WITHIN_S):
                await events.until("turn_started")
            for stream in opened:
                await stream.aclose()


async def test_garbage_after_an_upgrade_is_refused(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        for upgrade in ("websocket", "h2c", "x"):
            lines = ("connection: upgrade", f"upgrade: {upgrade}")
            async with await anyio.connect_tcp(*address(stage)) as stream:
                await stream.send(head(stage, "GET /healthz HTTP/1.1", *lines))
                sent = await pour(stream, os.urandom(PIECE), 64 * 1024 * 1024)
                assert sent < 32 * 1024 * 1024
        assert await stage.get("/healthz", token=None) == {"status": "ok"}


# --- WebSocket frames


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """As a client sends it: masked, here with zeros."""
    first = (0x80 if fin else 0) | opcode
    if len(payload) < 126:
        return struct.pack("!BB4x", first, 0x80 | len(payload)) + payload
    if len(payload) < 65536:
        return struct.pack("!BBH4x", first, 0x80 | 126, len(payload)) + payload
    return struct.pack("!BBQ4x", first, 0x80 | 127, len(payload)) + payload


TEXT, CONTINUATION, CLOSE, PING = 1, 0, 8, 9


UPGRADE = (
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-extensions: permessage-deflate",
)


@asynccontextmanager
async def raw_socket(stage: Stage, session: str) -> AsyncIterator[anyio.abc.SocketStream]:
    async with await anyio.connect_tcp(*address(stage)) as stream:
        await stream.send(head(stage, f"GET {session}/socket HTTP/1.1", *UPGRADE))
        said = await stream.receive()
        assert said.startswith(b"HTTP/1.1 101 ")
        # A few bytes must not become many.
        assert b"deflate" not in said.lower()
        yield stream


def sockets(stage: Stage) -> list[GatewaySocketProtocol]:
    found = stage.server.server_state.connections
    return [each for each in found if isinstance(each, GatewaySocketProtocol)]


async def test_fragments_of_nothing_have_an_end(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            await stream.send(frame(TEXT, b"", fin=False))
            piece = frame(CONTINUATION, b"", fin=False) * 1000
            assert await pour(stream, piece, 64 * 1024 * 1024) < 32 * 1024 * 1024
            assert FRAGMENTS_MAX < 64 * 1024


async def test_pings_of_one_who_does_not_read_are_not_answered_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bargein.server.socket_protocol.PINGS_BURST", 10**9)
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            with anyio.move_on_after(1.0):
                await pour(stream, frame(PING, b"x" * 125) * 100, 64 * 1024 * 1024)
            (held,) = sockets(stage)
            assert held.transport.get_write_buffer_size() < 1024 * 1024


async def test_many_pings_cost_the_socket(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            await stream.send(frame(PING, b"hello"))
            with anyio.fail_after(WITHIN_S):
                assert b"hello" in await stream.receive()
            await stream.send(frame(PING, b"again") * 1000)
            assert b"pings a second" in await told(stream)


async def test_commands_that_wait_on_a_socket_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            large = frame(TEXT, b"x" * 500_000)
            with anyio.move_on_after(1.0):
                await pour(stream, large * 4, 64 * 1024 * 1024)
            (held,) = sockets(stage)
            assert held.queued_bytes <= QUEUED_BYTES_MAX + 500_000
            assert held.unfed_bytes <= READ_MAX


async def test_commands_that_wait_on_a_socket_are_few(tmp_path: Path) -> None:
    """What came in one read is handed on as the commands before it are taken."""
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            with anyio.move_on_after(1.0):
                await pour(stream, frame(TEXT, b"x") * 10_000, 64 * 1024 * 1024)
            (held,) = sockets(stage)
            assert held.queue.qsize() <= 2048
            assert held.unfed_bytes <= READ_MAX


MUCH = 9_000_000
"""More than the kernel keeps for a connection."""


async def _send_much(stage: Stage, session: str) -> None:
    for _ in range(10):
        body = {"text": "x" * (MUCH // 10), "mode": "queue"}
        await stage.post(f"{session}/messages", body)


async def test_a_large_event_waits_in_one_place_for_a_peer_that_reads_nothing(
    tmp_path: Path,
) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session), raw_socket(stage, session) as stream:
            await _send_much(stage, session)
            seen = 0
            with anyio.fail_after(WITHIN_S):
                while seen < MUCH:
                    seen += (await stream.receive()).count(b"x")
            for held in sockets(stage):
                assert held.transport.get_write_buffer_size() < 2 * PIECE_CHARACTERS


class Late(asyncio.Protocol):
    """A connection that begins while the server closes the others."""

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.add(self)

    def shutdown(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._connections.discard(self)


async def test_a_server_that_ends_leaves_no_connection_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with serving([], tmp_path) as stage:
            stage.server.config.timeout_graceful_shutdown = 0
            late = Late(stage.server.server_state.connections)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: late, *listening.getsockname())
        assert late.is_over


async def test_a_peer_that_leaves_a_large_event_half_read_loses_its_connection(
    tmp_path: Path,
) -> None:
    limits = GatewayLimits(send_s=0.2)
    async with serving([HOLD], tmp_path, limits=limits) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session):
            await _send_much(stage, session)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: not sockets(stage))
                await until(lambda: not stage.gateway.holdings.held)


async def test_a_frame_that_was_taken_is_held_by_nobody(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            mark = b'"' + b"held?" * 50_000 + b'"'
            await stream.send(frame(TEXT, mark))
            with anyio.fail_after(WITHIN_S):
                said = b""
                while b"bad_request" not in said and b"bad_json" not in said:
                    said += await stream.receive()
            copies = [each for each in gc.get_objects() if isinstance(each, Frame)]
            assert not any(len(each.data) > 100_000 for each in copies)


@pytest.mark.parametrize("refused", [False, True])
async def test_a_command_that_is_over_is_held_by_nobody(tmp_path: Path, refused: bool) -> None:
    """Also without the help of Python's collector, which comes seldom and does not know sizes."""
    do, body = ("nothing" if refused else "send_message"), {"text": "y" * 300_000}
    command = msgspec.json.encode({"id": "1", "do": do, "body": body})
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        gc.collect()
        gc.disable()
        try:
            async with stage.gateway.large, raw_socket(stage, session) as stream:
                await stream.send(frame(TEXT, command))
                if refused:
                    with anyio.fail_after(WITHIN_S):
                        assert b"there is no command" in await stream.receive()
                else:
                    await until(lambda: stage.gateway.large.statistics().tasks_waiting)
            with anyio.fail_after(WITHIN_S):
                await until(lambda: not sockets(stage))
            assert _held_by_frames(200_000) == []
        finally:
            gc.enable()


async def test_commands_of_a_peer_that_is_gone_end_in_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reply to the first finds nobody there, while the others wait to be taken."""
    command = frame(TEXT, b'{"id": "1", "do": "ping"}')
    async with serving([HOLD], tmp_path) as stage:
        session = await stage.new_session()
        async with raw_socket(stage, session) as stream:
            await stream.send(command * 40 + frame(CLOSE, b""))
        await until(lambda: not sockets(stage) and not stage.server.server_state.tasks)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_a_socket_that_is_refused_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise anybody could fill the log."""
    async with serving([], tmp_path) as stage:
        async with await anyio.connect_tcp(*address(stage)) as stream:
            await stream.send(
                head(stage, "GET /v1/sessions/s1/socket HTTP/1.1", *UPGRADE, token=None)
            )
            assert (await told(stream)).startswith(b"HTTP/1.1 401 ")
        await until(lambda: not stage.server.server_state.tasks)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def _held_by_frames(size: int) -> list[str]:
    return [
        each.f_code.co_qualname
        for each in gc.get_objects()
        if isinstance(each, types.FrameType)
        for held in gc.get_referents(each)
        if isinstance(held, bytes)
        and len(held) > size
        and not each.f_code.co_name.startswith("test_")
    ]
