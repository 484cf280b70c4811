"""Processes that a user's own tool starts by itself, stopped through the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind
from bargein.contracts.tool import CallStatus
from bargein.models.script import Call, Say
from bargein.models.scripted import ScriptedModel
from bargein.process import Means
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.session.session import Session
from bargein.tools import tool
from tests.process import zoo
from tests.process.conftest import MEANS
from tests.session.world import CONFIG, WITHIN_S, until
from tests.tools.own_ways import below

CHILD = Path(__file__).with_name("own_process_child.py")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
]
on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)


@tool
async def build(folder: str) -> int | None:
    """Start three that stay."""
    process = await asyncio.create_subprocess_shell(below(folder))
    return await process.wait()


def pids(folder: Path) -> list[int]:
    return [int(name) for name in os.listdir(folder)]


def alive(folder: Path) -> list[int]:
    return [pid for pid in pids(folder) if zoo.runs(pid)]


@asynccontextmanager
async def building(folder: Path) -> AsyncIterator[Session]:
    model = ScriptedModel([[Call("build", {"folder": str(folder)})], [Say("Done")]])
    agent = Agent(model=model, tools=[build])
    async with Engine(agent, store="memory", config=CONFIG) as engine:
        session = await engine.session("alice")
        await session.send("go")
        await until(lambda: len(pids(folder)) == 3)
        yield session


def check(receipt: Receipt, folder: Path) -> None:
    assert receipt.status is ReceiptStatus.STOPPED
    (step,) = [step for step in receipt.steps if step.kind is StepKind.TOOL]
    assert step.status is CallStatus.STOPPED
    assert step.detail is not None
    assert set(pids(folder)) <= {each.pid for each in step.detail.processes}
    assert all(each.command for each in step.detail.processes)
    assert step.detail.survivors == ()
    assert step.detail.confirmed == (Means.CGROUP in MEANS)
    assert alive(folder) == []


@on_both_loops
async def test_a_stop_of_the_turn(tmp_path: Path) -> None:
    async with building(tmp_path) as session:
        with anyio.fail_after(WITHIN_S):
            check(await session.interrupt(), tmp_path)


@on_both_loops
async def test_a_stop_of_the_call(tmp_path: Path) -> None:
    async with building(tmp_path) as session:
        with anyio.fail_after(WITHIN_S):
            receipt = await session.interrupt(scope=Scope.CALL, target="t1_1_1")
        check(receipt, tmp_path)


@on_both_loops
async def test_the_engine_is_closed(tmp_path: Path) -> None:
    async with building(tmp_path):
        pass
    assert alive(tmp_path) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("ending", ["leaves", "raises", "SIGINT", "SIGTERM", "SIGKILL"])
async def test_the_program_ends(tmp_path: Path, ending: str) -> None:
    """However it does. Nobody is told to close anything by a signal that kills it."""
    if ending in ("SIGTERM", "SIGKILL") and Means.CGROUP not in MEANS:
        pytest.skip("only a cgroup outlasts the program that made it")
    folder = tmp_path / "stayed"
    folder.mkdir()
    program = await anyio.open_process(
        [sys.executable, str(CHILD), str(folder), ending],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    async with program:
        assert program.stdout is not None
        assert await program.stdout.receive() == b"ready\n"
        if ending.startswith("SIG"):
            program.send_signal(signal.Signals[ending])
        with anyio.fail_after(WITHIN_S):
            await program.wait()
    assert len(pids(folder)) == 3
    await until(lambda: alive(folder) == [])
