"""Commands in a sandbox without network reach the hosts that the user named, and no others."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import CancelSource
from bargein.errors import UserError
from bargein.process import Means, open_containment
from bargein.sandbox.command_sandbox import CommandSandbox, temporary_folder
from bargein.sandbox.host_proxy import _CONNECTIONS_MAX, HostProxy, Hosts
from tests.process.conftest import CERTAIN

PYTHON = next(path for path in ("/usr/bin/python3", "/bin/python3", "python3"))
READ = """
import socket, sys, urllib.request
for address in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(address, timeout=5).read().decode().strip())
    except OSError as error:
        print(getattr(error, 'code', ''), getattr(error, 'fp', None) and error.fp.read().decode())
"""
TUNNEL = """
import socket, sys
host, port = sys.argv[1].split(':')
s = socket.create_connection(('127.0.0.1', 3128), 5)
s.sendall(f'CONNECT {host}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'.encode())
print(s.recv(999).split(b'\\r\\n')[0].decode())
s.sendall(b'GET /x HTTP/1.0\\r\\n\\r\\n')
print(b''.join(iter(lambda: s.recv(999), b'')).decode()[-7:])
try:
    socket.create_connection((host, int(port)), 2)
    print('directly')
except OSError as error:
    print('not directly')
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"page {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.anyio
@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_named_hosts_are_reached_and_others_refused(
    tmp_path: Path, port: int, means: Means
) -> None:
    with temporary_folder() as folder, temporary_folder() as door:
        async with (
            HostProxy((f"127.0.0.1:{port}",), Path(door)) as proxy,
            await open_containment(means.value, network="none") as containment,
        ):
            if not containment.report.sandbox.holds:
                pytest.skip("no sandbox here")
            home = {"HOME": "/nowhere", "PATH": os.environ["PATH"]}
            sandbox = CommandSandbox(
                containment, str(tmp_path), Path(folder), home, door=proxy.door
            )

            async def said(*argv: str) -> str:
                view = sandbox.view("s1")
                assert view is not None
                with CancelSource("test") as source:
                    process = await containment.spawn(
                        argv,
                        cwd="/",
                        env={**home, **sandbox.environment(view), "no_proxy": "", "NO_PROXY": ""},
                        token=source.token,
                        view=view,
                    )
                    await process.wait()
                    await process.stop()
                    return process.output.text()

            pages = [f"http://127.0.0.1:{port}/a?b", f"http://localhost:{port}/", "http://x.test/"]
            first, *others = (await said(PYTHON, "-c", READ, *pages)).splitlines()
            assert first == "page /a?b"
            refused = "403 [sandbox: the sandbox allows no connection to"
            assert [each[: len(refused)] for each in others if each] == [refused, refused]
            through = (await said(PYTHON, "-c", TUNNEL, f"127.0.0.1:{port}")).splitlines()
            assert through == ["HTTP/1.1 200 Connection established", "page /x", "not directly"]
            # Once the namespaces are gone, nothing is left of them here.
            async with asyncio.timeout(10):
                while len(proxy._tasks) > 2:  # the door, and the next spare process
                    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "private", ["127.0.0.1", "168.63.129.16", "64:ff9b::7f00:1", "2002:7f00:1::", "fec0::1"]
)
async def test_a_name_below_a_domain_leads_to_no_private_address(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str
) -> None:
    """Whoever owns the domain could otherwise have commands reach this machine."""
    from bargein.net.resolver import ThreadResolver

    async def resolve(self: object, host: str, port: int = 0, **_more: object) -> list[object]:
        return [{"host": private if host.startswith("a.") else "127.0.0.1"}]

    monkeypatch.setattr(ThreadResolver, "resolve", resolve)
    entries = (f"*.example.com:{port}", f"named.test:{port}")
    async with HostProxy(entries, tmp_path) as proxy:
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        visitor = socket.socket(socket.AF_UNIX)
        visitor.connect(proxy.door)
        socket.send_fds(visitor, [b"."], [listening.fileno()])
        listening.close()
        for name, expected in (("a.example.com", b"no public address"), ("named.test", b"page /")):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(f"GET http://{name}:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert expected in await reader.read()
            writer.close()
        visitor.close()


@pytest.mark.anyio
async def test_one_command_does_not_keep_others_from_the_proxy(port: int, tmp_path: Path) -> None:
    async with HostProxy((f"127.0.0.1:{port}",), tmp_path) as proxy:
        visitors, addresses = [], []
        for _ in range(2):
            listening = socket.create_server(("127.0.0.1", 0), backlog=512)
            addresses.append(listening.getsockname())
            visitor = socket.socket(socket.AF_UNIX)
            visitor.connect(proxy.door)
            socket.send_fds(visitor, [b"."], [listening.fileno()])
            listening.close()
            visitors.append(visitor)
        # As many as the proxy serves at once, which ask for nothing.
        idle = [socket.create_connection(addresses[0]) for _ in range(_CONNECTIONS_MAX)]
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*addresses[1])
            writer.write(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b"page /" in await reader.read()
            writer.close()
        # When a command has ended, its room is free again.
        visitors[0].close()
        for connection in idle:
            connection.close()
        async with asyncio.timeout(10):
            while proxy._free._value < _CONNECTIONS_MAX:
                await anyio.lowlevel.checkpoint()
        visitors[1].close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_which_hosts_are_allowed() -> None:
    hosts = Hosts(("Example.com", "*.below.test", "other.test:8080", "[::1]:9"))
    yes = [("example.com", 443), ("EXAMPLE.com.", 80), ("a.b.below.test", 443), ("::1", 9)]
    yes += [("other.test", 8080)]
    no = [("example.com", 22), ("notexample.com", 443), ("a.example.com", 443), ("::1", 80)]
    no += [("below.test", 443), ("evilbelow.test", 443), ("other.test", 443)]
    assert [hosts.allow(*each) for each in yes] == [True] * len(yes)
    assert [hosts.allow(*each) for each in no] == [False] * len(no)
    for wrong in ("", "*", "a.*", "http://example.com", "x:0", "x:99999", "a b"):
        with pytest.raises(UserError, match="is no host"):
            Hosts((wrong,))
