"""The fault server itself: it does what it is told, and what it records is true."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from bargein.testing.fault_server import (
    FaultServer,
    full_listener,
    make_tls,
    serve_in_thread,
    unused_port,
)
from bargein.testing.fault_steps import (
    Body,
    Drip,
    Drop,
    Gate,
    Hang,
    Head,
    Pause,
    Raw,
    Reply,
    Request,
    Reset,
    Stall,
)
from bargein.testing.fault_zoo import ZOO, run_zoo

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


def client(server: FaultServer, tls: ssl.SSLContext | None = None) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    return tls.wrap_socket(raw, server_hostname="127.0.0.1") if tls else raw


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def test_a_reply_is_released_by_its_gates() -> None:
    reply: Reply = [Head(chunked=False), Body(b"one"), Gate("more"), Body(b"two", size=1)]
    with serve_in_thread(FaultServer([reply])) as server, client(server) as connection:
        connection.sendall(GET)
        visit = server.wait_visit(0)
        assert visit.at("more").wait(30)
        head = b""
        while not head.endswith(b"one"):
            head += connection.recv(65536)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        server.gate("more").set()
        assert read_all(connection) == b"two"
        assert visit.gone.wait(30)
        assert visit.gone_by == "server"
        assert visit.request == Request("GET", "/x", {"host": "h"}, b"")


def test_chunks_are_framed_and_ended() -> None:
    with serve_in_thread(FaultServer([[Head(), Body(b"hello")]])) as server:
        with urllib.request.urlopen(server.url, timeout=30) as response:
            assert response.read() == b"hello"
        assert server.requests[0].method == "GET"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize(
    "reply",
    [[Hang()], [Head(), Hang()], [Head(), Gate("never")], [Stall()], [Head(), Pause(60)]],
    ids=["silent", "after headers", "at a gate", "not reading", "pausing"],
)
def test_a_client_that_goes_is_seen_at_once(reply: Reply, how: str, tls: bool) -> None:
    server_tls, client_tls = make_tls() if tls else (None, None)
    with serve_in_thread(FaultServer([reply], tls=server_tls)) as server:
        connection = client(server, client_tls)
        connection.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")
        visit = server.wait_visit(0)
        assert visit.requested.wait(30)
        assert not visit.gone.wait(0.02)
        if how == "reset":
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        before = time.monotonic_ns()
        connection.close()
        assert visit.gone.wait(30)
        assert 0 <= visit.gone.at_ns - before < 30_000_000_000
        assert visit.gone_by in ("fin", "reset")


def test_a_client_that_goes_while_it_is_still_sending_is_seen() -> None:
    with serve_in_thread(FaultServer([[Hang()]])) as server, client(server) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 500\r\n\r\nhalf")
        visit = server.wait_visit(0)
        connection.close()
        assert visit.gone.wait(30)
        assert not visit.requested.is_set()


def test_stalling_really_does_not_read() -> None:
    server = FaultServer([[Stall()]], receive_buffer_bytes=4096)
    with serve_in_thread(server), client(server) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        assert server.wait_visit(0).requested.wait(30)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.sendall(b"x" * 50_000_000)


def test_dropping_and_resetting_differ() -> None:
    with serve_in_thread(FaultServer([[Head(), Drop()], [Head(), Reset()]])) as server:
        with client(server) as connection:
            connection.sendall(GET)
            assert b"chunked" in read_all(connection)
        with client(server) as connection:
            connection.sendall(GET)
            assert server.wait_visit(1).gone.wait(30)
            with pytest.raises(ConnectionResetError):
                read_all(connection)


def test_a_drip_never_ends() -> None:
    with serve_in_thread(FaultServer([[Head(chunked=False), Drip(b"ab")]])) as server:
        with client(server) as connection:
            connection.sendall(GET)
            got = b""
            while len(got) < 500:
                got += connection.recv(4096)
        assert got.endswith((b"abab", b"baba"))
        assert server.wait_visit(0).gone.wait(30)


def test_replies_come_in_order_and_the_last_again() -> None:
    replies: list[Reply] = [[Raw(b"first")], [Raw(b"then")]]
    with serve_in_thread(FaultServer(replies)) as server:
        got = []
        for _ in range(3):
            with client(server) as connection:
                connection.sendall(GET)
                got.append(read_all(connection))
    assert got == [b"first", b"then", b"then"]


def test_connecting_to_a_full_listener_hangs_and_to_an_unused_port_fails() -> None:
    with full_listener() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.3)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", unused_port()), timeout=5)


def test_a_server_needs_a_reply() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FaultServer([])


@pytest.mark.anyio
async def test_leaving_closes_every_connection() -> None:
    async with FaultServer([[Hang()]]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        await (await server.visit(0)).requested.wait_async()
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass
    writer.close()


@pytest.mark.filterwarnings("error")
def test_one_who_is_accepted_as_the_server_leaves_is_closed_too() -> None:
    """The garbage collector would report an open one, in whichever test it happens to run."""
    for _ in range(20):
        with serve_in_thread(FaultServer([[Hang()]])) as server:
            clients = [client(server) for _ in range(3)]
        for each in clients:
            each.close()
    gc.collect()


@pytest.mark.anyio
async def test_waiting_for_what_never_comes_ends() -> None:
    async with FaultServer([[Hang()]]) as server:
        with pytest.raises(TimeoutError):
            await server.visit(0, timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await server.gate("never").wait_async(0.01)


def test_the_zoo_in_a_process_of_its_own() -> None:
    zoo = subprocess.Popen(
        [sys.executable, "-m", "bargein.testing.fault_server"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert zoo.stdout is not None
        url = zoo.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/ok/v1/chat/completions", timeout=30) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")
        visits: list[dict[str, Any]] = [{"gone_ns": 0}]
        while not visits[0]["gone_ns"]:
            with urllib.request.urlopen(f"{url}/visits", timeout=30) as response:
                visits = json.loads(response.read())
        assert visits[0]["path"] == "/ok/v1/chat/completions"
        assert visits[0]["connected_ns"] <= visits[0]["requested_ns"] <= visits[0]["gone_ns"]
    finally:
        zoo.kill()
        zoo.wait()
        if zoo.stdout is not None:
            zoo.stdout.close()


@pytest.mark.parametrize("port", ["many", "70000"])
def test_what_is_no_port_for_the_zoo_is_wrong_usage(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_zoo([port])
    assert caught.value.code == 2
    assert f"{port!r} is not a port" in capsys.readouterr().err


def test_the_zoo_tells_who_lives_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_zoo(["--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert all(animal in told for animal in ZOO)
