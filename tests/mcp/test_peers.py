"""Servers that people use, from PyPI and npm."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bargein.contracts.tool import CallStatus
from bargein.errors import UserError
from bargein.mcp import McpServer
from tests import programs
from tests.mcp.harness import SERVERS, house, sdk_server
from tests.mcp.http_server import http_server
from tests.mcp.test_stops import stopped
from tests.process import zoo
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def from_pypi(name: str, *arguments: str) -> McpServer:
    return McpServer(name, sys.executable, ["-m", f"mcp_server_{name}", *arguments])


def from_npm(program: str, *arguments: str, **options: Any) -> McpServer:
    script = programs.find(program)
    assert script is not None
    return McpServer(program[11:], programs.node(), [script, *arguments], **options)


@ONE_LOOP
async def test_time() -> None:
    async with house(from_pypi("time", "--local-timezone", "Europe/Zurich")) as home:
        await home.prepare()
        assert "mcp__time__get_current_time" in home.registry.names
        result = await home.call("mcp__time__get_current_time", {"timezone": "Asia/Tokyo"})
        assert result.status is CallStatus.FINISHED
        assert "Asia/Tokyo" in text_of(result)
        wrong = await home.call("mcp__time__get_current_time", {"timezone": "Moon/Base"})
        assert wrong.status is CallStatus.FAILED


@ONE_LOOP
@pytest.mark.needs("git")
async def test_git(tmp_path: Path) -> None:
    await anyio.run_process(["git", "init", "-q", str(tmp_path)])
    (tmp_path / "file").write_text("text")
    async with house(from_pypi("git", "--repository", str(tmp_path))) as home:
        await home.prepare()
        result = await home.call("mcp__git__git_status", {"repo_path": str(tmp_path)})
        assert result.status is CallStatus.FINISHED, text_of(result)
        assert "file" in text_of(result)


@ONE_LOOP
async def test_fetch_is_stopped_while_it_waits() -> None:
    mark = zoo.new_mark()
    fetch = from_pypi("fetch", "--ignore-robots-txt", "--allow-private-ips")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with house(fetch, mark=mark) as home:
            await home.prepare()
            result, took_s = await stopped(home, "mcp__fetch__fetch", {"url": url})
            assert result.status is CallStatus.STOPPED
            assert took_s < 5
    assert zoo.alive(mark) == []


@ONE_LOOP
@pytest.mark.needs("mcp-server-filesystem")
async def test_filesystem(tmp_path: Path) -> None:
    (tmp_path / "hello.txt").write_text("hello from a file")
    async with house(from_npm("mcp-server-filesystem", str(tmp_path))) as home:
        await home.prepare()
        arguments = {"path": str(tmp_path / "hello.txt")}
        result = await home.call("mcp__filesystem__read_text_file", arguments)
        assert text_of(result) == "hello from a file"
        outside = await home.call("mcp__filesystem__read_text_file", {"path": "/etc/passwd"})
        assert outside.status is CallStatus.FAILED


@ONE_LOOP
@pytest.mark.needs("mcp-server-everything")
async def test_everything() -> None:
    async with house(from_npm("mcp-server-everything")) as home:
        await home.prepare()
        names = home.registry.names
        assert text_of(await home.call("mcp__everything__echo", {"message": "x"})) == "Echo: x"
        image = await home.call("mcp__everything__get-tiny-image")
        assert any(type(part).__name__ == "Image" for part in image.content), names
        # Its long operation ignores aborts.
        result, took_s = await stopped(
            home,
            "mcp__everything__trigger-long-running-operation",
            {"duration": 3, "steps": 3},
        )
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert "may still be running" in result.stop.told
        assert took_s < 5
        assert text_of(await home.call("mcp__everything__echo", {"message": "y"})) == "Echo: y"


@ONE_LOOP
@pytest.mark.needs("mcp-server-everything")
async def test_everything_over_http() -> None:
    script = programs.find("mcp-server-everything")
    assert script is not None
    with served([programs.node(), script, "streamableHttp"], "PORT") as port:
        server = McpServer("everything", url=f"http://127.0.0.1:{port}/mcp")
        async with house(server) as home:
            await home.prepare()
            assert home.servers.status()[0].version == "2025-11-25"
            assert text_of(await home.call("mcp__everything__echo", {"message": "x"})) == "Echo: x"
            result, took_s = await stopped(
                home,
                "mcp__everything__trigger-long-running-operation",
                {"duration": 3, "steps": 3},
            )
            assert result.status is CallStatus.STOPPED
            assert took_s < 5


@ONE_LOOP
async def test_the_official_sdk_over_http(tmp_path: Path) -> None:
    note = str(tmp_path / "note")
    with served([sys.executable, str(SERVERS / "sdk.py"), "http"], "") as port:
        server = McpServer("sdk", url=f"http://127.0.0.1:{port}/mcp")
        async with house(server) as home:
            await home.prepare()
            assert home.servers.status()[0].version == "2026-07-28"
            assert text_of(await home.call("mcp__sdk__add", {"a": 2, "b": 3})) == "5"
            result, _ = await stopped(
                home,
                "mcp__sdk__wait",
                {"seconds": 30, "note": note},
                when=lambda: until(lambda: Path(note).exists()),
            )
            assert result.status is CallStatus.STOPPED
            # The closed stream is the cancel: the server's own code ended.
            await until(lambda: Path(note).read_text().split() == ["began", "stopped"])


@ONE_LOOP
async def test_resources_are_listed_and_read() -> None:
    async with house(sdk_server()) as home:
        await home.prepare()
        listed = await home.call("mcp__sdk__list_resources")
        assert "data://facts" in text_of(listed)
        read = await home.call("mcp__sdk__read_resource", {"uri": "data://facts"})
        assert text_of(read) == '[resource data://facts]\n{"known": true}'
        assert "the note x" in text_of(
            await home.call("mcp__sdk__read_resource", {"uri": "note://x"})
        )
        missing = await home.call("mcp__sdk__read_resource", {"uri": "data://nothing"})
        assert missing.status is CallStatus.NOT_STARTED
        wrong = await home.call("mcp__sdk__read_resource", {})
        assert "must be a text" in text_of(wrong)


@ONE_LOOP
async def test_prompts() -> None:
    async with house(sdk_server()) as home:
        # Starts the server by itself.
        text = await home.servers.prompt("mcp__sdk__review", "'the code' tone=dry")
        assert text == "Please review the code in a dry tone."
        (prompt,) = await home.servers.prompts()
        assert prompt.usage() == "/mcp__sdk__review what [tone]"
        for wrong in ("", "a b c"):
            with pytest.raises(UserError, match="mcp__sdk__review what"):
                await home.servers.prompt("mcp__sdk__review", wrong)
        with pytest.raises(UserError, match="it has /mcp__sdk__review"):
            await home.servers.prompt("mcp__sdk__nothing", "")


@ONE_LOOP
async def test_two_kinds_of_servers_side_by_side() -> None:
    async with http_server(True) as web, house(web.configured(), sdk_server()) as home:
        began = time.monotonic()
        await home.prepare()
        assert time.monotonic() - began < 10
        assert text_of(await home.call("mcp__web__echo")) == "an answer"
        assert text_of(await home.call("mcp__sdk__add", {"a": 1, "b": 1})) == "2"


@contextmanager
def served(argv: list[str], variable: str) -> Iterator[int]:
    """A server in a process of its own, on a port that was free."""
    import os

    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
    around = {**os.environ, variable: str(port)} if variable else dict(os.environ)
    more = [] if variable else [str(port)]
    process = subprocess.Popen(
        [*argv, *more], env=around, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()
