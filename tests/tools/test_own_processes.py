"""Processes that a tool's code starts by itself end with the call and are reported."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Literal

import pytest

from bargein import Agent, Engine
from bargein.cancel import TaskOwner, abandoned, in_empty_context, shield
from bargein.contracts.tool import CallResult, CallStatus
from bargein.models import ScriptedModel
from bargein.process import (
    Containment,
    MeansChoice,
    OwnProcesses,
    containment_when_needed,
    fork_hooks,
    open_containment,
)
from bargein.process.own_enclosures import OwnCgroup
from bargein.tools import Policy, tool
from bargein.tools.standard import open_tool_environment, standard_registry
from tests.process import zoo
from tests.tools.bench_of_tools import Shop, descriptors, means_that_work
from tests.tools.desk import Desk, text_of, until
from tests.tools.own_ways import STAY, WAYS, argv, below

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)

MEANS = means_that_work()


_HELD: list[subprocess.Popen[bytes]] = []
"""Those that nobody waits for. Python warns of one that is forgotten before it has ended."""


@pytest.fixture(autouse=True)
def nobody_is_held() -> Iterator[None]:
    yield
    while _HELD:
        _HELD.pop().wait()


@pytest.fixture(autouse=True, scope="module")
def no_server_is_left() -> Iterator[None]:
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@tool(timeout_s=lambda arguments: 0.5)
def runs_too_long(folder: str) -> int:
    return subprocess.run(below(folder), shell=True, check=False).returncode


@tool
def leaves_some(folder: str) -> str:
    """Returns while they run."""
    _HELD.append(subprocess.Popen(below(folder), shell=True))
    while len(os.listdir(folder)) < 3:
        time.sleep(0.002)
    return "started"


@tool
def leaves_one_for_all(folder: str) -> str:
    """What many calls share is started outside of this one."""
    process: subprocess.Popen[bytes] = in_empty_context(subprocess.Popen, argv(folder))
    _HELD.append(process)
    return str(process.pid)


@tool
def starts_nothing(text: str) -> str:
    return text


@tool
async def starts_nothing_in_the_loop(text: str) -> str:
    return text


@tool
def fails(folder: str) -> str:
    _HELD.append(subprocess.Popen(argv(folder)))
    while not os.listdir(folder):
        time.sleep(0.002)
    raise ValueError("it went wrong")


@tool
async def cleans_up(folder: str) -> None:
    """Has a command of its own for it, which a stop lets run."""
    await asyncio.create_subprocess_exec(*argv(folder))
    try:
        await asyncio.sleep(120)
    finally:
        with shield(5):
            done = await asyncio.create_subprocess_shell(f"sleep 0.4; touch {folder}/cleaned")
            await done.wait()


@tool(grace_s=0.2)
def goes_on(folder: str) -> None:
    """Does not hear of the stop, and starts one after the other."""
    for _ in range(1000):
        subprocess.run(argv(folder), check=False)


@tool(grace_s=10)
def run_patiently(folder: str) -> int:
    return subprocess.run(argv(folder), check=False).returncode


@tool
async def blocks_the_loop(folder: str) -> int:
    return subprocess.run(argv(folder), check=False).returncode  # noqa: ASYNC221 - what it is for


@tool
def ignores_the_signal(folder: str) -> int:
    return subprocess.run(["sh", "-c", "trap '' TERM INT; " + STAY, folder], check=False).returncode


MORE = (
    runs_too_long, leaves_some, leaves_one_for_all, starts_nothing,
    starts_nothing_in_the_loop, fails, cleans_up, goes_on,
    run_patiently, blocks_the_loop, ignores_the_signal,
)  # fmt: skip


class Stayed:
    """Who has left a file in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def pids(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self.folder) if name.isdigit())

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if zoo.runs(pid)]

    async def are(self, number: int) -> None:
        await until(lambda: len(self.pids()) >= number)


@asynccontextmanager
async def opened(
    folder: Path, means: MeansChoice | Literal["when needed"] = "auto"
) -> AsyncIterator[tuple[Shop, Stayed]]:
    """The built-in tools and all ways. Not by `open_shop`, which counts descriptors: event loops
    and `multiprocessing` keep some that they open on first use."""
    tools = [each for each, _ in WAYS.values()]
    environment = {"PATH": os.environ["PATH"]}
    if means == "when needed":
        held = containment_when_needed()
    else:
        held = await open_containment(means)
    async with held as containment, TaskOwner() as owner:
        tool_environment = open_tool_environment(containment, folder, environment)
        registry = standard_registry(tool_environment, [*tools, *MORE], policy=Policy())
        yield Shop(tool_environment, registry, owner), Stayed(folder / "stayed")
        assert registry.resources.held() == ()
        assert abandoned() == []
        await until(lambda: containment.own_processes == (), within_s=5)


