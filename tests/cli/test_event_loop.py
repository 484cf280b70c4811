"""Any number of Ctrl-Cs in a loop: the program ends silently and soon."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bargein.cli.event_loop import SWITCH_S, run_in_loop

# Says where it is; its tidying up takes for ever, whatever is done to it.
STUBBORN = """
import sys, anyio
from bargein.cli.event_loop import run_in_loop

async def tidy():
    try:
        await anyio.sleep_forever()
    finally:
        while True:
            with anyio.CancelScope(shield=True):
                try:
                    print("tidying", flush=True)
                    await anyio.sleep_forever()
                except BaseException:
                    pass

async def main():
    async with anyio.create_task_group() as group:
        group.start_soon(tidy)
        await anyio.sleep(0)
        print("begun", flush=True)

run_in_loop(main)
"""
QUICK = """
import anyio
from bargein.cli.event_loop import run_in_loop

async def main():
    try:
        print("begun", flush=True)
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        print("tidied", flush=True)

try:
    run_in_loop(main)
except KeyboardInterrupt:
    print("stopped")
"""
# As `asyncio.wait_for` goes on before Python 3.12, if its answer comes at the same moment.
HARD_OF_HEARING = """
import anyio
from bargein.cli.event_loop import run_in_loop

async def main():
    try:
        print("begun", flush=True)
        await anyio.sleep_forever()
    except BaseException:
        pass
    await anyio.sleep_forever()

try:
    run_in_loop(main)
except KeyboardInterrupt:
    print("stopped")
"""


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs that are gone after the test."""
    with ExitStack() as stack:

        def start(program: str) -> "subprocess.Popen[str]":
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield start


def press(process: "subprocess.Popen[str]", when: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{when}\n"
    process.send_signal(signal.SIGINT)


def test_the_first_stops_and_what_is_tidied_is_waited_for(start: Start) -> None:
    process = start(QUICK)
    press(process, "begun")
    assert process.communicate(timeout=30) == ("tidied\nstopped\n", "")


def test_one_that_was_taken_for_something_else_is_heard_all_the_same(start: Start) -> None:
    process = start(HARD_OF_HEARING)
    press(process, "begun")
    assert process.communicate(timeout=10) == ("stopped\n", "")


def test_the_second_ends_it_there_and_then_without_a_word(start: Start) -> None:
    process = start(STUBBORN)
    press(process, "begun")
    press(process, "tidying")
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 130


def test_threads_are_let_on_sooner_than_a_busy_loop_takes_for_a_round() -> None:
    before = sys.getswitchinterval()

    async def look() -> float:
        return sys.getswitchinterval()

    assert run_in_loop(look) == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before
