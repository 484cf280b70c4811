"""`python`: code that calls tools, which call tools; stopped at every depth."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path

import anyio
import pytest

from bargein.contracts.tool import Approval, CallStatus
from bargein.tools import DEFAULT_POLICY
from bargein.tools.link import ChildLink, HungUp
from tests.conftest import BACKENDS, Backend
from tests.tools.bench_of_tools import Shop, open_shop
from tests.tools.desk import Desk, text_of, until, with_enough_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


async def test_output_and_the_last_value_are_shown(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "python", code="import os\nprint('hi')\nx = 6\nx * 7")
    assert (result.status, text_of(result)) == (CallStatus.FINISHED, "hi\n=> 42")
    assert "".join(desk.live) == "hi\n"
    for code, shown in {
        "": "(no output)",
        "None": "(no output)",
        "x = 1": "(no output)",
        "'ä'": "=> 'ä'",
        "import os; os.getcwd()": f"=> '{shop.folder}'",
        "def f():\n    return __name__\nf()": "=> '__main__'",
        "import sys; sys.stdin.read()": "=> ''",
    }.items():
        assert text_of(await shop.use(desk, "python", code=code)) == shown


async def test_errors_are_shown_as_python_does_without_our_frames(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "python", code="def f():\n    1 / 0\nprint('a')\nf()")
    assert result.status is CallStatus.FAILED
    # Where exactly in a line it happened is marked differently by each version.
    assert re.sub(r" *[~^]+\n", "", text_of(result)) == (
        "a\n"
        "Traceback (most recent call last):\n"
        '  File "<code>", line 4, in <module>\n'
        "    f()\n"
        '  File "<code>", line 2, in f\n'
        "    1 / 0\n"
        "ZeroDivisionError: division by zero\n"
        "[exit code 1]"
    )
    result = await shop.use(desk, "python", code="x = (")
    assert "SyntaxError" in text_of(result)
    assert "python_child" not in text_of(result)
    result = await shop.use(desk, "python", code="import sys; sys.exit(3)")
    assert text_of(result) == "[exit code 3]"
    result = await shop.use(desk, "python", code="import os; os.abort()")
    assert "ended by SIGABRT" in text_of(result)


async def test_code_calls_the_other_tools(shop: Shop, desk: Desk) -> None:
    code = """
from bargein_tools import call, read_file, terminal, write_file, ToolFailed
write_file("a.txt", content="one\\n")
print(read_file(path="a.txt"), end="")
print(terminal("cat a.txt").partition("\\n")[0])
print(call("read_file", path="a.txt"), end="")
for bad in (lambda: read_file("nowhere"), lambda: call("no_tool"), lambda: read_file(1, 2, 3, 4)):
    try:
        bad()
    except (ToolFailed, TypeError) as error:
        print(type(error).__name__, str(error)[:60])
"""
    text = text_of(await shop.use(desk, "python", code=code))
    assert text.splitlines() == [
        "one",
        "one",
        "one",
        "ToolFailed read_file (failed): nowhere does not exist.",
        "ToolFailed no_tool (not_started): There is no tool named 'no_tool'. The",
        "TypeError read_file() takes path, first_line, lines",
    ]


async def test_calls_from_several_threads_run_side_by_side(shop: Shop, desk: Desk) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from bargein_tools import terminal
def meet(number):
    mark = f"touch here{number}; while [ $(ls here* | wc -l) -lt 4 ]; do sleep 0.02; done; echo met"
    return terminal(mark, timeout_s=40).split()[0]
with ThreadPoolExecutor(4) as pool:
    print(*pool.map(meet, range(4)))
"""
    assert text_of(await shop.use(desk, "python", code=code)) == "met met met met"


NESTED = """
from bargein_tools import {name}
print("calling", flush=True)
{name}({argument!r})
"""


def nested(depth: int, command: str) -> str:
    code = NESTED.format(name="terminal", argument=command)
    for _ in range(depth - 1):
        code = NESTED.format(name="python", argument=code)
    return code


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_stop_reaches_every_depth_and_all_are_named(
    shop: Shop, desk: Desk, depth: int
) -> None:
    async def stop() -> None:
        await shop.file("pid")
        desk.stop()

    command = "setsid sleep 1000 & trap '' INT TERM; echo $$ > pid; while :; do sleep 0.1; done"
    began_at = time.monotonic()
    result = await shop.use_and(desk, stop, "python", code=nested(depth, command))
    assert time.monotonic() - began_at < 40
    assert result.status is CallStatus.STOPPED
    assert "Output so far:\ncalling\n" in text_of(result)
    assert result.stop is not None
    assert result.stop.confirmed
    commands = [each.command for each in result.stop.processes]
    assert any("sleep 1000" in command for command in commands)
    assert len([command for command in commands if "python_child" in command]) == depth
    assert shop.alive() == []


async def test_a_time_limit_reaches_what_was_called(shop: Shop, desk: Desk) -> None:
    code = nested(1, "sleep 1000")
    result, limit_s = await with_enough_time(
        lambda timeout_s: shop.use(desk, "python", code=code, timeout_s=timeout_s),
        lambda result: "calling" in text_of(result),
        1,
    )
    assert result.status is CallStatus.STOPPED
    assert f"its time limit of {limit_s:g} s was reached" in text_of(result)
    assert shop.alive() == []


