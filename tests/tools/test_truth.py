"""Stops at random moments, with many calls at once: what is reported of each call is what happened.
And a plan has no effect."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import anyio
import pytest

from bargein.calls.pipeline import run_planned
from bargein.cancel import Cause
from bargein.contracts.tool import CallResult, CallStatus, PlannedCall
from tests.conftest import BACKENDS, Backend
from tests.tools.bench_of_tools import Shop
from tests.tools.desk import Desk, call, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

OUTCOMES = {CallStatus.NOT_STARTED, CallStatus.STOPPED, CallStatus.FINISHED}
CALLS_AT_ONCE = 8


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


def arguments(kind: str, number: int, length_s: float) -> tuple[str, dict[str, object]]:
    """A call that leaves a mark when it begins, and another when it has done all it should."""
    shell = (
        f"echo > begun{number}; (setsid sleep 1000 &) ; sleep {length_s:.3f}; echo > done{number}"
    )
    if kind == "terminal":
        return "terminal", {"command": shell}
    if kind == "pty":
        return "terminal", {"command": shell, "pty": True}
    if kind == "python":
        code = f"open('begun{number}', 'w').close()\nimport time; time.sleep({length_s:.3f})\n"
        return "python", {"code": code + f"open('done{number}', 'w').close()"}
    code = f"from bargein_tools import terminal\nterminal({shell!r})"
    return "python", {"code": code}


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_told_is_what_happened(shop: Shop, seed: int) -> None:
    choose = random.Random(seed)
    kinds: dict[int, str] = {}
    results: dict[int, CallResult] = {}

    async def one(number: int, kind: str, length_s: float, stop_s: float) -> None:
        desk = Desk(f"s{number}")
        name, given = arguments(kind, number, length_s)
        planned = shop.registry.plan(call(name, **given))

        async def stop() -> None:
            await anyio.sleep(stop_s)
            desk.turn.cancel(Cause.USER_STOP)

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            results[number] = await run_planned(shop.registry, planned, desk.context())  # type: ignore[arg-type]
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for number in range(CALLS_AT_ONCE):
            kind = kinds[number] = choose.choice(["terminal", "pty", "python", "nested"])
            length_s = choose.uniform(0, 0.3)
            group.start_soon(one, number, kind, length_s, choose.uniform(0, 0.6))
    for number, result in results.items():
        told = f"{kinds[number]}: {result.status} {text_of(result)}"
        check(shop.folder, number, result.status, told)
    assert shop.alive() == []


def check(folder: Path, number: int, status: CallStatus, told: str) -> None:
    begun, done = (folder / f"begun{number}").exists(), (folder / f"done{number}").exists()
    assert status in OUTCOMES, told
    if status is CallStatus.NOT_STARTED:
        assert not begun, told
    if status is CallStatus.FINISHED:
        assert done, told


class Opened:
    """Notes every file that this thread opens while it is watched. A hook cannot be taken out."""

    def __init__(self) -> None:
        self.watched = False
        self.paths: list[object] = []
        self._thread = threading.get_ident()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if (
            self.watched
            and threading.get_ident() == self._thread
            and event in ("open", "os.listdir", "os.scandir")
        ):
            self.paths.append(arguments[0])


async def test_a_plan_does_not_touch_the_file_system(shop: Shop) -> None:
    """It is made in the event loop, and a network drive that is gone would stop everybody."""
    opened = Opened()
    (shop.folder / "a").write_text("a")
    for name, arguments in (
        ("write_file", {"path": "a", "content": ""}),
        ("edit_file", {"path": "./a", "old_text": "a", "new_text": "b"}),
        ("read_file", {"path": "a"}),
        ("search_files", {"pattern": "a", "path": "sub"}),
        ("terminal", {"command": "rm -r x", "cwd": "sub"}),
        ("python", {"code": "1"}),
        ("process", {"action": "list"}),
        ("web_fetch", {"url": "http://localhost/"}),
    ):
        opened.watched = True
        planned = shop.registry.plan(call(name, **arguments))
        opened.watched = False
        assert isinstance(planned, PlannedCall), planned
        assert opened.paths == [], name
