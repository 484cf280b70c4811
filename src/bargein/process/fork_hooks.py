"""Hooks in Python's ways to start a process: the children of a call enter its enclosure.

`process_owner` says, by the context, to whom the processes belong that the running code starts.
Outside of a call it is None, and then the hooks do nothing. They are installed while a containment
is open.

A child enters its owner's enclosure by itself, after the fork and before any of its own code
(`os.register_at_fork`). So it is contained before anybody can see it, and its parent, group,
session, descriptors and exit code are as without us. Ways that fork without running Python's hooks
are replaced by one that does:

- `subprocess` and `multiprocessing` (`fork_exec`) get a function to call in the child, which makes
  them fork instead of vfork. Where there is nothing to enter they vfork, and the parent notes the
  child.
- `os.posix_spawn`, `os.posix_spawnp` and `os.system` are done by `fork_exec` (see `posix_spawn`).
- A worker of the forkserver of `multiprocessing` is forked by that server. It does nothing before
  it gets its orders from us, and before that we put it into the enclosure.

A thread belongs to the owner that started it, and a job in a thread pool to the owner that
submitted it; the threads of a pool belong to nobody.

Processes that a library starts in C are not seen. The hooks run in the thread that forks, and wait
only for the child to enter, 2 seconds at most, or for a forkserver to fork it.
"""

import _posixsubprocess
import asyncio
import concurrent.futures.thread as pools
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from itertools import count, takewhile
from typing import Any, Final, Protocol

from bargein.cancel import Cancelled
from bargein.process import posix_spawn
from bargein.process.posix_spawn import FORK_EXEC_ARGUMENTS, Argument

_ENTER_S_MAX: Final = 2.0
# It imports the program's main module first. The caller waits for the same number afterwards.
_FORKSERVER_S_MAX: Final = 10.0
_SPLICE_F_NONBLOCK: Final = 2
_libc: Final = ctypes.CDLL(None)


class Entrance(Protocol):
    """The way into an enclosure, for one child."""

    tag: bytes

    @property
    def needs_fork(self) -> bool:
        """Whether the child has to act before exec, so that the cheaper vfork will not do."""
        ...

    def enter(self) -> bool:
        """In the child, just forked. Never raises. Returns whether those that it forks in turn
        have to enter as well."""

    def started(self, pid: int) -> None:
        """In the parent, instead of `enter`: this child was started."""

    def take_in(self, pid: int) -> None:
        """Instead of `enter`: another process has forked this one for us, and it waits."""

    def doubted(self) -> None:
        """In the parent: nobody knows whether the child has entered."""

    def passed(self) -> None:
        """In the parent: the child has entered, or is dead, or there is none."""


class ProcessOwner(Protocol):
    """Called in any thread; never waits."""

    def admit(self) -> Entrance | None:
        """A child is about to be forked. Returns None if the owner is over and the child is the
        program's own.

        Raises `Cancelled` if the owner was stopped and is over: then nothing may be started.
        """

    def lost(self) -> None:
        """A process was started for it that nothing holds, so its end cannot be confirmed."""


process_owner: ContextVar[ProcessOwner | None] = ContextVar("bargein_process_owner", default=None)


@contextmanager
def unowned() -> Iterator[None]:
    """Processes started in here are the program's own, even while a call runs."""
    restore = process_owner.set(None)
    try:
        yield
    finally:
        process_owner.reset(restore)


def install_fork_hooks(loop: asyncio.AbstractEventLoop) -> None:
    """Each call needs a `remove_fork_hooks`; the first installs, the last removes. On the loop's
    thread."""
    _hooks.installs += 1
    if _hooks.installs == 1:
        _hooks.install()
    _hooks.install_in(type(loop))


def remove_fork_hooks() -> None:
    _hooks.installs -= 1
    if _hooks.installs == 0:
        _hooks.remove()


