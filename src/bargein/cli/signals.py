"""Ctrl-C and its relatives, heard at once.

The handlers are Python's own, not the event loop's: they run between two instructions of whatever
the main thread does, so that a stop is heard also while some tool blocks the loop. What they call
must be safe there; cancelling a token is, and so is calling into a loop.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LEAVING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heard(
    *, on_interrupt: Callable[[int], None], on_leave: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """`on_interrupt` is told the how-manieth Ctrl-C it is; `on_leave` hears SIGTERM and SIGHUP,
    unless whoever started the program had them ignored, as `nohup` does."""
    presses = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        on_interrupt(presses)

    def leave(number: int, frame: FrameType | None) -> None:
        on_leave(signal.Signals(number))

    before = {signal.SIGINT: signal.signal(signal.SIGINT, interrupt)}
    for each in LEAVING:
        if signal.getsignal(each) is signal.SIG_IGN:
            continue
        before[each] = signal.signal(each, leave)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def tidied_before_death(tidy: Callable[[], object]) -> Iterator[None]:
    """A SIGQUIT ends the program as it always does, but for what `tidy` does first."""

    def die(number: int, frame: FrameType | None) -> None:
        tidy()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGQUIT, die)
    try:
        yield
    finally:
        signal.signal(signal.SIGQUIT, before)
