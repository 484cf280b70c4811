"""Law 7 over every animal, every means and every way to stop."""

from __future__ import annotations

import asyncio

import pytest

from bargein.cancel import CancelSource, Cause, start_thread
from bargein.process import Containment, Means, StopReport, open_containment
from tests.process import zoo
from tests.process.conftest import MEANS
from tests.process.keeper import SHORT, Kept, keep
from tests.process.zoo import ZOO, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

# Far below the life of an animal, and far above what a busy machine needs.
BOUND_MS = 1000 * SHORT.total_s


def check(kind: Kind, kept: Kept, report: StopReport) -> None:
    survivors = zoo.alive(kept.mark)
    if report.means is Means.GROUP:
        assert not report.confirmed
        if kind.escapes_group:
            zoo.put_down(kept.mark)
            return
    else:
        assert report.confirmed
        assert report.survivors == ()
        assert not kept.process.alive
    assert survivors == []
    assert report.elapsed_ms < BOUND_MS
    if not report.found_over:
        assert kept.process.pid in [each.pid for each in report.processes] or kept.process.exit


@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_nobody_survives_a_stop(
    containment: Containment, source: CancelSource, kind: Kind
) -> None:
    kept = await keep(containment, kind, source.token)
    check(kind, kept, await kept.process.stop())


@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_nobody_survives_a_cancel_from_another_thread(
    containment: Containment, source: CancelSource, kind: Kind
) -> None:
    kept = await keep(containment, kind, source.token)
    start_thread(source.cancel, Cause.USER_STOP)
    await source.token.wait_async()
    check(kind, kept, await kept.process.stop())


@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_nobody_survives_the_end_of_the_task_that_waits(
    containment: Containment, kind: Kind
) -> None:
    """The token is cancelled by the task's own end, and nobody is left to wait for the stop."""
    kept: list[Kept] = []
    started = asyncio.Event()

    async def work() -> None:
        source = CancelSource("call")
        try:
            kept.append(await keep(containment, kind, source.token))
            started.set()
            await asyncio.Event().wait()
        finally:
            source.cancel(Cause.CLIENT_GONE)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    check(kind, kept[0], await kept[0].process.stop())


@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_nobody_survives_a_deadline(containment: Containment, kind: Kind) -> None:
    with CancelSource("call") as outer:
        kept = await keep(containment, kind, outer.token)
        deadline = CancelSource("limit", timeout_s=0.01)
        adopted = kept.process.adopt(deadline.token)
        assert adopted or deadline.token.cancelled or not kept.process.alive
        await deadline.token.wait_async()
        check(kind, kept, await kept.process.stop())


@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_nobody_survives_the_close(
    containment: Containment, source: CancelSource, kind: Kind
) -> None:
    kept = await keep(containment, kind, source.token)
    await containment.aclose(SHORT)
    report = kept.process.stop_report
    if report is None:
        report = await kept.process.stop()
    check(kind, kept, report)
    assert containment.processes == ()


def test_nobody_survives_a_program_that_ends_while_it_closes(
    means: Means, leaves_nothing: None
) -> None:
    """At its end `asyncio.run` cancels every task that it knows of."""
    marks: list[str] = []

    async def close_one(is_closing: asyncio.Event) -> None:
        containment = await open_containment(means.value)
        with CancelSource("call") as source:
            marks.append((await keep(containment, ZOO["deaf"], source.token)).mark)
            is_closing.set()
            await containment.aclose(SHORT)

    async def main() -> None:
        is_closing = asyncio.Event()
        closing = asyncio.create_task(close_one(is_closing))
        await is_closing.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()

    asyncio.run(main())
    survivors = zoo.alive(marks[0])
    zoo.put_down(marks[0])
    assert survivors == []


def test_this_machine_has_a_means_that_confirms() -> None:
    """Linux always has the supervisor; without it the tests above would prove little."""
    assert Means.SUPERVISOR in MEANS