def _owner_now() -> ProcessOwner | None:
    return process_owner.get() if _hooks.installs else None


# --- the fork itself ------------------------------------------------------------------------------


class _Fork(threading.local):
    """What the thread that forks has prepared for its child."""

    entrance: Entrance | None = None
    refused = False
    pipe: tuple[int, int] | None = None
    """The child writes to it when it has entered."""
    came_by: Entrance | None = None
    """In a child: its own entrance, if its children have to use it too."""


_fork = _Fork()


def _before_fork() -> None:
    _fork.refused = False
    owner = _owner_now()
    if owner is None:
        return
    try:
        entrance = _fork.entrance = owner.admit()
    except Cancelled:
        _fork.refused = True
        return
    if entrance is not None:
        try:
            _fork.pipe = os.pipe()
        except OSError:
            entrance.doubted()


def _in_child() -> None:
    # The loop and everything that it watches belong to the parent.
    _hooks.installs = 0
    entrance, _fork.entrance = _fork.entrance or _fork.came_by, None
    if _fork.refused:
        os.kill(os.getpid(), signal.SIGKILL)
    if entrance is not None:
        _forget_signal_handlers()
        # For the program that it becomes, if that inherits this environment.
        os.putenv(entrance.tag, b"1")
        _fork.came_by = entrance if entrance.enter() else None
        if _fork.pipe is not None:
            os.write(_fork.pipe[1], b"1")
            _close_pipe()


