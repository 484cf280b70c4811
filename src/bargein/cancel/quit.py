"""The last resort of quitting: a watchdog that needs no GIL.

A C call that holds the interpreter stops every Python thread, timers and signal handlers
included. This one is a thread of the C library: when its time is up it writes where every thread
stood and ends the process with exit code 1.
"""

import faulthandler
import sys
from typing import TextIO

from bargein.cancel.token import check_seconds


def arm_quit_watchdog(timeout_s: float, *, file: TextIO | None = None) -> None:
    """End the process unless it has ended, or disarmed this, within `timeout_s`.

    There is one per process; arming again starts it anew. `file` must stay open and be a real
    one; it is stderr unless given.
    """
    if check_seconds("timeout_s", timeout_s) == 0:
        raise ValueError("timeout_s of the quit watchdog must be more than 0")
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=file or sys.__stderr__ or 2)


def disarm_quit_watchdog() -> None:
    faulthandler.cancel_dump_traceback_later()
