"""What is left to Python's collector: objects in circles, that no reference count frees."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CoroutineType, FrameType


@contextmanager
def what_only_the_collector_frees(*, of: str) -> Iterator[list[str]]:
    """What has become unreachable in the block and is still there at its end: instances of classes
    of this package, and its frames and coroutines."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += sorted(repr(each) for each in gc.garbage if _module_of(each).startswith(of))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _module_of(one: object) -> str:
    if isinstance(one, CoroutineType):
        one = one.cr_frame
    if isinstance(one, FrameType):
        return str(one.f_globals.get("__name__", ""))
    return type(one).__module__