def _forget_signal_handlers() -> None:
    """Before anybody can find the child and signal it: a copy of this program must not handle
    SIGTERM as this program does, by stopping commands or waking the loop, whose wake-up socket it
    shares."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)


def _in_parent() -> None:
    entrance, _fork.entrance = _fork.entrance, None
    if entrance is None:
        return
    try:
        if _fork.pipe is not None:
            _wait_until_entered(entrance, *_fork.pipe)
    finally:
        _close_pipe()
        entrance.passed()


def _wait_until_entered(entrance: Entrance, readable: int, writable: int) -> None:
    """Before this an empty enclosure proves nothing. After a pause the kernel takes milliseconds
    for it; the caller would wait anyway, until its child has called exec."""
    os.close(writable)
    _fork.pipe = (readable, -1)
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    if not poll.poll(_ENTER_S_MAX * 1000):
        entrance.doubted()


def _close_pipe() -> None:
    pipe, _fork.pipe = _fork.pipe, None
    for fd in pipe or ():
        if fd >= 0:
            os.close(fd)


# --- ways that fork without running Python's hooks ------------------------------------------------

# The positions of these arguments of `fork_exec`, in every Python from 3.11 on.
_ARGV: Final = 0
_ENVIRONMENT: Final = 5
_PREEXEC: Final = 21

# Started by the first call that needs it, and shared by all from then on.
_SHARED: Final = (
    b"from multiprocessing.resource_tracker import",
    b"from multiprocessing.forkserver import",
)


class _ForkExec:
    """Replaces `_posixsubprocess.fork_exec`."""

    def __init__(self, original: Callable[..., int]) -> None:
        self.original = original

    def __call__(self, *args: Any) -> int:
        owner = _owner_now()
        if owner is None:
            return self.original(*args)
        if len(args) != FORK_EXEC_ARGUMENTS:
            owner.lost()
            return self.original(*args)
        if _is_shared(args[_ARGV]):
            with unowned():
                return self.original(*args)
        entrance = owner.admit()
        if entrance is None:
            return self.original(*args)
        try:
            return self._start(list(args), entrance)
        finally:
            entrance.passed()

    def _start(self, args: list[Any], entrance: Entrance) -> int:
        forks = entrance.needs_fork or args[_PREEXEC] is not None
        if args[_ENVIRONMENT] is None and not forks:
            args[_ENVIRONMENT] = _own_environment()
        if args[_ENVIRONMENT] is not None:
            args[_ENVIRONMENT] = [*args[_ENVIRONMENT], entrance.tag + b"=1"]
        if forks:
            # Any function will do: the child has entered before it calls this one.
            args[_PREEXEC] = args[_PREEXEC] or os.getpid
            return self.original(*args)
        pid = self.original(*args)
        entrance.started(pid)
        return pid


def _own_environment() -> list[bytes]:
    """The environment that a child inherits. It has more than `os.environ`, because libraries
    set variables in C."""
    try:
        entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.PyDLL(None), "environ")
    except ValueError:
        return [name + b"=" + value for name, value in os.environb.items()]
    return list(takewhile(lambda entry: entry is not None, map(entries.__getitem__, count())))


def _is_shared(argv: Sequence[Argument]) -> bool:
    return any(os.fsencode(argument).startswith(_SHARED) for argument in argv)


class _ForkServer:
    """Replaces `multiprocessing.forkserver.connect_to_new_process`. The server serves everybody,
    and the child is its child, not ours. The caller reads the child's pid from the server, and the
    child waits until the caller has written to it what to run."""

    def __init__(self, original: Callable[..., tuple[int, int]], pid_bytes: int) -> None:
        self.original = original
        self._pid_bytes = pid_bytes

    def __call__(self, *args: Any, **options: Any) -> tuple[int, int]:
        owner = _owner_now()
        entrance = owner.admit() if owner is not None else None
        if owner is None or entrance is None:
            return self.original(*args, **options)
        try:
            readable, writable = self.original(*args, **options)
            pid = self._peek_at_pid(readable)
            if pid:
                entrance.take_in(pid)
            else:
                owner.lost()
            return readable, writable
        finally:
            entrance.passed()

    def _peek_at_pid(self, readable: int) -> int:
        """Returns the pid without taking it from the pipe, where the caller reads it; 0 if it is
        not known."""
        poll = select.poll()
        poll.register(readable, select.POLLIN)
        if not hasattr(_libc, "tee") or not poll.poll(_FORKSERVER_S_MAX * 1000):
            return 0
        try:
            copy, into = os.pipe()
        except OSError:
            return 0
        try:
            if _libc.tee(readable, into, self._pid_bytes, _SPLICE_F_NONBLOCK) != self._pid_bytes:
                return 0
            return int.from_bytes(os.read(copy, self._pid_bytes), sys.byteorder)
        finally:
            os.close(copy)
            os.close(into)


class _SubprocessOfLoop:
    """Replaces `subprocess_exec` and `subprocess_shell` of a loop that forks by itself (uvloop). It
    runs Python's hooks, but makes the environment before, so the tag is added here."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __get__(self, loop: object, kind: type) -> Callable[..., Any]:
        return partial(self, loop)

    def __call__(self, loop: object, *args: Any, env: Any = None, **options: Any) -> Any:
        owner = _owner_now()
        entrance = owner.admit() if owner is not None else None
        if entrance is not None:
            entrance.passed()
            env = {**(os.environ if env is None else env), os.fsdecode(entrance.tag): "1"}
        return self.original(loop, *args, env=env, **options)


class _PosixSpawn:
    """Replaces `os.posix_spawn` and `os.posix_spawnp`."""

    def __init__(self, original: Callable[..., int], *, search: bool) -> None:
        self.original = original
        self._search = search

    def __call__(
        self, path: Argument, argv: Sequence[Argument], env: Any, /, **options: Any
    ) -> int:
        if _owner_now() is None:
            return self.original(path, argv, env, **options)
        return posix_spawn.posix_spawn(path, argv, env, search=self._search, options=options)


def _system(command: Argument) -> int:
    """Replaces `os.system`."""
    if _owner_now() is None:
        return _hooks.system(command)
    return posix_spawn.system(command)


# --- threads --------------------------------------------------------------------------------------


