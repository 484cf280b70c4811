"""Until when this process may act, in memory that its helpers read.

A node of a cluster must not act when its lease is over. It stops its turns itself in time, but not
while it is frozen (SIGSTOP, a suspended machine). Its helpers are not frozen with it: when the
deadline is over they kill the commands that run, and go on doing so until it is moved.

There is one deadline for the whole process. Helpers that start after it was first set heed it.
Moving it is one write to memory, from any thread.
"""

import mmap
import os
import sys
import threading
from typing import Final

from bargein.process.helper.deadline import BYTES, write


class _OwnerDeadline:
    """`file` is the descriptor for a helper; -1 if no deadline was ever set."""

    def __init__(self) -> None:
        self.file = -1
        self._memory: mmap.mmap | None = None
        self._lock = threading.Lock()

    def set(self, at: float) -> None:
        """`at` is a time of CLOCK_BOOTTIME; infinity if there is no deadline any more. Does nothing
        where there are no helpers."""
        if sys.platform != "linux":
            return
        with self._lock:
            if self._memory is None:
                file = os.memfd_create("bargein-deadline")
                os.ftruncate(file, BYTES)
                self._memory = mmap.mmap(file, BYTES)
                self.file = file
            write(self._memory, at)


OWNER_DEADLINE: Final = _OwnerDeadline()