async def test_code_that_dies_takes_its_calls_with_it(shop: Shop, desk: Desk) -> None:
    code = """
import os, threading, time
from bargein_tools import terminal
threading.Thread(target=terminal, args=["echo $$ > pid; sleep 1000"], daemon=True).start()
while not os.path.exists("pid") or not os.path.getsize("pid"):
    time.sleep(0.01)
os._exit(7)
"""
    began_at = time.monotonic()
    result = await shop.use(desk, "python", code=code)
    assert time.monotonic() - began_at < 40
    assert "[exit code 7]" in text_of(result)
    assert not shop.is_alive(await shop.file("pid"))


async def test_a_call_that_nobody_waits_for_any_more_is_stopped(shop: Shop, desk: Desk) -> None:
    """The code goes on; only one of its connections is gone."""
    code = """
import os, socket, sys, time
from bargein_tools import call
frames, asking = sys.modules["bargein.tools.frames"], call.__self__
connection = socket.socket(socket.AF_UNIX)
connection.connect(asking._path)
arguments = {"command": "trap '' INT; echo $$ > pid; while :; do sleep 0.1; done"}
connection.sendall(
    frames.encode({"call": "terminal", "arguments": arguments, "secret": asking._secret})
)
while not os.path.exists("pid") or not os.path.getsize("pid"):
    time.sleep(0.01)
connection.close()
pid = int(open("pid").read())
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
print("gone")
"""
    result = await shop.use(desk, "python", code=code, timeout_s=40)
    assert (result.status, text_of(result)) == (CallStatus.FINISHED, "gone")


async def test_the_policy_holds_for_calls_from_code(warm_loop: None, tmp_path: Path) -> None:
    desk = Desk()
    desk.answer = lambda question: Approval.DENY
    command = "r" + "m -rf build"
    code = f"from bargein_tools import terminal\ncommand = 'r' + {command[1:]!r}\nterminal(command)"
    async with open_shop(tmp_path, policy=DEFAULT_POLICY) as shop:
        (tmp_path / "build").mkdir()
        result = await shop.use(desk, "python", code=code)
        assert "The user did not allow this call" in text_of(result)
        assert [question.text for question in desk.asked] == [
            f"Allow this call (it deletes directories)? {command}"
        ]
        assert (tmp_path / "build").exists()
        desk.answer = lambda question: Approval.ALLOW
        await shop.use(desk, "python", code=code)
        assert not (tmp_path / "build").exists()


async def test_a_stop_ends_an_approval_that_code_waits_for(warm_loop: None, tmp_path: Path) -> None:
    desk = Desk()
    async with open_shop(tmp_path, policy=DEFAULT_POLICY) as shop:

        async def stop() -> None:
            await until(lambda: desk.asked)
            desk.stop()

        code = "from bargein_tools import terminal\nterminal('r' + 'm -rf build')"
        result = await shop.use_and(desk, stop, "python", code=code)
        assert result.status is CallStatus.STOPPED


async def test_a_stop_at_spread_moments_leaves_nobody(shop: Shop) -> None:
    statuses = set()
    for tenth in range(0, 24, 2):
        desk = Desk()

        async def stop(desk: Desk = desk, delay_s: float = tenth / 50) -> None:
            await anyio.sleep(delay_s)
            desk.stop()

        result = await shop.use_and(desk, stop, "python", code=nested(1, "sleep 1000 & sleep 1000"))
        statuses.add(result.status)
        assert shop.alive() == []
    assert statuses <= {CallStatus.STOPPED, CallStatus.NOT_STARTED}


async def test_a_stranger_without_the_secret_is_not_answered(warm_loop: None) -> None:
    asked: list[object] = []

    async def answer(message: dict[str, object], hung_up: HungUp) -> dict[str, object]:
        asked.append(message)
        return {"answer": 1}

    def attempt(path: str, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(100)

    def frame(message: object) -> bytes:
        body = json.dumps(message).encode()
        return len(body).to_bytes(4, "big") + body

    async with ChildLink(answer, lambda: 1.0) as link:
        path, secret = link.address["path"], link.address["secret"]
        assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0
        for data in (
            frame({"call": "x"}),
            frame({"call": "x", "secret": "wrong"}),
            frame({"call": "x", "secret": secret[:-1]}),
            frame([secret]),
            b"\xff\xff\xff\xff" + b"x" * 100,
            b"\0\0\0\x04nope",
            b"\0\0",
            b"",
        ):
            assert await anyio.to_thread.run_sync(attempt, path, data) == b""
        assert asked == []
        right = frame({"call": "x", "secret": secret})
        assert b'"answer": 1' in await anyio.to_thread.run_sync(attempt, path, right)
    assert asked == [{"call": "x"}]
    folder = path.removesuffix("/link")
    assert folder.rpartition("/")[2] not in os.listdir(folder.rpartition("/")[0])
