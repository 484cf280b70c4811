"""A program that rolls a turn back and is killed while the turn stops, before the undo, or after it
but before the session has heard of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import anyio

from bargein import Agent, Engine
from bargein.checkpoints.keeper import Keeper
from bargein.contracts.checkpoint import FilesUndone, Span
from bargein.contracts.live import CallOutput, OutputSoFar
from bargein.models.script import Call
from bargein.models.scripted import ScriptedModel

WORK = "echo theirs > kept.txt; echo new > made; mkdir deep"
WAIT = "echo ready; sleep 60"
_undo = Keeper.undo


async def before(
    keeper: Keeper, spans: Sequence[Span], overrule: Sequence[str] = ()
) -> FilesUndone:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process has been killed")


async def after(keeper: Keeper, spans: Sequence[Span], overrule: Sequence[str] = ()) -> FilesUndone:
    await _undo(keeper, spans, overrule)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process has been killed")


async def main(workspace: Path, moment: str) -> None:
    Keeper.undo = after if moment == "after" else before  # type: ignore[method-assign,assignment] # they have the same parameters
    calls = [[Call("terminal", {"command": command})] for command in (WORK, WAIT)]
    model = ScriptedModel(calls)
    agent = Agent(model, workspace=workspace, mode="full")
    async with Engine(agent, home=workspace.parent / "home") as engine:
        session = await engine.session("s")
        await session.send("go")
        async with aclosing(session.watch()) as events:
            async for event in events:
                if isinstance(event, CallOutput | OutputSoFar):
                    break
        await session.send("otherwise", mode="rollback")
        if moment == "stopping":
            os.kill(os.getpid(), signal.SIGKILL)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
