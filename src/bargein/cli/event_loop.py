"""The event loop that a command runs in, from before its first step until after its last.

Python's own way with Ctrl-C in a loop is to stop the command at the first, to raise an exception
wherever it happens to be at the second, and to break off its own tidying up, loudly, at the third.
Here the first one that the command does not hear itself stops it, and the next ends the program
there and then, without a word: commands that still run are killed by the helper, which notices that
we are gone. Before the command has begun and after it is done there is nothing to tidy, and the
first one ends it.

A command is stopped by a scope, and not by cancelling its task. That would be told once, wherever
the command happens to wait, and may be taken there for something else: before Python 3.12,
`asyncio.wait_for` goes on if its answer has come at the same moment, and the Ctrl-C was never
pressed. A scope tells it again at every step until the command has left.

And a thread that waits for the interpreter, as the store's does after each statement, is let on
soon. Python promises that after 5 ms, but only to one whom nobody wakes before: a busy loop lets go
for a microsecond at each of its rounds, wakes the waiting thread, and has taken the interpreter
back by the time that one is there. Messages and stops waited for seconds to be written. Half a
millisecond is shorter than the rounds of a loop that is so busy.
"""

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
    """Run it to its end. Raises KeyboardInterrupt if a Ctrl-C stopped it."""
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

    with handled(signal.SIGINT, interrupt), _threads_are_let_on():
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