async def stop_when_there(
    shop: Shop, stayed: Stayed, way: str, stop: Callable[[Desk], object] = Desk.stop
) -> CallResult:
    desk = Desk()

    async def meanwhile() -> None:
        await stayed.are(WAYS[way][1])
        stop(desk)

    return await shop.use_and(desk, meanwhile, way, folder=str(stayed.folder))


# What the loop has a part in is tried on both.
_CASES = [
    *(("asyncio", way) for way in WAYS),
    *(("uvloop", way) for way in WAYS if way.startswith(("async_", "in_", "to_", "fork"))),
]


@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize(("anyio_backend", "way"), _CASES, indirect=["anyio_backend"])
async def test_a_stop_ends_whatever_the_tool_started(
    tmp_path: Path, way: str, means: MeansChoice
) -> None:
    async with opened(tmp_path, means) as (shop, stayed):
        result = await stop_when_there(shop, stayed, way)
        assert stayed.alive() == []
        assert result.status in (CallStatus.STOPPED, CallStatus.ABANDONED), text_of(result)
        assert result.stop is not None
        assert result.stop.survivors == ()
        assert set(stayed.pids()) <= {each.pid for each in result.stop.processes}
        if result.status is CallStatus.STOPPED:
            assert result.stop.confirmed == (means == "cgroup")
        await until(lambda: not shop.registry.resources.held() and not abandoned())


@on_both_loops
async def test_a_time_limit_ends_them_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        result = await shop.use(Desk(), "runs_too_long", folder=str(stayed.folder))
        assert result.status is CallStatus.STOPPED
        assert "time limit" in text_of(result)
        assert stayed.alive() == []


@on_both_loops
@pytest.mark.parametrize("means", MEANS)
async def test_what_a_finished_call_left_running_is_ended_and_named(
    tmp_path: Path, means: MeansChoice
) -> None:
    async with opened(tmp_path, means) as (shop, stayed):
        result = await shop.use(Desk(), "leaves_some", folder=str(stayed.folder))
        assert result.status is CallStatus.FINISHED
        assert stayed.alive() == []
        text = text_of(result)
        assert text.startswith("started")
        assert "left running by it, and ended with it" in text
        assert all(f"pid {pid}" in text for pid in stayed.pids())


@on_both_loops
async def test_what_a_failed_call_left_running_is_ended_and_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        result = await shop.use(Desk(), "fails", folder=str(stayed.folder))
        assert result.status is CallStatus.FAILED
        assert stayed.alive() == []
        assert "it went wrong" in text_of(result)
        assert f"pid {stayed.pids()[0]}" in text_of(result)


