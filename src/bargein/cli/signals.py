"""Handles Ctrl-C, SIGTERM, SIGHUP and SIGQUIT without delay.

The handlers are Python's own, not the event loop's: they run between two instructions of whatever
the main thread does, so a stop arrives even while a tool blocks the loop. What they call must be
safe there; cancelling a token is, and so is calling into a loop.

A signal that was ignored when the program started stays ignored, because whoever started it wanted
that. `nohup` ignores SIGHUP. A script that starts a command in the background ignores SIGINT and
SIGQUIT for it, because Ctrl-C is for the command in the foreground.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

LEAVING = (signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled(number: signal.Signals, handler: Handler) -> Iterator[None]:
    """Sends the signal to `handler`, unless it is ignored."""
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
    """Calls `on_interrupt` with the number of Ctrl-Cs so far, `on_leave` on SIGTERM and SIGHUP."""
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
    """Lets SIGQUIT end the program as usual, but calls `tidy` first."""

    def die(number: int, frame: FrameType | None) -> None:
        tidy()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    with handled(signal.SIGQUIT, die):
        yield
