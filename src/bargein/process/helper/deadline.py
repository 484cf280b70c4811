"""The deadline of our owner, in memory that it writes and the helper reads (`owner_deadline`)."""

import math
import mmap
import time
from typing import Final

BYTES: Final = 8
_AGAIN_MS: Final = 100
_LOOK_S_MAX: Final = 5.0


def write(memory: mmap.mmap, at: float) -> None:
    """One aligned store: a concurrent reader sees the old time or the new one."""
    view = memoryview(memory).cast("d")
    view[0] = at
    view.release()


class Deadline:
    """`file` is -1 for an owner that has none."""

    def __init__(self, file: int) -> None:
        self._times = None if file < 0 else memoryview(mmap.mmap(file, BYTES)).cast("d")

    def is_over(self) -> bool:
        return self._times is not None and time.clock_gettime(time.CLOCK_BOOTTIME) >= self._times[0]

    def patience_ms(self) -> int | None:
        """When to look again; None for never. After the end it is looked at again and again: the
        owner may have come back."""
        if self._times is None:
            return None
        left_s = self._times[0] - time.clock_gettime(time.CLOCK_BOOTTIME)
        return math.ceil(min(left_s, _LOOK_S_MAX) * 1e3) if left_s > 0 else _AGAIN_MS
