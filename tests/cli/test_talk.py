"""A conversation without a terminal: what it tells its face, and what it does not."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.cli.chat.commands import run_command
from bargein.cli.chat.talk import Talk, Work
from bargein.cli.config import Config, load_config
from bargein.cli.wiring import Agent, Engine
from bargein.contracts.event import Recorded
from bargein.contracts.model import Model
from bargein.session.broadcast import Watched

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class HeardFace:
    """A `Face` that keeps what it is told, and what it shall begin."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.noticed: list[str] = []
        self.spawned: list[Work] = []

    def tell(self, style: str, words: str) -> None:
        self.told.append(words)

    def show(self, event: Watched) -> None:
        pass

    def show_again(self, log: list[Recorded]) -> None:
        pass

    def notice(self, words: str) -> None:
        self.noticed.append(words)

    def put_back(self, text: str) -> None:
        self.told.append(f"put back: {text}")

    def leave(self) -> None:
        pass

    def changed(self) -> None:
        pass

    def spawn(self, work: Work) -> None:
        self.spawned.append(work)


@asynccontextmanager
async def talking(face: HeardFace, model: str | Model, home: Path) -> AsyncIterator[Talk]:
    """A conversation that is ready, with an engine that keeps nothing."""

    def open_engine(config: Config, on_notice: Callable[[str], object]) -> Engine:
        agent = Agent(model=model, asks=True)
        return Engine(agent, config=config, store="memory", on_notice=on_notice)

    talk = Talk(load_config({"BARGEIN_HOME": str(home)}), face, open_engine=open_engine)
    async with anyio.create_task_group() as group:
        group.start_soon(talk.run)
        await talk.ready.wait()
        yield talk
        group.cancel_scope.cancel()


async def test_the_tools_of_a_model_that_is_given_none_are_told_as_another_ones(
    tmp_path: Path,
) -> None:
    face = HeardFace()
    async with talking(face, "local", tmp_path) as talk:
        face.told.clear()
        await run_command(talk, "/tools")
        await run_command(talk, "/model openai:any@http://127.0.0.1:9/v1")
        await run_command(talk, "/tools")
    of_local, _, of_another = face.told
    assert of_local.startswith("local is given none of these")
    assert "  ask  " in of_local
    assert of_another.startswith("  ask  ")