@on_both_loops
async def test_what_is_started_outside_of_a_call_is_not_touched(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        ours = subprocess.Popen(argv(str(stayed.folder)))  # noqa: ASYNC220
        shared = int(
            text_of(await shop.use(Desk(), "leaves_one_for_all", folder=str(stayed.folder)))
        )
        try:
            await stayed.are(2)
            await stop_when_there(shop, stayed, "run")
            assert stayed.alive() == sorted([ours.pid, shared])
        finally:
            ours.kill()
            ours.wait()
            os.kill(shared, 9)


@on_both_loops
async def test_a_stop_of_one_call_leaves_the_processes_of_another_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        other = Stayed(tmp_path / "other")
        desk = Desk()

        async def meanwhile() -> None:
            await other.are(1)
            result = await stop_when_there(shop, stayed, "in_pool")
            assert result.status is CallStatus.STOPPED
            assert stayed.alive() == []
            assert other.alive() == other.pids()
            desk.stop()

        await shop.use_and(desk, meanwhile, "in_thread", folder=str(other.folder))
        assert other.alive() == []


@on_both_loops
async def test_cleaning_up_may_take_as_long_as_the_call_may(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        desk = Desk()

        async def meanwhile() -> None:
            await stayed.are(1)
            desk.stop()

        result = await shop.use_and(desk, meanwhile, "cleans_up", folder=str(stayed.folder))
        assert result.status is CallStatus.STOPPED
        assert (stayed.folder / "cleaned").exists()


@on_both_loops
@pytest.mark.parametrize("means", MEANS)
async def test_a_stopped_call_that_goes_on_starts_nothing_more(
    tmp_path: Path, means: MeansChoice
) -> None:
    async with opened(tmp_path, means) as (shop, stayed):
        desk = Desk()

        async def meanwhile() -> None:
            await stayed.are(1)
            desk.stop()

        result = await shop.use_and(desk, meanwhile, "goes_on", folder=str(stayed.folder))
        assert result.status in (CallStatus.ABANDONED, CallStatus.STOPPED)
        assert stayed.alive() == []
        # Its thread ends by the refusal.
        await until(lambda: not abandoned())
        assert stayed.alive() == []


@on_both_loops
@pytest.mark.skipif("cgroup" not in MEANS, reason="only a cgroup is entered")
async def test_a_child_that_enters_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entering can take the kernel tens of milliseconds. A stop must not find it empty before."""
    forked = tmp_path / "forked"
    enter = OwnCgroup.enter

    def enter_slowly(enclosure: OwnCgroup) -> bool:
        forked.touch()
        time.sleep(0.4)
        return enter(enclosure)

    monkeypatch.setattr(OwnCgroup, "enter", enter_slowly)
    async with opened(tmp_path) as (shop, stayed):
        desk = Desk()

        async def meanwhile() -> None:
            await until(forked.exists)
            desk.stop()

        result = await shop.use_and(desk, meanwhile, "run_patiently", folder=str(stayed.folder))
        assert result.status is CallStatus.STOPPED
        assert result.stop is not None
        assert result.stop.confirmed
        assert stayed.alive() == []


@on_both_loops
async def test_one_that_ignores_the_first_signal_is_killed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        desk = Desk()

        async def meanwhile() -> None:
            await stayed.are(1)
            desk.stop()

        result = await shop.use_and(
            desk, meanwhile, "ignores_the_signal", folder=str(stayed.folder)
        )
        assert stayed.alive() == []
        assert result.stop is not None
        assert [each.ended_by for each in result.stop.processes] == ["SIGKILL"]


@on_both_loops
async def test_a_stop_from_another_thread_frees_a_loop_that_waits_for_a_process(
    tmp_path: Path,
) -> None:
    """An async function that blocks holds up the loop, but not the first signal of a stop."""
    async with opened(tmp_path) as (shop, stayed):
        desk = Desk()

        def stop() -> None:
            while not stayed.pids():
                time.sleep(0.002)
            desk.stop()

        thread = in_empty_context(threading.Thread, target=stop)
        in_empty_context(thread.start)
        result = await shop.use(desk, "blocks_the_loop", folder=str(stayed.folder))
        thread.join()
        assert result.status is CallStatus.STOPPED
        assert stayed.alive() == []


class Costs:
    """Counts where the cost of a process begins: the hooks that know a call, and the making of an
    enclosure (a cgroup, or the pipe of a sweep)."""

    def __init__(self, containment: Containment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        backend = containment._backend
        for where, name in (
            (OwnProcesses, "admit"),
            (OwnProcesses, "lost"),
            (OwnProcesses, "finish"),
            (backend, "make_own_enclosure"),
        ):
            monkeypatch.setattr(where, name, self._counted(name, getattr(where, name)))

    def _counted(self, name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.seen.append(name)
            return really(*arguments, **options)

        return counted


@on_both_loops
@pytest.mark.parametrize("means", [*MEANS, "when needed"])
@pytest.mark.parametrize("tool_name", ["starts_nothing", "starts_nothing_in_the_loop"])
async def test_a_tool_that_starts_no_process_pays_nothing(
    tmp_path: Path,
    means: MeansChoice | Literal["when needed"],
    tool_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(tmp_path, means) as (shop, stayed):
        containment = shop.tool_environment.containment
        costs = Costs(containment, monkeypatch)
        await shop.use(Desk(), tool_name, text="the first call imports and starts what it needs")
        before = descriptors()
        result = await shop.use(Desk(), tool_name, text="hello")
        assert (text_of(result), result.stop) == ("hello", None)
        assert costs.seen == []
        assert containment.own_processes == ()
        if means == "when needed":
            # The other means have a spare process for the next command, which may just come.
            assert descriptors() == before
        # One that starts a process is seen at each of these places.
        await stop_when_there(shop, stayed, "run")
        assert set(costs.seen) == {"admit", "make_own_enclosure", "finish"}


def hooked() -> list[object]:
    names = ("posix_spawn", "posix_spawnp", "system")
    return [
        subprocess._fork_exec,  # type: ignore[attr-defined]
        *(getattr(os, name) for name in names),
        forkserver.connect_to_new_process,
        threading.Thread.start,
        ThreadPoolExecutor.submit,
    ]


@on_both_loops
async def test_only_an_engine_that_runs_has_hooks(tmp_path: Path) -> None:
    before = hooked()
    engine = Engine(Agent(ScriptedModel([]), tools=[starts_nothing]), home=tmp_path / "home")
    assert hooked() == before
    async with engine:
        assert not any(ours is theirs for ours, theirs in zip(hooked(), before, strict=True))
    assert hooked() == before


@on_both_loops
async def test_the_hooks_are_gone_when_nothing_is_open(tmp_path: Path) -> None:
    before = hooked()
    async with opened(tmp_path), await open_containment():
        assert hooked() != before
    assert hooked() == before


@on_both_loops
async def test_they_end_though_whoever_waits_for_the_call_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        waiting = asyncio.ensure_future(shop.use(Desk(), "async_shell", folder=str(stayed.folder)))
        await stayed.are(3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: stayed.alive() == [])


@on_both_loops
async def test_a_stop_leaves_another_calls_worker_of_the_same_server_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (shop, stayed):
        other = Stayed(tmp_path / "other")
        desk = Desk()

        async def meanwhile() -> None:
            await other.are(1)
            result = await stop_when_there(shop, stayed, "multiprocessing_forkserver")
            assert result.status is CallStatus.STOPPED
            assert stayed.alive() == []
            assert other.alive() == other.pids()
            desk.stop()

        way = "multiprocessing_forkserver"
        result = await shop.use_and(desk, meanwhile, way, folder=str(other.folder))
        assert result.stop is not None
        assert {each.pid for each in result.stop.processes} == set(other.pids())
        assert other.alive() == []


@on_both_loops
@pytest.mark.skipif("cgroup" not in MEANS, reason="only a cgroup is entered")
async def test_a_worker_that_cannot_be_put_inside_is_ended_and_named_but_not_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in = OwnCgroup.take_in

    def without_permission(enclosure: OwnCgroup, pid: int) -> None:
        entry, enclosure._entry = enclosure._entry, os.open(os.devnull, os.O_RDONLY)
        take_in(enclosure, pid)
        os.close(enclosure._entry)
        enclosure._entry = entry

    monkeypatch.setattr(OwnCgroup, "take_in", without_permission)
    async with opened(tmp_path) as (shop, stayed):
        result = await stop_when_there(shop, stayed, "multiprocessing_forkserver")
        assert result.stop is not None
        assert not result.stop.confirmed
        assert stayed.alive() == []
        [ended] = result.stop.processes
        assert [ended.pid] == stayed.pids()
        assert "multiprocessing.forkserver" in ended.command


@on_both_loops
async def test_a_worker_whose_pid_is_not_known_is_not_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_hooks._ForkServer, "_peek_at_pid", lambda *_: 0)
    async with opened(tmp_path) as (shop, stayed):
        desk = Desk()

        async def meanwhile() -> None:
            await stayed.are(1)
            desk.stop()

        way = "multiprocessing_forkserver"
        result = await shop.use_and(desk, meanwhile, way, folder=str(stayed.folder))
        assert result.stop is not None
        assert not result.stop.confirmed
        for pid in stayed.alive():
            os.kill(pid, 9)
        await until(lambda: not abandoned())


_FIRST_USE = """
import asyncio, sys, time
from bargein.cancel import CancelSource
from bargein.process import Ladder, open_containment
from bargein.process.fork_hooks import process_owner

async def main():
    async with await open_containment() as containment:
        own = containment.own_processes_of(CancelSource("call").token, Ladder())
        process_owner.set(own)
        import multiprocessing
        worker = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(120,))
        worker.start()
        report = await own.finish()
        worker.join()
        assert [each.pid for each in report.processes] == [worker.pid], report
        assert report.survivors == (), report

asyncio.run(main())
"""


@on_both_loops
async def test_the_first_worker_of_a_server_that_the_call_starts_is_held() -> None:
    """In a program that has not used `multiprocessing` before the call."""
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", _FIRST_USE)
    assert await done.wait() == 0
