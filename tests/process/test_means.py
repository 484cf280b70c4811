"""Which means is chosen, how it is described, and what happens if a named one does not work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import get_ident

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.process import Means, MeansUnavailable, listing, open_containment, waiting
from bargein.process.cgroup_instance import Instance, NoCgroup, _own_path, own_directory
from bargein.process.containment import Containment
from bargein.process.group import GroupBackend
from bargein.process.helper_process import HelperProcess
from bargein.process.probe import _reap
from bargein.process.values import ContainmentReport
from bargein.process.waiting import DescriptorWatch, Event, OnEvent
from tests.process import zoo
from tests.process.conftest import MEANS
from tests.process.keeper import SHORT, keep
from tests.process.ordinary_user import as_ordinary_user
from tests.process.zoo import ZOO

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

PROBE = """
import asyncio, json
from bargein.process import open_containment
async def main():
    async with await open_containment() as containment:
        tried = [(each.means, each.works, each.errno_name) for each in containment.report.attempts]
        print(json.dumps([containment.means, tried]))
asyncio.run(main())
"""


async def test_the_best_that_works_is_chosen() -> None:
    async with await open_containment() as containment:
        report = containment.report
    assert report.means is MEANS[0]
    assert [each.means for each in report.attempts if each.works] == [report.means]
    assert report.promise == report.means.promise


async def test_the_one_that_is_named_is_used(means: Means) -> None:
    async with await open_containment(means.value) as containment:
        assert containment.means is means
        assert [each.means for each in containment.report.attempts] == [means]


async def test_opening_that_is_cancelled_leaves_nothing(
    warm_loop: None, means: Means, leaves_nothing: None
) -> None:
    """The scope that was cancelled stays so while what was begun is given back."""
    for steps in (0, 1, 3, 10):
        with anyio.CancelScope() as scope:
            _after(steps, scope.cancel)
            containment = await open_containment(means.value)
            await containment.aclose(SHORT)


def _after(steps: int, call: Callable[[], object]) -> None:
    """Call it when the loop has gone round so often."""
    loop = asyncio.get_running_loop()
    loop.call_soon(partial(_after, steps - 1, call) if steps else call)


@pytest.mark.skipif(sys.platform != "linux", reason="the helper is for Linux")
async def test_a_cancel_that_meets_the_answer_of_the_helper_is_not_lost(warm_loop: None) -> None:
    class Meeting(DescriptorWatch):
        def add(self, fd: int, event: Event, on_event: OnEvent) -> None:
            def hear() -> None:
                on_event()
                asked.cancel()

            super().add(fd, event, hear if asking else on_event)

    loop = asyncio.get_running_loop()
    watch = Meeting(loop)
    helper = HelperProcess(watch)
    asking = False
    # Started before anybody asks: what is heard of itself is not the answer.
    helper.order(("none",), [])
    asking = True
    asked = loop.create_task(_reap(watch, helper, []))
    try:
        with pytest.raises(asyncio.CancelledError):
            await asked
    finally:
        await helper.close()
        watch.close()


def test_what_an_ordinary_user_gets() -> None:
    """Without a cgroup of their own; with the reason why, and the next best means."""
    done = subprocess.run(
        [*as_ordinary_user(), sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    means, attempts = json.loads(done.stdout)
    if means == Means.SUPERVISOR:
        assert attempts[0][:2] == ["cgroup", False]
        assert attempts[0][2] in ("EACCES", "EPERM", "EROFS", "ENOENT", None)
        assert attempts[1] == ["supervisor", True, None]
    else:
        assert means == Means.CGROUP


async def test_a_means_that_was_named_and_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from bargein.process import helper_process

    monkeypatch.setattr(helper_process, "_PROGRAM", "import os; os._exit(1)")
    with pytest.raises(MeansUnavailable, match="supervisor"):
        await open_containment("supervisor")
    async with await open_containment() as containment:
        assert containment.means is Means.GROUP
        failed = containment.report.attempts[:2]
        assert [(each.means, each.works) for each in failed] == [
            (Means.CGROUP, False),
            (Means.SUPERVISOR, False),
        ]


async def test_a_group_where_there_are_no_pidfds() -> None:
    """As on macOS: a thread waits."""
    watch = DescriptorWatch(asyncio.get_running_loop())
    report = ContainmentReport(Means.GROUP, Means.GROUP.promise, ())
    containment = Containment(watch, GroupBackend(watch, pidfds=False), report, None)
    async with containment:
        source = CancelSource("call")
        done = await containment.spawn(["sh", "-c", "exit 4"], cwd="/", env={}, token=source.token)
        assert (await done.wait()).code == 4
        kept = await keep(containment, ZOO["family"], source.token)
        source.cancel(Cause.USER_STOP)
        report_of_stop = await kept.process.stop()
        assert not report_of_stop.confirmed
        assert zoo.alive(kept.mark) == []


async def test_a_stop_gives_way_to_what_it_has_signalled_and_a_crowd_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(waiting, "GIVE_WAY_EVERY_S", 60.0)
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(get_ident()))
    async with await open_containment() as containment:
        source = CancelSource("calls")
        crowd = [
            await containment.spawn(["sleep", "60"], cwd="/", env={}, token=source.token)
            for _ in range(5)
        ]
        assert get_ident() not in given
        source.cancel(Cause.USER_STOP)
        for process in crowd:
            assert (await process.stop()).confirmed
        assert given.count(get_ident()) == 1


async def test_a_list_that_is_older_than_a_command_does_not_make_it_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list of processes is shared by all commands, and each may be a moment old."""
    monkeypatch.setattr(listing, "_RECENT_S", 60)
    async with await open_containment("group") as containment:
        source, mark = CancelSource("call"), zoo.new_mark()
        first = await keep(containment, ZOO["sleeper"], source.token)
        await first.process.stop()
        left = await containment.spawn(
            ["sh", "-c", "sleep 600 &"], cwd="/", env=zoo.environment(mark), token=source.token
        )
        await left.wait()
        assert left.alive
        monkeypatch.undo()
        await left.stop(SHORT)
        assert zoo.alive(mark) == []


async def test_survivors_of_a_group_are_named() -> None:
    async with await open_containment("group") as containment:
        source = CancelSource("call")
        kept = await keep(containment, ZOO["setsid"], source.token)
        report = await kept.process.stop()
        assert {each.pid for each in report.survivors} == set(zoo.alive(kept.mark))
        assert all("animals.py setsid" in each.command for each in report.survivors)
        zoo.put_down(kept.mark)


def test_a_process_without_a_cgroup_v2() -> None:
    with pytest.raises(NoCgroup):
        _own_path("3:cpu:/\n1:name=systemd:/\n")
    assert _own_path("1:cpu:/\n0::/user.slice/a b\n") == "/user.slice/a b"


@pytest.mark.skipif(Means.CGROUP not in MEANS, reason="this user has no cgroup of their own")
def test_an_instance_is_noted_while_it_is_there(tmp_path: Path) -> None:
    instance = Instance(own_directory(), tmp_path)
    notes = tmp_path / "cgroups"
    assert os.listdir(notes) == [instance.directory.name]
    assert (notes / instance.directory.name).read_text().strip() == str(instance.directory)
    instance.close()
    assert os.listdir(notes) == []
    assert not instance.directory.exists()
