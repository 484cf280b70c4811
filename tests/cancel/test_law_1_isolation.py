"""Law 1: cancelling reaches the descendants of what was named, and nothing else."""

import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from bargein.cancel import (
    CancelSource,
    Cause,
    Reason,
    TaskOwner,
    as_current,
    current_token,
    is_interrupted,
    run_abandonable,
    run_thread,
    start_thread,
)
from bargein.testing.invariants import CancelAsked, Isolation, Laws, OneWay

STOP = Reason(Cause.USER_STOP)


def test_neither_parent_nor_sibling_nor_another_tree_is_touched() -> None:
    sessions = [CancelSource(f"session {n}") for n in range(2)]
    turns = [CancelSource(f"turn {n}", sessions[n // 2].token) for n in range(4)]
    calls = [CancelSource(f"call {n}", turns[n // 2].token) for n in range(8)]
    laws = Laws([Isolation(), OneWay()])
    for session in sessions:
        laws.observe_tree(session.token)
    laws.observe(CancelAsked(turns[1].token, STOP))
    turns[1].cancel(STOP)
    laws.check()
    everything = [*sessions, *turns, *calls]
    hit = [source.token.name for source in everything if source.token.cancelled]
    assert hit == ["turn 1", "call 2", "call 3"]


def test_stopping_a_parent_reaches_its_sub_agents_and_stopping_one_of_them_no_other() -> None:
    parent = CancelSource("parent")
    agents = [CancelSource(f"agent {n}", parent.token) for n in range(3)]
    agents[1].cancel(STOP)
    assert [agent.token.cancelled for agent in agents] == [False, True, False]
    assert not parent.token.cancelled
    parent.cancel(STOP)
    assert all(agent.token.cancelled for agent in agents)
    assert agents[1].token.reason == STOP


def test_a_late_stop_does_not_hit_the_next_job_on_the_same_pool_thread() -> None:
    """The signal that was keyed by a thread's id hit whoever ran there next."""
    first, second = CancelSource("first"), CancelSource("second")

    def job(source: CancelSource) -> int:
        with as_current(source.token):
            assert current_token() is source.token
            return threading.get_ident()

    def is_hit(source: CancelSource) -> tuple[int, bool]:
        with as_current(source.token):
            first.cancel(STOP)
            return threading.get_ident(), is_interrupted()

    with ThreadPoolExecutor(1) as pool:
        ident = pool.submit(job, first).result()
        again, hit = pool.submit(is_hit, second).result()
    assert ident == again
    assert not hit
    assert not second.token.cancelled


@pytest.mark.anyio
async def test_one_of_two_sessions_is_stopped_and_the_others_tools_go_on() -> None:
    """Threads and coroutines of both run side by side; a process-wide flag stopped all."""
    stopped, spared = CancelSource("stopped"), CancelSource("spared")
    running = [threading.Event() for _ in range(2)]
    finish = threading.Event()
    outcomes: dict[str, str] = {}
    two_over = anyio.Event()

    def tell(name: str, status: str) -> None:
        outcomes[name] = status
        if len(outcomes) == 2:
            two_over.set()

    def tool(ready: threading.Event) -> str:
        ready.set()
        token = current_token()
        assert token is not None
        while not finish.is_set():
            token.sleep(0.005)
        return "done"

    async def in_thread(name: str, source: CancelSource, ready: threading.Event) -> None:
        outcome = await run_thread(tool, ready, token=source.token, grace_s=30)
        tell(f"{name} thread", outcome.status)

    async def in_task(name: str, source: CancelSource, over: anyio.Event) -> None:
        outcome = await run_abandonable(over.wait, token=source.token, grace_s=30)
        tell(f"{name} task", outcome.status)

    over = anyio.Event()
    async with TaskOwner(), anyio.create_task_group() as group:
        group.start_soon(in_thread, "stopped", stopped, running[0])
        group.start_soon(in_thread, "spared", spared, running[1])
        group.start_soon(in_task, "stopped", stopped, over)
        group.start_soon(in_task, "spared", spared, over)
        for ready in running:
            await anyio.to_thread.run_sync(ready.wait)
        stopped.cancel(STOP)
        await two_over.wait()
        assert outcomes == {"stopped thread": "cancelled", "stopped task": "cancelled"}
        finish.set()
        over.set()
    assert outcomes["spared thread"] == outcomes["spared task"] == "finished"


@pytest.mark.anyio
async def test_a_helper_thread_of_a_tool_belongs_to_the_tool() -> None:
    """The token was known to the tool's thread but not to one that it started."""
    source = CancelSource("call")
    helpers: list[bool] = []
    started = threading.Event()

    def helper() -> None:
        token = current_token()
        assert token is not None
        started.set()
        helpers.append(token.wait(50))

    def tool() -> None:
        start_thread(helper).join()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run_thread(tool, token=source.token, grace_s=30))
        await anyio.to_thread.run_sync(started.wait)
        source.cancel(STOP)
    assert helpers == [True]
