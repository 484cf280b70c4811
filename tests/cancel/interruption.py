"""Interrupts an operation of the kernel before any one of its instructions.

A signal handler does that, and so does another thread that gets its turn there and does all its
work at once. With `sys.settrace` every such place is tried, one after the other, so that none is
left to luck.
"""

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import bargein.cancel

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_KERNEL = str(Path(bargein.cancel.__file__).parent)
# Python 3.14 writes this between a jump and where it falls through to, outside the table of
# handlers. It does nothing, and nothing can happen there but tracing.
_NOT_TAKEN = dis.opmap.get("NOT_TAKEN")


class Interruption:
    """`run` an operation; before the kernel's instruction number `at`, `action` is called."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self._left = at
        self._action = action
        self.happened = False

    def run(self, operation: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            operation()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> "TraceFunction | None":
        if self.happened or not frame.f_code.co_filename.startswith(_KERNEL):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != _NOT_TAKEN:
            if self._left == 0:
                self.happened = True
                self._action()
                return None
            self._left -= 1
        return self._trace


def at_each_instruction(scene: Callable[[Callable[..., Interruption]], bool]) -> int:
    """Have `scene` played again and again, each time interrupted one instruction later, until
    its operation is over before that. How many instructions there were.

    The scene makes all anew, calls what it is given with the action, runs its operation under
    that, checks what has become of it, and returns whether the interruption happened.
    """
    at = 0
    # Python 3.12 does not trace the instructions of code that it has not traced before.
    scene(lambda action: Interruption(0, action))
    while scene(lambda action, at=at: Interruption(at, action)):
        at += 1
    return at
