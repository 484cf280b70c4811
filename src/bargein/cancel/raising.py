"""Raises `Cancelled` inside a thread that runs Python code and does not look at its token.

It raises only while the top frame is the function's own code (its source file) and the thread is
between two rounds of a loop. There every resource is held by a handler around the loop, so nothing
that was just acquired can leak. In tests, an exception raised at an arbitrary instruction left
locks held in most tries. Two ways hit such a place exactly:

- Python 3.12 and later: the interpreter's monitoring calls us back where a round begins.
- Python 3.11: we look at the thread while it is parked at the jump that ends a round, and set the
  exception before it can move; it is raised at that very instruction.

A thread that never reaches such a place (blocked in C, or in other code) is left alone, and its
caller abandons the job.
"""

import ctypes
import dis
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread
from types import CodeType, FrameType, FunctionType, MethodType

from bargein.cancel.reason import Cancelled
from bargein.cancel.token import Token

_NOP = dis.opmap["NOP"]
# Without the jumps that wait for a generator or an await: Python handles no signal there either.
_BACKWARD = frozenset(
    number
    for number, name in enumerate(dis.opname)
    if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
)
# Python 3.11 only.
_COMPARE_AND_JUMP = frozenset(
    number
    for number, name in enumerate(getattr(dis, "_all_opname", ()))
    if name.startswith("COMPARE_OP_") and name.endswith("_JUMP")
)


