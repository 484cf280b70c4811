"""Nothing of a server is left: after close, after a stop, after its own graceful end."""

from __future__ import annotations

import os
import random
import sys

import anyio
import pytest

from bargein.cancel import Cause
from bargein.mcp import McpServer
from tests.mcp.harness import SERVERS, bad_server, house
from tests.process import zoo
from tests.tools.desk import text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(55)]

BAD = str(SERVERS / "bad.py")
ENDINGS = ("close", "fork", "stop", "die", "stop_in_start")
STARTS = 200
AT_ONCE = 10


def server_of(kind: str, name: str, *, wrapped: bool) -> McpServer:
    argv = [sys.executable, "-I", "-S", BAD, kind]
    if wrapped:
        # As npx and uvx do: the real server is a grandchild.
        argv = ["sh", "-c", '"$@"; exit 0', "wrapper", *argv]
    return McpServer(name, argv[0], argv[1:])


@pytest.mark.parametrize("share", range(4))
async def test_200_starts_and_stops_leave_nobody(share: int) -> None:
    """Wrappers, forks in sessions of their own, deaths, stops in the middle of the start."""
    chosen = random.Random(f"mcp {share}")
    mark = zoo.new_mark()
    for _ in range(STARTS // 4 // AT_ONCE):
        kinds = [
            chosen.choice(["plain", "modern", "leaves_child", "ignores_end"])
            for _ in range(AT_ONCE)
        ]
        servers = [
            server_of(kind, f"s{at}", wrapped=chosen.random() < 0.5)
            for at, kind in enumerate(kinds)
        ]
        endings = [chosen.choice(ENDINGS) for _ in servers]
        async with house(*servers, mark=mark) as home, anyio.create_task_group() as tasks:
            for at, ending in enumerate(endings):
                tasks.start_soon(_live, home, f"s{at}", ending)
        assert zoo.alive(mark) == []


async def _live(home: object, name: str, ending: str) -> None:
    from tests.mcp.harness import House

    assert isinstance(home, House)
    life = home.servers.life_of(name)
    if ending == "stop_in_start":
        with anyio.move_on_after(0.02):
            await life.connected()
        return
    await life.connected()
    if ending == "fork":
        assert text_of(await home.call(f"mcp__{name}__fork", session=name)) == "forked"
    elif ending == "die":
        await home.call(f"mcp__{name}__die", session=name)
    elif ending == "stop":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: home.call(f"mcp__{name}__hang", session=name))
            await until(lambda: life.connection is not None and life.connection._open)
            home.desk(name).turn.cancel(Cause.USER_STOP)


async def test_a_server_that_ends_by_itself_leaves_no_child() -> None:
    mark = zoo.new_mark()
    async with house(bad_server("leaves_child"), mark=mark) as home:
        await home.prepare()
        assert len(zoo.alive(mark)) == 2
        await home.call("mcp__bad__die")
        await until(lambda: zoo.alive(mark) == [])


async def test_descriptors_come_back() -> None:
    async def once() -> None:
        async with house(bad_server("plain")) as home:
            await home.prepare()
            await home.call("mcp__bad__echo")

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await once()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_our_own_death_leaves_nobody() -> None:
    mark = zoo.new_mark()
    argv = [sys.executable, "-m", "tests.mcp.killed", mark]
    async with await anyio.open_process(argv, stderr=None) as program:
        assert program.stdout is not None
        assert await program.stdout.receive() == b"ready\n"
        # A wrapper, its server and the child that it left; a server and the child that it forked.
        assert len(zoo.alive(mark)) == 5
        program.kill()
        await program.wait()
        await until(lambda: zoo.alive(mark) == [])
