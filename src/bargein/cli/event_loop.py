"""Runs a command in an event loop, and decides what Ctrl-C does before, during and after it.

In a plain event loop, Python stops the command at the first Ctrl-C, raises an exception wherever it
happens to be at the second, and breaks off its own cleanup, noisily, at the third. Here the first
Ctrl-C that the command does not handle itself stops it, and the next ends the program at once and
silently. The helper notices that we are gone and kills commands that still run. Before the command
has begun and after it is done there is nothing to clean up, so the first Ctrl-C ends the program.

A scope stops the command, not a cancellation of its task. A cancellation arrives once, wherever the
command happens to wait, and may get lost there: before Python 3.12, `asyncio.wait_for` swallows it
if its result arrives at the same moment. A scope cancels again at every step until the command has
left.

The switch interval is shortened for threads that wait for the GIL, as the store's does after each
statement. Python promises the GIL after 5 ms, but only if nothing wakes the waiting thread earlier.
A busy loop releases it for a microsecond in each round, which wakes the thread, and has taken it
back by the time the thread runs. Messages and stops then waited for seconds to be written. Half a
millisecond is shorter than a round of such a busy loop.
"""

import logging
import os
import signal
import sys
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import TypeVar, TypeVarTuple

import anyio

from bargein.cli.signals import handled

STOPPED = 130
SWITCH_S = 0.0005

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def run_in_loop(main: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
    """Runs `main` to its end. Raises KeyboardInterrupt if a Ctrl-C stopped it."""
    stop: Callable[[], object] | None = None
    results: list[Result] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        if stop is None:
            os._exit(STOPPED)
        stop_now, stop = stop, None
        stop_now()

    async def run() -> None:
        nonlocal stop
        with anyio.CancelScope() as scope:
            stop = partial(get_running_loop().call_soon_threadsafe, scope.cancel)
            try:
                results.append(await main(*arguments))
            finally:
                stop = None

    with handled(signal.SIGINT, interrupt), _threads_are_let_on(), _log_is_harmless():
        anyio.run(run, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    if not results:
        raise KeyboardInterrupt
    return results[0]


@contextmanager
def _threads_are_let_on() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _log_is_harmless() -> Iterator[None]:
    """What a command logs goes to the terminal if it sets up nothing else, and may quote a
    stranger, such as an MCP server."""
    last = logging.lastResort
    if last is None:
        yield
        return
    before = last.formatter
    last.setFormatter(_HarmlessFormatter())
    try:
        yield
    finally:
        last.formatter = before


class _HarmlessFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        from bargein.cli.chat.paint import harmless

        return harmless(super().format(record))