class Raiser:
    """Raises in one function; aimed at one thread at a time."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._file = _source_file(function)
        self._thread: Thread | None = None
        self._error: type[Cancelled] = Cancelled

    @contextmanager
    def aimed_at(self, thread: Thread, token: Token) -> Iterator[None]:
        """During the block, `try_once` may raise in `thread`. After it nothing is raised."""
        self._thread = thread
        self._error = _error_for(token)
        try:
            yield
        finally:
            _way.let_go(thread)

    def try_once(self) -> bool:
        """Return whether the exception was raised. False: the thread was not at a safe place, try
        again."""
        assert self._thread is not None
        return _way.try_once(self._thread, self._error, self._file)


class _AtParkedThread:
    """Python 3.11: sets the exception while the thread is certainly parked.

    Our short sleep releases the interpreter. If the thread's CPU time grew meanwhile, the thread
    ran, and we have the interpreter back because the thread handed it over between two
    instructions. From that moment no thread can demand the interpreter from us for a whole switch
    interval, so the thread stays where we see it until we set the exception. When it gets the
    interpreter back, it looks for an exception before it does anything else.

    The check that half of the interval has not passed comes last, with everything prepared: between
    it and setting the exception, Python has no occasion to hand the interpreter over.
    """

    def try_once(self, thread: Thread, error: type[Cancelled], file: str) -> bool:
        ident = thread.ident
        if ident is None or not thread.is_alive():
            return False
        cpu_before = _cpu_s(thread)
        time.sleep(0)
        parked_at = time.monotonic()
        if cpu_before is None or _cpu_s(thread) in (None, cpu_before):
            return False
        frame = sys._current_frames().get(ident)
        if frame is None or frame.f_code.co_filename != file or not _ends_a_round(frame):
            return False
        set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
        number, value = ctypes.c_ulong(ident), ctypes.py_object(error)
        until = parked_at + sys.getswitchinterval() / 2
        # If the thread has ended, another thread may have its number by now.
        if not thread.is_alive() or time.monotonic() > until:
            return False
        return bool(set_error(number, value))

    def let_go(self, thread: Thread) -> None:
        """Nothing to do: an exception that was set is raised before the thread moves."""


def _cpu_s(thread: Thread) -> float | None:
    """Return the CPU time of a thread; None if it has ended or the system cannot tell.

    It builds Linux's clock number from the kernel's thread id. The C library would instead read
    the thread's own memory, which is gone as soon as the thread ends.
    """
    if sys.platform != "linux" or thread.native_id is None:
        return None
    try:
        return time.clock_gettime((~thread.native_id << 3) | 6)
    except OSError:
        return None


def _ends_a_round(frame: FrameType) -> bool:
    code, at = frame.f_code, frame.f_lasti
    if code.co_code[at] in _BACKWARD:
        return True
    # Code that has run a few times compares numbers or strings and jumps in one instruction. The
    # jump follows it, after two units that belong to the comparison.
    adapted: bytes = getattr(code, "_co_code_adaptive", code.co_code)
    return adapted[at] in _COMPARE_AND_JUMP and code.co_code[at + 6] in _BACKWARD


class _AtMonitoredRound:
    """Python 3.12 and later: raises in a monitoring callback.

    Every instruction of the watched code calls `_reached`, in whichever thread runs it. Only a
    thread that is aimed at finds an error to raise. Instructions that begin no round call it once.

    The event for jumps cannot be used: an error raised there bypasses the frame's handlers, because
    the interpreter looks for them in the wrong place.
    """

    _TOOL_IDS = (4, 3)

    def __init__(self) -> None:
        # Keyed by thread, not by its number, which another thread may get once this one ends.
        self._errors: dict[Thread, type[Cancelled]] = {}
        self._codes: dict[Thread, set[CodeType]] = {}
        self._rounds: dict[CodeType, frozenset[int]] = {}
        self._tool: int | None = None

    def try_once(self, thread: Thread, error: type[Cancelled], file: str) -> bool:
        if not thread.is_alive() or not self._have_tool():
            return False
        if thread not in self._codes:
            self._codes[thread] = set()
            self._errors[thread] = error
        elif thread not in self._errors:
            return True
        frame = sys._current_frames().get(thread.ident or 0)
        while frame is not None:
            if frame.f_code.co_filename == file and frame.f_code not in self._codes[thread]:
                self._codes[thread].add(frame.f_code)
                self._rounds[frame.f_code] = _begin_a_round(frame.f_code)
                self._set_events(frame.f_code)
            frame = frame.f_back
        return False

    def let_go(self, thread: Thread) -> None:
        self._errors.pop(thread, None)
        codes = self._codes.pop(thread, set())
        for code in codes.difference(*self._codes.values()):
            self._set_events(code, on=False)
            self._rounds.pop(code, None)

    if sys.version_info >= (3, 12):

        def _reached(self, code: CodeType, at: int) -> object:
            rounds = self._rounds.get(code)
            if rounds is None:  # `let_go` ran just now
                return None
            if at not in rounds:
                return sys.monitoring.DISABLE
            error = self._errors.pop(current_thread(), None)
            if error is not None:
                raise error
            return None

        def _have_tool(self) -> bool:
            for number in self._TOOL_IDS:
                if self._tool is None and sys.monitoring.get_tool(number) is None:
                    sys.monitoring.use_tool_id(number, "bargein")
                    events = sys.monitoring.events
                    sys.monitoring.register_callback(number, events.INSTRUCTION, self._reached)
                    self._tool = number
            return self._tool is not None

        def _set_events(self, code: CodeType, on: bool = True) -> None:
            assert self._tool is not None
            events = sys.monitoring.events.INSTRUCTION if on else sys.monitoring.events.NO_EVENTS
            sys.monitoring.set_local_events(self._tool, code, events)

    else:

        def _have_tool(self) -> bool:
            return False

        def _set_events(self, code: CodeType, on: bool = True) -> None: ...


def _begin_a_round(code: CodeType) -> frozenset[int]:
    """Return the offsets that the loops of this code jump back to. A NOP, as for `try`, is skipped:
    the table of handlers may have a hole there."""
    begin: set[int] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opcode in _BACKWARD:
            at: int = instruction.argval
            while code.co_code[at] == _NOP:
                at += 2
            begin.add(at)
    return frozenset(begin)


_way = _AtMonitoredRound() if sys.version_info >= (3, 12) else _AtParkedThread()


def _source_file(function: Callable[..., object]) -> str:
    plain = inspect.unwrap(function)
    if isinstance(plain, MethodType):
        plain = plain.__func__
    if not isinstance(plain, FunctionType):
        raise TypeError(f"stop='raise' needs a function written in Python, not {function!r}")
    return plain.__code__.co_filename


def _error_for(token: Token) -> type[Cancelled]:
    """Make a class that knows the token: the interpreter takes a class and creates the instance."""

    def begin(self: Cancelled) -> None:
        Cancelled.__init__(self, token)

    return type("Cancelled", (Cancelled,), {"__init__": begin})
