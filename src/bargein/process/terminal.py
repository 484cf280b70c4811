"""A pseudo-terminal: our end of it, and the signals that go through it."""

import fcntl
import os
import signal
import sys
import termios
from typing import Final

from bargein.process.values import PtySize

# Sends a signal to the foreground group of the terminal, in one step: no group can change between
# asking for it and signalling it. Python has no name for it.
_TIOCSIG: Final = 0x2000_745F if sys.platform == "darwin" else 0x4004_5436


def open_terminal(size: PtySize) -> tuple[int, int]:
    """Our end, which does not block, and the command's."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (size.rows, size.columns))
        os.set_blocking(ours, False)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    return ours, theirs


def resize(ours: int, size: PtySize) -> None:
    """The foreground group hears of it by SIGWINCH."""
    termios.tcsetwinsize(ours, (size.rows, size.columns))


def interrupt(ours: int) -> None:
    """What Ctrl-C means, also to a program that switched Ctrl-C off (raw mode)."""
    try:
        fcntl.ioctl(ours, _TIOCSIG, signal.SIGINT)
    except OSError:
        try:
            os.killpg(os.tcgetpgrp(ours), signal.SIGINT)
        except OSError:
            pass  # nobody is in the foreground
