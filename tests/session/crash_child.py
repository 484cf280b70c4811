"""A program that is killed: an engine on a real file, whose turns have effects.

`python -m tests.session.crash_child DIRECTORY` imports everything once, and then forks a child for
each line that it reads: the child opens the engine, sends messages, and writes down what it was
told about each and what its tool did. A line says at which step, and how many seconds later, the
child is killed, whatever it is doing then; step 1 is the beginning of its recovery.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from bargein.cancel import Token
from bargein.contracts.model import (
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    StopReason,
    TextPart,
    ToolMessage,
    Usage,
)
from bargein.models.settings import ModelSettings
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config
from bargein.runtime.engine import Engine
from bargein.session.limits import Limits
from bargein.tools import ToolContext

MESSAGES = 14
LIMITS = Limits(checkpoint_s=0.003)


class Fate:
    """Counts steps, and ends the process soon after the last one that it is given."""

    def __init__(self, steps: int, delay_s: float) -> None:
        self._left = steps
        self._delay_s = delay_s

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            threading.Timer(self._delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


class Talker:
    """A model that says some words, calls the tool once, and says that it is done."""

    name = "talker"
    context_tokens = None

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[Stream]:
        yield Stream(self._fate, isinstance(request.messages[-1], ToolMessage), token)

    async def aclose(self) -> None:
        pass


class Stream:
    usage = Usage()

    def __init__(self, fate: Fate, done: bool, token: Token) -> None:
        self._fate = fate
        self._done = done
        self._token = token

    async def __aiter__(self) -> AsyncIterator[Part]:
        for word in ("Done. ", "All ", "of ", "it.") if self._done else ("I ", "will ", "do it. "):
            with self._token.scope():
                await anyio.sleep(0.001)
            self._token.check()
            self._fate.step()
            yield TextPart(word)
        if not self._done:
            yield CallPart(0, "call", "append", "{}")
        yield EndPart(StopReason.END if self._done else StopReason.TOOL_CALLS)


def note(path: Path, line: str) -> None:
    """On the disk, as far as this process can see to it, in one step."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def say(line: str) -> None:
    """To whoever started us."""
    os.write(1, f"{line}\n".encode())


async def live(directory: Path, fate: Fate) -> None:
    def append(context: ToolContext) -> str:
        """Have an effect."""
        fate.step()
        time.sleep(0.001)
        note(directory / "effects", context.call_id)
        fate.step()
        time.sleep(0.001)
        return "appended"

    agent = Agent(model=Talker(fate), tools=[append])
    config = Config(directory, ModelSettings(), {})
    fate.step()
    async with Engine(agent, home=directory / "home", config=config, limits=LIMITS) as engine:
        fate.step()
        session = await engine.session("alice")
        acknowledged = directory / "acknowledged"
        known = acknowledged.read_text().split() if acknowledged.exists() else []
        modes = (directory / "modes").read_text().split()
        # What was not acknowledged is sent again, as any client would.
        for number in range(len(known), MESSAGES):
            await session.send(f"message {number}", mode=modes[number], client_id=f"c{number}")
            fate.step()
            note(acknowledged, f"c{number}")
            await anyio.sleep(0.003)
        while (await session.state()).busy:
            with anyio.move_on_after(0.005):
                await anyio.sleep_forever()
        if (await session.state()).held:
            await session.continue_()
    note(directory / "finished", "yes")


def main() -> None:
    directory = Path(sys.argv[1])
    for line in sys.stdin:
        steps, delay_s = line.split()
        child = os.fork()
        if child == 0:
            fate = Fate(int(steps), float(delay_s))
            anyio.run(live, directory, fate, backend_options={"use_uvloop": True})
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"ended {status}")


if __name__ == "__main__":
    main()
