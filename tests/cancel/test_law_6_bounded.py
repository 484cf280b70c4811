"""Law 6: from stop to settled, and from quit to gone, there is a bound."""

import threading
import time

import anyio
import pytest

from bargein.cancel import (
    CancelSource,
    Cause,
    TaskOwner,
    Token,
    abandoned,
    current_token,
    run_abandonable,
    run_thread,
    shield,
)
from tests.cancel.harness import eventually, run_program

STOP = Cause.USER_STOP


def test_process_exit_does_not_wait_for_a_wedged_thread() -> None:
    began = time.monotonic()
    done = run_program(
        """
import anyio, time
from bargein.cancel import CancelSource, Cause, abandoned, run_thread

async def main():
    source = CancelSource("turn", timeout_s=0.1)
    outcome = await run_thread(time.sleep, 600, token=source.token, grace_s=0.1, name="wedged")
    print(outcome.status, [each.name for each in abandoned()])

anyio.run(main)
"""
    )
    assert done.stdout == "abandoned ['wedged']\n"
    assert done.stderr == ""
    assert time.monotonic() - began < 45


def test_process_exit_does_not_wait_for_callbacks_timers_or_helper_threads() -> None:
    done = run_program(
        """
import threading, time
from bargein.cancel import CancelSource, Cause, start_thread

blocked = threading.Event()
source = CancelSource("s", timeout_s=600)
source.token.on_cancel(lambda: (blocked.set(), time.sleep(600)))
start_thread(time.sleep, 600)
source.cancel(Cause.SHUTDOWN)
blocked.wait(10)
print("gone")
"""
    )
    assert done.stdout == "gone\n"


def test_a_coroutine_that_will_not_stop_does_not_hold_the_end_of_the_loop() -> None:
    for backend in ("asyncio", "trio"):
        done = run_program(
            f"""
import anyio
from bargein.cancel import CancelSource, Cause, TaskOwner, run_abandonable

async def stubborn():
    async with anyio.create_task_group() as group:
        group.start_soon(swallow)

async def swallow():
    while True:
        try:
            await anyio.sleep(60)
        except BaseException:
            pass

async def main():
    async with TaskOwner(close_grace_s=0.2):
        source = CancelSource("turn", timeout_s=0.1)
        outcome = await run_abandonable(stubborn, token=source.token, grace_s=0.1)
        print(outcome.status)

anyio.run(main, backend={backend!r})
print("gone")
"""
        )
        assert done.stdout == "abandoned\ngone\n"


CATASTROPHIC = r"(a*)*b"


def test_the_quit_watchdog_ends_a_process_whose_interpreter_is_held_by_c() -> None:
    """A catastrophic regular expression never releases the interpreter; a Timer would not fire."""
    began = time.monotonic()
    done = run_program(
        f"""
import re, sys, threading
from bargein.cancel import arm_quit_watchdog
catastrophic = re.compile({CATASTROPHIC!r})
print("Shutting down", flush=True)
# From the start of the timer on nothing gives the interpreter away.
sys.setswitchinterval(1000)
arm_quit_watchdog(0.7)
threading.Timer(0.1, lambda: print("a timer fired", flush=True)).start()
catastrophic.match("a" * 64)
print("not reached")
""",
        exit_code=1,
    )
    assert done.stdout == "Shutting down\n"
    assert "Timeout" in done.stderr
    assert "most recent call first" in done.stderr
    assert time.monotonic() - began < 45


def test_a_watchdog_that_was_disarmed_or_that_is_not_due_ends_nothing() -> None:
    done = run_program("""
import sys, time
from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
arm_quit_watchdog(2)
disarm_quit_watchdog()
arm_quit_watchdog(60)
arm_quit_watchdog(60, file=sys.__stderr__)
disarm_quit_watchdog()
disarm_quit_watchdog()
time.sleep(2.2)
print("still here")
""")
    assert done.stdout == "still here\n"


@pytest.mark.anyio
async def test_the_caller_is_back_within_the_grace_whatever_the_work_does() -> None:
    release = threading.Event()

    async def swallows() -> None:
        while True:
            try:
                await anyio.sleep(1)
            except BaseException:
                pass

    def wedged() -> None:
        release.wait(50)

    grace_s = 0.1
    async with TaskOwner(close_grace_s=0.2):
        for kind in ("thread", "raising", "task", "looking task"):
            source = CancelSource("s")
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_blocked, source)
                if kind == "thread":
                    outcome = await run_thread(wedged, token=source.token, grace_s=grace_s)
                elif kind == "raising":
                    outcome = await run_thread(
                        wedged, token=source.token, grace_s=grace_s, stop="raise"
                    )
                else:
                    outcome = await run_abandonable(
                        swallows,
                        token=source.token,
                        grace_s=grace_s,
                        stop="cancel" if kind == "task" else "token",
                    )
            assert outcome.status == "abandoned"
            assert grace_s * 0.9 < outcome.elapsed_s < grace_s + 15
    release.set()
    await anyio.to_thread.run_sync(lambda: eventually(lambda: abandoned() == []))


async def cancel_when_blocked(source: CancelSource) -> None:
    await anyio.wait_all_tasks_blocked()
    source.cancel(STOP)


@pytest.mark.anyio
async def test_waits_and_sleeps_end_with_the_cancel() -> None:
    """Back-off and between-step delays slept through interrupts."""
    source = CancelSource("s")

    def sleeps() -> None:
        token = current_token()
        assert token is not None
        token.sleep(60)

    async def sleeps_async(token: Token) -> None:
        with token.scope():
            await anyio.sleep(60)

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run_thread(sleeps, token=source.token, grace_s=10))
        group.start_soon(sleeps_async, source.token)
        group.start_soon(source.token.wait_async)
        await anyio.wait_all_tasks_blocked()
        source.cancel(STOP)
    assert time.monotonic() - began < 40


@pytest.mark.anyio
async def test_cleanup_has_a_deadline() -> None:
    source = CancelSource("s")
    source.cancel(STOP)
    began = time.monotonic()
    with source.token.scope(), shield(0.05) as guard:
        await anyio.sleep(60)
    assert guard.expired
    assert time.monotonic() - began < 40


def test_a_thread_that_waits_has_a_time_limit_of_its_own() -> None:
    source = CancelSource("s")
    began = time.monotonic()
    assert source.token.wait(0.02) is False
    assert source.token.wait(0) is False
    assert 0.02 <= time.monotonic() - began < 5
    assert not source.token._hooks
