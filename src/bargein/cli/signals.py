"""Ctrl-C and its relatives, heard at once.

The handlers are Python's own, not the event loop's: they run between two instructions of whatever
the main thread does, so that a stop is heard also while some tool blocks the loop. What they call
must be safe there; cancelling a token is, and so is calling into a loop.

A signal that was ignored when the program was started stays so to its end: whoever started it
wanted that. `nohup` does it with SIGHUP, and a script that puts a command into the background with
SIGINT and SIGQUIT, because Ctrl-C is for what is in front.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

LEAVING = (signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled(number: signal.Signals, handler: Handler) -> Iterator[None]:
    """The signal goes to `handler`, if it is not ignored."""
    if signal.getsignal(number) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def heard(
    *, on_interrupt: Callable[[int], None], on_leave: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """`on_interrupt` is told the how-manieth Ctrl-C it is; `on_leave` hears SIGTERM and SIGHUP."""
    presses = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        on_interrupt(presses)

    def leave(number: int, frame: FrameType | None) -> None:
        on_leave(signal.Signals(number))

    with ExitStack() as stack:
        stack.enter_context(handled(signal.SIGINT, interrupt))
        for each in LEAVING:
            stack.enter_context(handled(each, leave))
        yield


@contextmanager
def tidied_before_death(tidy: Callable[[], object]) -> Iterator[None]:
    """A SIGQUIT ends the program as it always does, but for what `tidy` does first."""

    def die(number: int, frame: FrameType | None) -> None:
        tidy()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    with handled(signal.SIGQUIT, die):
        yield
