"""`web_fetch` against real servers on loopback: bounded, confined, and closed by a stop."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.cancel import abandoned
from bargein.contracts.tool import CallResult, CallStatus
from bargein.tools import ToolRegistry
from bargein.tools.tool_environment import ToolSettings
from bargein.tools.web_client import WebClient, _only_to
from bargein.tools.web_fetch import web_fetch_tool
from tests.conftest import BACKENDS, Backend
from tests.tools.bench_of_tools import Shop, open_shop
from tests.tools.desk import Desk, text_of, until, with_enough_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

Reply = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


@dataclass
class Server:
    """Answers each request by the function for its path; notes who came and when they left."""

    replies: dict[str, Reply] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    came: int = 0
    left: int = 0
    port: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            self.requests.append(path)
            self.hosts.append(head.partition("Host: ")[2].partition("\r\n")[0])
            await self.replies[path.partition("?")[0]](path, writer)
            writer.write_eof()
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left += 1
            writer.close()


def reply(
    body: bytes = b"", status: str = "200 OK", kind: str = "text/plain", **headers: str
) -> Reply:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def send(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return send


@asynccontextmanager
async def serving(host: str = "127.0.0.1", **replies: Reply) -> AsyncIterator[Server]:
    made = Server({f"/{name}": answer for name, answer in replies.items()})
    server = await asyncio.start_server(made.serve, host, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await until(lambda: made.left == made.came)


@pytest.fixture
async def shop(warm_loop: None, tmp_path: Path) -> AsyncIterator[Shop]:
    settings = ToolSettings(web_networks_allowed=("127.0.0.1/32",), web_bytes_max=100_000)
    async with open_shop(tmp_path, settings=settings) as opened:
        yield opened


async def test_a_page_becomes_text(shop: Shop, desk: Desk) -> None:
    html = b"<title>T\xe4st</title><h1>Hi</h1><a href=/x>there</a>"
    async with serving(page=reply(html, kind="text/html; charset=latin-1")) as server:
        result = await shop.use(desk, "web_fetch", url=server.url("/page#part"))
        assert result.status is CallStatus.FINISHED
        assert text_of(result) == (
            f"{server.url('/page')} (200 OK)\n\nTäst\n\n# Hi\n\n[there]({server.url('/x')})"
        )
        assert server.requests == ["/page"]


async def test_other_texts_and_what_is_none(shop: Shop, desk: Desk) -> None:
    async with serving(
        json=reply(b'{"a": 1}', kind="application/json"),
        image=reply(b"\x89PNG\0\0", kind="image/png"),
        missing=reply(b"gone", "404 Not Found"),
        empty=reply(b""),
        zipped=reply(gzip.compress(b"packed"), Content_Encoding="gzip"),
        deflated=reply(zlib.compress(b"packed"), Content_Encoding="deflate"),
        odd=reply(b"x", Content_Encoding="br"),
        broken=reply(b"not gzip", Content_Encoding="gzip"),
    ) as server:
        expected = {
            "/json": '{"a": 1}',
            "/image": "(No text: 6 bytes of image/png.)",
            "/missing": "(404 Not Found)\n\ngone",
            "/empty": "(no text)",
            "/zipped": "\n\npacked",
            "/deflated": "\n\npacked",
            "/odd": "compressed with 'br'",
            "/broken": "not validly compressed",
        }
        for path, words in expected.items():
            assert words in text_of(await shop.use(desk, "web_fetch", url=server.url(path))), path


async def test_size_is_bounded_also_of_a_bomb(shop: Shop, desk: Desk) -> None:
    bomb = gzip.compress(b"x" * 200_000_000)

    async def endless(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"y" * 60_000)
            await writer.drain()

    async with serving(bomb=reply(bomb, Content_Encoding="gzip"), endless=endless) as server:
        for path in ("/bomb", "/endless"):
            text = text_of(await shop.use(desk, "web_fetch", url=server.url(path)))
            assert "the page is longer: only its first 100000 bytes were read" in text
            assert "100000 characters in all; start=63000 reads on" in text
        result = await shop.use(desk, "web_fetch", url=server.url("/bomb"), start=99_990)
        assert "\n\nxxxxxxxxxx\n[" in text_of(result)


async def test_redirects_are_followed_and_counted(shop: Shop, desk: Desk) -> None:
    async with serving(
        a=reply(b"", "302 Found", Location="/b"),
        b=reply(b"", "301 Moved", Location="b/../c?x=1"),
        c=reply(b"arrived"),
        round=reply(b"", "302 Found", Location="/round"),
        bad=reply(b"", "302 Found", Location="http://[bad"),
    ) as server:
        result = await shop.use(desk, "web_fetch", url=server.url("/a"))
        assert text_of(result) == f"{server.url('/c?x=1')} (200 OK)\n\narrived"
        result = await shop.use(desk, "web_fetch", url=server.url("/round"))
        assert "redirects more than 5 times" in text_of(result)
        assert server.requests.count("/round") == 6
        result = await shop.use(desk, "web_fetch", url=server.url("/bad"))
        assert "is not a URL" in text_of(result)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.2:PORT/page",
        "http://localhost.:PORT/page",
        "http://[::1]:PORT/page",
        "http://[::ffff:127.0.0.2]:PORT/page",
        "http://2130706433:PORT/page",
        "http://2130706434:PORT/page",
        "http://0177.0.0.2:PORT/page",
        "http://127.2:PORT/page",
        "http://0x7f.0.0.2:PORT/page",
        "http://0x7f000002:PORT/page",
        "http://0:PORT/page",
        "http://0.0.0.0:PORT/page",
        "http://169.254.169.254/latest/meta-data",
        "http://user@127.0.0.2:PORT/page",
        "http://127.0.0.1@127.0.0.2:PORT/page",
        "http://127.0.0.2%00.example.org:PORT/page",
        "http://①②⑦.⓪.⓪.②:PORT/page",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "gopher://127.0.0.1:PORT/x",
        "http://",
        "//127.0.0.1/x",
        "127.0.0.1:PORT/page",
        "",
        "http://127.0.0.1:99999/",
        "http://exa mple/",
    ],
)
async def test_addresses_that_are_not_allowed_are_never_connected_to(
    shop: Shop, desk: Desk, url: str
) -> None:
    """The server listens on every address of the machine; nobody may come."""
    async with serving("0.0.0.0", page=reply(b"reached")) as server:
        result = await shop.use(desk, "web_fetch", url=url.replace("PORT", str(server.port)))
        assert result.status is CallStatus.FAILED
        assert "reached" not in text_of(result)
        assert server.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2:PORT/page",
        "//127.0.0.2:PORT/page",
        "http://2130706434:PORT/page",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "http://user:pw@127.0.0.1:PORT/page",
    ],
)
async def test_a_redirect_is_checked_like_the_first_address(
    shop: Shop, desk: Desk, target: str
) -> None:
    async with serving("0.0.0.0", page=reply(b"reached")) as server:
        server.replies["/go"] = reply(
            b"", "302 Found", Location=target.replace("PORT", str(server.port))
        )
        result = await shop.use(desk, "web_fetch", url=server.url("/go"))
        assert result.status is CallStatus.FAILED
        assert server.requests == ["/go"]


def answers(*addresses: list[str]) -> tuple[Callable[..., list[Any]], list[str]]:
    """A name server that gives another answer each time, and the questions it was asked."""
    asked: list[str] = []

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        found = addresses[min(len(asked), len(addresses) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    return lookup, asked


async def fetch_with(
    shop: Shop, desk: Desk, lookup: Callable[..., list[Any]], url: str
) -> tuple[CallStatus, str]:
    tool = web_fetch_tool(shop.tool_environment, lookup)
    registry = ToolRegistry([tool])
    other = Shop(shop.tool_environment, registry, shop.owner)
    result = await other.use(desk, "web_fetch", url=url)
    return result.status, text_of(result)


async def test_a_name_that_changes_its_mind_is_connected_to_where_it_was_checked(
    shop: Shop, desk: Desk
) -> None:
    lookup, asked = answers(["127.0.0.1"], ["127.0.0.2"])
    async with serving("0.0.0.0", page=reply(b"reached")) as server:
        url = server.url("/page", "rebinding.test")
        status, text = await fetch_with(shop, desk, lookup, url)
        assert (status, text) == (CallStatus.FINISHED, f"{url} (200 OK)\n\nreached")
        assert asked == ["rebinding.test"]
        assert server.hosts == [f"rebinding.test:{server.port}"]
        status, text = await fetch_with(shop, desk, lookup, url)
        assert status is CallStatus.FAILED
        assert "leads to 127.0.0.2, which is not a public address" in text
        assert len(server.requests) == 1


async def test_a_name_with_one_forbidden_address_among_others_is_refused(
    shop: Shop, desk: Desk
) -> None:
    lookup, _ = answers(["127.0.0.1", "10.0.0.1"])
    async with serving(page=reply(b"reached")) as server:
        status, text = await fetch_with(shop, desk, lookup, server.url("/page", "mixed.test"))
        assert status is CallStatus.FAILED
        assert "leads to 10.0.0.1" in text
        assert server.requests == []


def test_a_socket_is_made_only_for_an_address_that_was_checked() -> None:
    create = _only_to({"127.0.0.1"})
    create((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))).close()
    with pytest.raises(OSError, match="not a checked address"):
        create((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 80)))


@pytest.mark.parametrize("phase", ["silent", "half"])
async def test_a_stop_closes_the_connection_at_once(shop: Shop, desk: Desk, phase: str) -> None:
    gone = anyio.Event()

    @asynccontextmanager
    async def watching() -> AsyncIterator[tuple[int, anyio.Event]]:
        came = anyio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if phase == "half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            came.set()
            await reader.read()
            gone.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1], came
        server.close()

    async with watching() as (port, came):
        stopped_at = 0.0

        async def stop() -> None:
            nonlocal stopped_at
            await came.wait()
            stopped_at = time.monotonic()
            desk.stop()
            await gone.wait()
            stopped_at = time.monotonic() - stopped_at

        result = await shop.use_and(desk, stop, "web_fetch", url=f"http://127.0.0.1:{port}/")
        assert result.status is CallStatus.STOPPED
        assert "nothing is half done" in text_of(result)
        assert stopped_at < 15  # the limit for it all is 30


async def test_a_lookup_that_hangs_is_left_behind(shop: Shop, desk: Desk) -> None:
    asked, may_end = threading.Event(), threading.Event()

    def lookup(host: str, port: int, **more: object) -> list[Any]:
        asked.set()
        may_end.wait(20)
        raise OSError("too late")

    registry = ToolRegistry([web_fetch_tool(shop.tool_environment, lookup)])

    async def stop() -> None:
        await until(asked.is_set)
        desk.stop()

    began_at = time.monotonic()
    result = await Shop(shop.tool_environment, registry, shop.owner).use_and(
        desk, stop, "web_fetch", url="http://hangs.test/"
    )
    assert result.status is CallStatus.STOPPED
    assert time.monotonic() - began_at < 15
    assert [each.name for each in abandoned()] == ["lookup of hangs.test"]
    may_end.set()
    await until(lambda: not abandoned())


async def test_time_is_bounded(warm_loop: None, tmp_path: Path, desk: Desk) -> None:
    async def dripping(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def fetch(timeout_s: float) -> CallResult:
        settings = ToolSettings(web_networks_allowed=("127.0.0.0/8",), web_timeout_s=timeout_s)
        async with open_shop(tmp_path, settings=settings) as shop, serving(drip=dripping) as server:
            return await shop.use(desk, "web_fetch", url=server.url("/drip"))

    result, limit_s = await with_enough_time(
        fetch, lambda result: result.status is not CallStatus.NOT_STARTED, 0.3
    )
    assert result.status is CallStatus.STOPPED
    assert f"its time limit of {limit_s:g} s was reached" in text_of(result)


async def test_faults_of_the_world_are_told(shop: Shop, desk: Desk) -> None:
    async def rude(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    async def short(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with serving(rude=rude, short=short) as server:
        for path in ("/rude", "/short"):
            result = await shop.use(desk, "web_fetch", url=server.url(path))
            assert result.status is CallStatus.FAILED
            assert "could not be fetched" in text_of(result)
    with socket.socket() as deaf:  # bound, so that nobody else gets the port, and not listening
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        assert "could not be fetched" in text_of(await shop.use(desk, "web_fetch", url=url))
    result = await shop.use(desk, "web_fetch", url="http://no-such-host.invalid/")
    assert "The host 'no-such-host.invalid' was not found" in text_of(result)


async def test_without_an_allowance_loopback_is_refused(
    warm_loop: None, tmp_path: Path, desk: Desk
) -> None:
    async with open_shop(tmp_path) as shop, serving(page=reply(b"reached")) as server:
        result = await shop.use(desk, "web_fetch", url=server.url("/page"))
        assert "leads to 127.0.0.1, which is not a public address" in text_of(result)
        assert server.requests == []


async def test_a_client_can_be_used_alone(desk: Desk) -> None:
    from bargein.net.public_address import read_networks

    client = WebClient(bytes_max=10, allowed=read_networks(["127.0.0.0/8"]))
    async with serving(page=reply(b"0123456789abc")) as server:
        page = await client.fetch(server.url("/page"), desk.turn.token)
    assert (page.status, page.content, page.truncated) == (200, b"0123456789", True)
