"""Raising `Cancelled` inside a thread that runs Python code and does not look at its token.

It is done only while the top frame is the function's own code (its source file) and the thread
stands between two rounds of a loop. What is held there is held by handlers around the loop, so
nothing that was just acquired can leak: an exception let loose at any instruction was seen to
leave locks held in most of its tries. Two ways to get there exactly:

- Python 3.12 and later: the interpreter's own monitoring calls us back where rounds begin.
- Python 3.11: the thread is looked at while it is parked at such a jump, and the exception is set
  before it can move; it is raised at the very instruction.

A thread that never comes to such a place (blocked in C, or in somebody else's code) is left
alone, and its job is abandoned by whoever waits for it.
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
# Without those that wait for a generator or an await: no signal is heard there either.
_BACKWARD = frozenset(
    number
    for number, name in enumerate(dis.opname)
    if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
)
# Of Python 3.11 only.
_COMPARE_AND_JUMP = frozenset(
    number
    for number, name in enumerate(getattr(dis, "_all_opname", ()))
    if name.startswith("COMPARE_OP_") and name.endswith("_JUMP")
)


class Raiser:
    """Bound to one function; aimed at one thread at a time."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._file = _source_file(function)
        self._thread: Thread | None = None
        self._error: type[Cancelled] = Cancelled

    @contextmanager
    def aimed_at(self, thread: Thread, token: Token) -> Iterator[None]:
        """While the block lasts, `try_once` may raise in `thread`. After it, nothing comes."""
        self._thread = thread
        self._error = _error_for(token)
        try:
            yield
        finally:
            _way.let_go(thread)

    def try_once(self) -> bool:
        """Whether the exception was raised. False means: not at a safe place now, try again."""
        assert self._thread is not None
        return _way.try_once(self._thread, self._error, self._file)


class _AtParkedThread:
    """Python 3.11. The exception is set while the thread is parked, which is made certain thus:

    Our short sleep gives the interpreter away. If the thread's CPU time moved meanwhile, it ran,
    and we have the interpreter back because it handed it over at a check between instructions.
    From that moment nobody can demand the interpreter from us for a whole switch interval, so the
    thread stands where we see it until the exception is set. On regaining the interpreter it
    looks for one before it does anything else.

    That half of the interval has not passed is looked at last, with everything prepared: between
    there and the setting, Python has no occasion to hand the interpreter over.
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
        # Its number may be another thread's by now.
        if not thread.is_alive() or time.monotonic() > until:
            return False
        return bool(set_error(number, value))

    def let_go(self, thread: Thread) -> None:
        """Nothing to take back: what was set is raised before the thread moves."""


def _cpu_s(thread: Thread) -> float | None:
    """The CPU time a thread has used; None if it has ended or the system does not tell.

    By the kernel's number of the thread, as Linux makes clocks of it: the C library would look
    into the thread's own memory, which is gone as soon as it ends.
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
    # Code that has run some times compares numbers or strings and jumps in one instruction; the
    # jump stands behind it, after two units that are the comparison's own.
    adapted: bytes = getattr(code, "_co_code_adaptive", code.co_code)
    return adapted[at] in _COMPARE_AND_JUMP and code.co_code[at + 6] in _BACKWARD


class _AtMonitoredRound:
    """Python 3.12 and later. Instructions of the watched code call `_reached`, whichever thread
    runs them; only an aimed-at thread finds something to raise. Those that begin no round call it
    once.

    Not by the event for jumps: what is raised in that passes all handlers of its frame, since the
    interpreter looks for them at a wrong place.
    """

    _TOOL_IDS = (4, 3)

    def __init__(self) -> None:
        # By thread, and not by its number, which another thread has as soon as this one ends.
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
            if rounds is None:  # let go of at this moment
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
    """Where the loops of this code jump back to. Not at a NOP, such as stands for `try`: the table
    of handlers may have a hole there."""
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
    """The interpreter takes a class and makes the instance itself, so the class has the token."""

    def begin(self: Cancelled) -> None:
        Cancelled.__init__(self, token)

    return type("Cancelled", (Cancelled,), {"__init__": begin})
