"""The terminal program with something in it that refuses to end: `wedged.py KIND`."""

import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from bargein import Agent, Engine, tool
from bargein.cancel import Token
from bargein.cli.chat.app import Chat
from bargein.contracts.event import TurnSettled
from bargein.contracts.model import ModelRequest, ModelStream
from bargein.contracts.store import Commit
from bargein.models.script import load_script
from bargein.models.scripted import ScriptedModel
from bargein.runtime.config import Config, load_config
from bargein.stores.memory import MemoryStore


@tool
def deaf() -> str:
    """A thread that listens to nobody."""
    time.sleep(1000)
    return ""


@tool
async def holder() -> str:
    """Holds the interpreter itself when it is stopped: no Python runs any more."""
    try:
        await anyio.sleep(1000)
    finally:
        re.match(r"(a+)+$", "a" * 40 + "b")
    return ""


class DeafModel(ScriptedModel):
    """A model that does not hang up."""

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:  # type: ignore[override]
        while True:
            try:
                await anyio.sleep(1000)
            except BaseException:  # boundary: refusing to end is what it is for
                continue
        yield super().open(request, token)


class StuckStore(MemoryStore):
    """A disk that does not answer when the end of a turn is to be written."""

    async def commit_one(self, commit: Commit) -> None:
        if any(isinstance(event, TurnSettled) for event in commit.events):
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1000)
        await super().commit_one(commit)


def open_engine(config: Config, on_notice: Callable[[str], object]) -> Engine:
    kind = sys.argv[1]
    script = load_script(Path("script.toml"))
    model = (DeafModel if kind == "model" else ScriptedModel)(script)
    store = StuckStore() if kind == "store" else MemoryStore()
    return Engine(Agent(model=model, tools=[deaf, holder]), store=store, config=config)


async def main() -> int:
    return await Chat(load_config(), open_engine=open_engine).run()


if __name__ == "__main__":
    sys.exit(anyio.run(main))
