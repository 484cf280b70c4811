"""The owner's door: who comes in by it, as whom, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bargein.client import Client, Disconnected
from bargein.process.peers import is_contained, is_owner
from bargein.runtime.data_directory import DOOR_FILE
from bargein.server.access import add_token
from bargein.server.door import door
from bargein.server.gateway_db import FILE, GatewayDb
from tests.server.program import Program
from tests.server.stage import WITHIN_S

pytestmark = pytest.mark.anyio

QUICK = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "done" }]
"""

KNOCK = """
import socket, sys
knocking = socket.socket(socket.AF_UNIX)
knocking.connect(sys.argv[1])
answer = b""
try:
    knocking.sendall(b"GET /v1/me HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n")
    while piece := knocking.recv(65536):
        answer += piece
except ConnectionError:
    pass
print(answer.split(b"\\r\\n")[0].decode() or "refused")
"""


def long_home(tmp_path: Path) -> Path:
    """A data directory whose path is longer than that of a unix socket may be."""
    home = tmp_path / ("long" * 30)
    home.mkdir()
    return home


async def test_the_owner_needs_no_token(tmp_path: Path) -> None:
    home = long_home(tmp_path)
    db = GatewayDb.open(home / FILE)
    await add_token(db, "alice")
    db.close()
    with Program(home, QUICK):
        path = home / DOOR_FILE
        assert path.stat().st_mode & 0o777 == 0o600
        async with Client(f"unix:{path}") as client:
            me = await client.me()
            assert (me.principal, me.admin) == ("operator", True)
            session = await client.new_session()
            assert (await (await session.send("Hi")).result()).text == "done"
    # Killed: the next owner takes its place.
    assert path.exists()
    with pytest.raises(Disconnected):
        async with Client(f"unix:{path}"):
            raise AssertionError
    with Program(home, QUICK) as program:
        async with Client(f"unix:{path}") as client:
            assert [each.id for each in await client.sessions()] == [session.id]
        program.terminate()
        with anyio.fail_after(WITHIN_S):
            await anyio.to_thread.run_sync(program.process.wait)
        assert not path.exists()


def knock(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KNOCK, str(path)], stdout=subprocess.PIPE, text=True
    )


def test_a_process_below_the_server_is_not_let_in(tmp_path: Path) -> None:
    """A command of the agent that could see the socket is told apart by the kernel's word."""
    path = tmp_path / DOOR_FILE
    with Program(tmp_path, QUICK), knock(path) as outside:
        assert outside.communicate(timeout=WITHIN_S)[0] == "HTTP/1.1 200 OK\n"
    with door(tmp_path) as listening, knock(path) as below:
        connection, _ = listening.accept()
        with connection:
            assert not is_owner(connection)
        assert below.communicate(timeout=WITHIN_S)[0] == "refused\n"
    assert not is_contained(os.getppid())
    assert is_contained(2**30)