def _submit(self: pools.ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces `ThreadPoolExecutor.submit`."""
    owner = _owner_now()
    if owner is None:
        return _hooks.submit(self, fn, *args, **kwargs)

    def job() -> Any:
        restore = process_owner.set(owner)
        try:
            return fn(*args, **kwargs)
        finally:
            process_owner.reset(restore)

    with unowned():
        return _hooks.submit(self, job)


_STARTED_BY: Final = "_bargein_process_owner"


def _start(self: threading.Thread) -> None:
    """Replaces `Thread.start`."""
    owner = _owner_now()
    if owner is not None:
        # Not in a dictionary of ours: a class derived from Thread need not be hashable.
        self.__dict__[_STARTED_BY] = owner
    _hooks.start(self)


def _bootstrap_inner(self: threading.Thread) -> None:
    """Replaces the first function of a new thread, whose context is still empty."""
    owner = self.__dict__.pop(_STARTED_BY, None)
    if owner is not None:
        # From Python 3.14 on, the thread's function runs in a context of its own.
        context: Context | None = getattr(self, "_context", None)
        if context is None:
            process_owner.set(owner)
        else:
            context.run(process_owner.set, owner)
    _hooks.bootstrap(self)


_NOT_THERE: Final = object()


class _Hooks:
    """Remembers what it replaced, and restores that."""

    def __init__(self) -> None:
        self.installs = 0
        self.system: Callable[..., int] = os.system
        self.submit: Callable[..., Any] = pools.ThreadPoolExecutor.submit
        self.start: Callable[[threading.Thread], None] = threading.Thread.start
        self.bootstrap: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        self._registered = False
        self._replaced: list[tuple[object, str, object, object]] = []

    def install(self) -> None:
        # 3 ms. Later would be too late: its first use is already the call that has to be replaced.
        from multiprocessing import forkserver

        if not self._registered:
            # For good: Python cannot unregister them. They look whether `installs` is above 0.
            self._registered = True
            os.register_at_fork(
                before=_before_fork, after_in_child=_in_child, after_in_parent=_in_parent
            )
        fork_exec = _ForkExec(_posixsubprocess.fork_exec)
        self._replace(_posixsubprocess, "fork_exec", fork_exec)
        self._replace(subprocess, "_fork_exec", fork_exec)
        if hasattr(os, "posix_spawn"):
            self._replace(os, "posix_spawn", _PosixSpawn(os.posix_spawn, search=False))
            self._replace(os, "posix_spawnp", _PosixSpawn(os.posix_spawnp, search=True))
        self.system = os.system
        self._replace(os, "system", _system)
        self.submit = pools.ThreadPoolExecutor.submit
        self._replace(pools.ThreadPoolExecutor, "submit", _submit)
        self.start = threading.Thread.start
        self._replace(threading.Thread, "start", _start)
        self.bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        self._replace(threading.Thread, "_bootstrap_inner", _bootstrap_inner)
        server = _ForkServer(forkserver.connect_to_new_process, forkserver.SIGNED_STRUCT.size)
        self._replace(forkserver, "connect_to_new_process", server)

    def install_in(self, loop: type) -> None:
        if issubclass(loop, BaseEventLoop):
            return
        for name in ("subprocess_exec", "subprocess_shell"):
            if not isinstance(vars(loop).get(name), _SubprocessOfLoop):
                self._replace(loop, name, _SubprocessOfLoop(getattr(loop, name)))

    def _replace(self, where: object, name: str, by: object) -> None:
        self._replaced.append((where, name, vars(where).get(name, _NOT_THERE), by))
        setattr(where, name, by)

    def remove(self) -> None:
        """Leaves alone what other code has replaced since; our hook behind it does nothing then."""
        while self._replaced:
            where, name, before, ours = self._replaced.pop()
            if vars(where).get(name) is not ours:
                continue
            if before is _NOT_THERE:
                delattr(where, name)
            else:
                setattr(where, name, before)


_hooks = _Hooks()
