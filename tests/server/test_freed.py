"""What a request was made of goes with it: nothing of it is left for Python's collector to find,
whose search holds everybody up for as long as there are sessions to look through."""

import gc
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from bargein.models.script import Say
from tests.server.stage import START_TOKEN, WITHIN_S, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

TIMES = 5

# A method, a path under the session, a body, a token, and the status of the answer.
CASES = {
    "a message": ("POST", "/messages", {"text": "x", "mode": "queue"}, START_TOKEN, 202),
    "a look": ("GET", "", None, START_TOKEN, 200),
    "nothing running": ("POST", "/interrupt", {}, START_TOKEN, 200),
    "nobody": ("GET", "", None, "wrong", 401),
    "no such session": ("POST", "-none/messages", {"text": "x"}, START_TOKEN, 404),
    "no such path": ("GET", "/nothing/here", None, START_TOKEN, 404),
    "no such method": ("PUT", "/messages", {}, START_TOKEN, 405),
    "a wrong field": ("POST", "/messages", {"texd": "x"}, START_TOKEN, 400),
    "a wrong mode": ("POST", "/messages", {"text": "x", "mode": "shout"}, START_TOKEN, 400),
    "no JSON": ("POST", "/messages", b"{", START_TOKEN, 400),
    "a wrong parameter": ("GET", "/inbox?after=1", None, START_TOKEN, 400),
}


@contextmanager
def only_by_the_collector() -> Iterator[list[object]]:
    """What nothing else has freed when this is left."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.extend(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", CASES)
async def test_a_request_is_freed_without_the_collector(tmp_path: Path, name: str) -> None:
    method, path, body, token, expected = CASES[name]
    async with serving([[Say("ok")]] * (TIMES + 1), tmp_path) as stage:
        session = await stage.new_session()
        with only_by_the_collector() as found:
            for _ in range(TIMES):
                status, _ = await stage.ask(method, session + path, body, token=token)
                assert status == expected
            await _let_it_go(stage)
        left = {type(each).__qualname__ for each in found if _is_of_the_server(each)}
        assert not left


HOST = b"host: 127.0.0.1\r\n"
SHOWN = HOST + f"authorization: Bearer {START_TOKEN}\r\n".encode()
UPGRADE = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
COMMAND = b'{"id": "1", "do": "ping"}'

# What a peer sends on a connection before it leaves, with the path of a session for %b.
CONNECTIONS = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nx: " + b"x" * 30_000,
    "a head without an end": b"GET / HTTP/1.1\r\nx: " + b"x" * 200_000,
    "fields without an end": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16_384,
    "no HTTP": b"\x00" * 1000,
    "a trailer without an end": b"POST /login HTTP/1.1\r\n"
    + HOST
    + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"1\r\n{\r\n0\r\nx: "
    + b"x" * 200_000,
    "a request": b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "a last request": b"GET /healthz HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n",
    "requests in a row": (b"GET /v1/me HTTP/1.1\r\n" + SHOWN + b"\r\n") * 100,
    "a stream": b"GET %b/events HTTP/1.1\r\n" + SHOWN + b"\r\n",
    "a socket": b"GET %b/socket HTTP/1.1\r\n" + SHOWN + UPGRADE,
    "a socket with a command": b"GET %b/socket HTTP/1.1\r\n"
    + SHOWN
    + UPGRADE
    + struct.pack("!BB4x", 0x81, 0x80 | len(COMMAND))
    + COMMAND,
    "a socket that nobody knows": b"GET %b/socket HTTP/1.1\r\n" + HOST + UPGRADE,
}
UNANSWERED = ("nothing", "half a head")


@pytest.mark.parametrize("name", CONNECTIONS)
async def test_a_connection_is_freed_without_the_collector(tmp_path: Path, name: str) -> None:
    """Whoever opens and leaves many would have the collector run all the time."""
    async with serving([[Say("ok")]], tmp_path) as stage:
        session = await stage.new_session()
        sent = CONNECTIONS[name].replace(b"%b", session.encode())
        await stage.http.close()
        with anyio.fail_after(WITHIN_S), only_by_the_collector() as found:
            for _ in range(TIMES):
                await anyio.to_thread.run_sync(_come_and_go, stage.url, name, sent)
            await until(lambda: not stage.server.server_state.connections)
            await _let_it_go(stage)
        left = {type(each).__qualname__ for each in found if _is_of_the_server(each)}
        assert not left


def _come_and_go(url: str, name: str, sent: bytes) -> None:
    """Send, wait for the first of the answer if there is to be one, and leave."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN_S) as peer:
        try:
            peer.sendall(sent)
            if name not in UNANSWERED:
                peer.recv(1)
        except ConnectionError:
            pass


def _is_of_the_server(each: object) -> bool:
    return type(each).__module__.startswith(("bargein.server.", "starlette.", "uvicorn."))


async def _let_it_go(stage: Stage) -> None:
    """uvicorn's task of the last request ends after its answer."""
    while stage.server.server_state.tasks:
        await anyio.lowlevel.checkpoint()
