"""Commands that a tool starts through its context."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bargein.cancel import TaskOwner
from bargein.contracts.tool import CallStatus
from bargein.tools import Ran, ToolContext, ToolRegistry, invoke, tool
from tests.tools.bench_of_tools import Shop, means_that_work, open_shop
from tests.tools.desk import Desk, call, text_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
    pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True),
]

seen: list[Ran] = []


@tool
async def run_some(context: ToolContext) -> str:
    seen[:] = [
        await context.run(
            'echo "$WHO in $(basename "$PWD")"; exit 3', cwd="sub", env={"WHO": "me"}
        ),
        await context.run(["printf", "%s", "a b; c"]),
        await context.run("cat", input="given"),
        await context.run("kill -TERM $$"),
    ]
    return "ok"


@tool
async def run_long(context: ToolContext) -> str:
    await context.run("echo begun; (setsid sleep 120 &); : > up; echo >> up; sleep 120")
    return "never"


LEAVES_AN_ORPHAN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(120)
    os._exit(0)
os.wait()
with open("up", "w") as file:
    print("up", file=file)
time.sleep(120)
"""


@tool
async def run_orphan(context: ToolContext) -> str:
    """What it leaves behind has lost its parent, is in its group, and ends at the first SIGINT."""
    await context.run([sys.executable, "-c", LEAVES_AN_ORPHAN])
    return "never"


@tool
async def run_limited(context: ToolContext) -> str:
    ran = await context.run(["sleep", "120"], timeout_s=0.1)
    return f"{ran.timed_out} {ran.ok}"


@tool
async def talk(context: ToolContext) -> str:
    process = await context.start('while read line; do echo "heard $line"; done')
    await process.write(b"this\n")
    process.close_input()
    await process.wait()
    return process.output.text()


@tool
async def forget(context: ToolContext) -> str:
    process = await context.start(["sleep", "120"])
    return str(process.pid)


@asynccontextmanager
async def opened(folder: Path, means: str = "auto") -> AsyncIterator[Shop]:
    more = (run_some, run_long, run_orphan, run_limited, talk, forget)
    async with open_shop(folder, means=means, more=more) as shop:  # type: ignore[arg-type]
        yield shop


@pytest.fixture(autouse=True)
def warm(warm_loop: None) -> None:
    """The shop counts descriptors."""


async def test_a_command_is_run_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with opened(tmp_path) as shop:
        desk = Desk()
        assert text_of(await shop.use(desk, "run_some")) == "ok"
    shell, plain, fed, killed = seen
    assert (shell.code, shell.output, shell.ok) == (3, "me in sub\n", False)
    assert (plain.code, plain.output, plain.ok) == (0, "a b; c", True)
    assert fed.output == "given"
    assert (killed.code, killed.signal) == (None, 15)
    assert "me in sub\n" in "".join(desk.live)


@pytest.mark.parametrize("means", means_that_work())
async def test_a_stop_ends_it_and_names_all(tmp_path: Path, means: str) -> None:
    async with opened(tmp_path, means) as shop:
        desk = Desk()

        async def meanwhile() -> None:
            await shop.file("up")
            desk.stop()

        result = await shop.use_and(desk, meanwhile, "run_long")
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.processes
        if means != "group":
            assert result.stop.confirmed
            assert len(result.stop.processes) >= 2
        assert "begun" in text_of(result)


@pytest.mark.parametrize("means", [means for means in means_that_work() if means != "group"])
async def test_a_stop_names_orphans_that_the_first_signal_ended(tmp_path: Path, means: str) -> None:
    async with opened(tmp_path, means) as shop:
        desk = Desk()

        async def meanwhile() -> None:
            await shop.file("up")
            desk.stop()

        result = await shop.use_and(desk, meanwhile, "run_orphan")
        assert result.stop is not None
        assert result.stop.confirmed
        assert len(result.stop.processes) == 2


async def test_a_limit_of_its_own_ends_the_command_and_not_the_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        result = await shop.use(Desk(), "run_limited")
        assert (result.status, text_of(result)) == (CallStatus.FINISHED, "True False")


async def test_one_can_talk_to_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        assert text_of(await shop.use(Desk(), "talk")) == "heard this\n"


async def test_what_was_started_and_forgotten_is_ended_with_the_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        result = await shop.use(Desk(), "forget")
        pid = text_of(result).partition("[")[0]
        assert not shop.is_alive(pid)
        assert f"sleep 120 (pid {pid}" in text_of(result)


async def test_without_a_workshop_it_says_what_is_missing() -> None:
    async with TaskOwner():
        registry = ToolRegistry([forget])
        result = await invoke(registry, call("forget"), Desk().context())
        assert result.status is CallStatus.FAILED
        assert "pass tool_environment=" in text_of(result)
