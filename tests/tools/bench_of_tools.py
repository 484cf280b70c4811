"""Real tools on real processes, and checks that nothing of them is left."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
from anyio.abc import TaskGroup

from bargein.cancel import TaskOwner, abandoned
from bargein.contracts.tool import CallResult
from bargein.process import MeansChoice, open_containment
from bargein.tools import Policy, ToolRegistry, invoke
from bargein.tools.declaration import Tool
from bargein.tools.standard import open_tool_environment, standard_registry
from bargein.tools.tool_environment import ToolEnvironment, ToolSettings
from tests.process import zoo
from tests.process.conftest import MEANS
from tests.tools.desk import Desk, WayOut, call, until

MARK = "BARGEIN_TEST_MARK"


def means_that_work() -> list[str]:
    """Those that this machine has, for the user that runs the tests."""
    return [means.value for means in MEANS]


class Shop:
    """A registry of all built-in tools over one folder."""

    def __init__(
        self,
        tool_environment: ToolEnvironment,
        registry: ToolRegistry,
        owner: TaskOwner,
        mark: str = "",
    ) -> None:
        self.tool_environment = tool_environment
        self.registry = registry
        self.owner = owner
        self.means = tool_environment.containment.means.value
        self.folder = Path(tool_environment.workspace.root)
        self._mark = mark
        self.background: dict[str, tuple[WayOut, list[CallResult]]] = {}
        """Calls that went to the background, with their outcomes once they are over."""

    async def start(
        self,
        group: TaskGroup,
        desk: Desk,
        command: str,
        *,
        call_id: str = "c1",
        **arguments: object,
    ) -> CallResult:
        """Starts a command with `background=true`, and returns what the model reads at once."""
        way_out, results = WayOut(desk), list[CallResult]()
        planned = call("terminal", command=command, background=True, **arguments)

        async def work() -> None:
            context = desk.context(way_out.source.token, call_id, way_out)
            results.append(await invoke(self.registry, planned, context))
            way_out.over.set()

        self.background[call_id] = way_out, results
        group.start_soon(work)
        await way_out.over.wait()
        return way_out.told or results[0]

    async def use(self, desk: Desk, name: str, **arguments: object) -> CallResult:
        return await invoke(self.registry, call(name, **arguments), desk.context())

    async def use_and(
        self,
        desk: Desk,
        meanwhile: Callable[[], Coroutine[object, object, object]],
        name: str,
        **arguments: object,
    ) -> CallResult:
        """Start a call, do something while it runs, give its result."""
        results: list[CallResult] = []

        async def work() -> None:
            results.append(await self.use(desk, name, **arguments))

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await meanwhile()
        return results[0]

    def alive(self) -> list[str]:
        """Whoever carries our mark in its environment and is no zombie."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(MARK) == self._mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except psutil.Error:
                continue
        return found

    def is_alive(self, pid: int | str) -> bool:
        return zoo.runs(int(pid))

    async def file(self, name: str) -> str:
        """Wait for a file that a command writes, and give what is in it."""
        path = self.folder / name
        await until(lambda: path.exists() and path.read_text().endswith("\n"))
        return path.read_text().strip()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def open_shop(
    folder: Path,
    *,
    means: MeansChoice = "auto",
    more: tuple[Tool[..., Any], ...] = (),
    policy: Policy = Policy(),  # noqa: B008 - frozen
    settings: ToolSettings | None = None,
    hidden: tuple[str, ...] = (),
) -> AsyncIterator[Shop]:
    """Everything is there while the block lasts, and nothing of it afterwards."""
    mark = uuid.uuid4().hex
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), MARK: mark}
    before = descriptors()
    async with await open_containment(means) as containment:
        tool_environment = open_tool_environment(
            containment, folder, environment, settings, hidden=hidden
        )
        async with TaskOwner() as owner:
            registry = standard_registry(tool_environment, more, policy=policy)
            shop = Shop(tool_environment, registry, owner, mark)
            yield shop
            await until(lambda: not containment.processes)
            assert shop.alive() == []
            assert registry.resources.held() == ()
            assert abandoned() == []
    assert len(descriptors()) == len(before)


async def warm_the_loop(folder: Path) -> None:
    """A loop opens descriptors of its own when some things are first done on it."""
    async with await open_containment() as containment, TaskOwner() as owner:
        tool_environment = open_tool_environment(containment, folder, {"PATH": os.environ["PATH"]})
        shop = Shop(tool_environment, standard_registry(tool_environment), owner)
        await shop.use(Desk(), "read_file", path=".")
        await shop.use(Desk(), "python", code="from bargein_tools import call")
