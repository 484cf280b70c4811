"""The doors through which Python code starts a process, watched while a containment is open.

`owner` says, by the context, whose processes the running code starts. Where it is None, as in
everything that runs outside of a call, nothing here does anything.

A child enters its owner's cell by itself, after the fork and before anything else of it runs
(`os.register_at_fork`). So it is contained before it exists as far as anybody can tell, and its
parent, group, session, descriptors and exit code are what they would have been. Doors that fork
without telling Python are led through one that does:

- `subprocess` and `multiprocessing` (`fork_exec`) are given a function to call in the child, which
  is what makes them fork and not vfork. Where a cell cannot be entered, they are left to vfork, and
  the parent notes the child;
- `os.posix_spawn`, `os.posix_spawnp` and `os.system` are done by `fork_exec`.

Threads belong to whoever started them, and what is given to a pool of threads to whoever gave it;
Python's own threads forget it.

Not watched: what a library written in C starts by itself.
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

_ENTER_S_MAX: Final = 2.0

Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Entrance(Protocol):
    """The way into a cell for one child."""

    tag: bytes

    @property
    def has_to_be_entered(self) -> bool:
        """Whether the child has to do something itself, so that it must be forked and cannot be
        vforked, which costs less."""
        ...

    def enter(self) -> bool:
        """In the child, just forked. Never raises. True if those that it forks in turn have to
        enter as well."""

    def born(self, pid: int) -> None:
        """In the parent, instead of `enter`: this child was started."""

    def doubted(self) -> None:
        """In the parent: nobody can tell whether the child has entered."""

    def passed(self) -> None:
        """In the parent: the child has entered, or is dead, or there is none."""


class Owner(Protocol):
    """Any thread; never waits."""

    def admit(self) -> Entrance | None:
        """A child is about to be forked. None: it is nobody's any more, as the owner is over.

        Raises `Cancelled` if the owner was stopped and is over: then nothing may be started.
        """

    def lost(self) -> None:
        """Somebody was started for it whom nothing holds: it cannot be vouched for."""


owner: ContextVar[Owner | None] = ContextVar("bargein_owner_of_processes", default=None)


@contextmanager
def nobodys() -> Iterator[None]:
    """What is started in here is the program's own, though a call runs."""
    restore = owner.set(None)
    try:
        yield
    finally:
        owner.reset(restore)


def open_doors(loop: asyncio.AbstractEventLoop) -> None:
    """Begin to watch, or join those who do. On the loop's thread, like `close_doors`."""
    _doors.opened += 1
    if _doors.opened == 1:
        _doors.install()
    _doors.install_in(type(loop))


def close_doors() -> None:
    _doors.opened -= 1
    if _doors.opened == 0:
        _doors.remove()


# --- the fork itself ------------------------------------------------------------------------------


class _AtDoor(threading.local):
    """What the thread that forks has ready for its child."""

    entrance: Entrance | None = None
    refused = False
    word: tuple[int, int] | None = None
    """A pipe on which the child says that it has entered."""
    came_by: Entrance | None = None
    """In a child: the way it came itself, if its own children have to go the same."""


_at_door = _AtDoor()


def _before_fork() -> None:
    _at_door.refused = False
    who = owner.get() if _doors.opened else None
    if who is None:
        return
    try:
        entrance = _at_door.entrance = who.admit()
    except Cancelled:
        _at_door.refused = True
        return
    if entrance is not None:
        try:
            _at_door.word = os.pipe()
        except OSError:
            entrance.doubted()


def _in_child() -> None:
    # The loop, and all that watches, is the parent's.
    _doors.opened = 0
    entrance, _at_door.entrance = _at_door.entrance or _at_door.came_by, None
    if _at_door.refused:
        os.kill(os.getpid(), signal.SIGKILL)
    if entrance is not None:
        _forget_signal_handlers()
        # For whatever it becomes with the environment it has.
        os.putenv(entrance.tag, b"1")
        _at_door.came_by = entrance if entrance.enter() else None
        if _at_door.word is not None:
            os.write(_at_door.word[1], b"1")
            _close_word()


def _forget_signal_handlers() -> None:
    """Before it can be found, and be sent a signal: a copy of this program must not do what this
    program does on SIGTERM, such as stopping commands, or telling the loop that it shares."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)


def _in_parent() -> None:
    entrance, _at_door.entrance = _at_door.entrance, None
    if entrance is None:
        return
    try:
        if _at_door.word is not None:
            _wait_for_word(entrance, *_at_door.word)
    finally:
        _close_word()
        entrance.passed()


def _wait_for_word(entrance: Entrance, ours: int, theirs: int) -> None:
    """Until then an empty cell says nothing. Entering takes the kernel some milliseconds after a
    pause, which whoever starts a program waits for anyway: it is told how the start went."""
    os.close(theirs)
    _at_door.word = (ours, -1)
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    if not poll.poll(_ENTER_S_MAX * 1000):
        entrance.doubted()


def _close_word() -> None:
    word, _at_door.word = _at_door.word, None
    for fd in word or ():
        if fd >= 0:
            os.close(fd)


# --- what forks without telling Python ------------------------------------------------------------

# Where `fork_exec` has these, in every Python from 3.11 on. Its last argument, whether it may
# vfork, went away in 3.14.
_ARGUMENTS: Final = 22 if sys.version_info >= (3, 14) else 23
_ARGV: Final = 0
_ENVIRONMENT: Final = 5
_PREEXEC: Final = 21

# Started by whoever first needs them, and shared by all from then on.
_SHARED: Final = (
    b"from multiprocessing.resource_tracker import",
    b"from multiprocessing.forkserver import",
)


class _ForkExec:
    """In place of `_posixsubprocess.fork_exec`."""

    def __init__(self, original: Callable[..., int]) -> None:
        self.original = original

    def __call__(self, *args: Any) -> int:
        who = owner.get() if _doors.opened else None
        if who is None:
            return self.original(*args)
        if len(args) != _ARGUMENTS:
            who.lost()
            return self.original(*args)
        if _is_shared(args[_ARGV]):
            _doors.watch_forkserver()
            with nobodys():
                return self.original(*args)
        entrance = who.admit()
        if entrance is None:
            return self.original(*args)
        try:
            return self._start(list(args), entrance)
        finally:
            entrance.passed()

    def _start(self, args: list[Any], entrance: Entrance) -> int:
        forks = entrance.has_to_be_entered or args[_PREEXEC] is not None
        if args[_ENVIRONMENT] is None and not forks:
            args[_ENVIRONMENT] = _own_environment()
        if args[_ENVIRONMENT] is not None:
            args[_ENVIRONMENT] = [*args[_ENVIRONMENT], entrance.tag + b"=1"]
        if forks:
            # Any function will do: the child has entered before it is called.
            args[_PREEXEC] = args[_PREEXEC] or os.getpid
            return self.original(*args)
        pid = self.original(*args)
        entrance.born(pid)
        return pid


def _own_environment() -> list[bytes]:
    """What a child would inherit, which is more than Python knows of: libraries set variables."""
    try:
        entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.PyDLL(None), "environ")
    except ValueError:
        return [name + b"=" + value for name, value in os.environb.items()]
    return list(takewhile(lambda entry: entry is not None, map(entries.__getitem__, count())))


def _is_shared(argv: Sequence[Argument]) -> bool:
    return any(os.fsencode(argument).startswith(_SHARED) for argument in argv)


class _ForkServer:
    """In place of `multiprocessing.forkserver.connect_to_new_process`: the child is forked by a
    server that serves everybody, and so cannot be held."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, *args: Any, **options: Any) -> Any:
        who = owner.get() if _doors.opened else None
        if who is not None:
            who.lost()
        return self.original(*args, **options)


class _SubprocessOfLoop:
    """In place of `subprocess_exec` and `subprocess_shell` of a loop that starts processes by
    itself (uvloop): it forks as it should, but makes the environment before."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __get__(self, loop: object, kind: type) -> Callable[..., Any]:
        return partial(self, loop)

    def __call__(self, loop: object, *args: Any, env: Any = None, **options: Any) -> Any:
        who = owner.get() if _doors.opened else None
        entrance = who.admit() if who is not None else None
        if entrance is not None:
            entrance.passed()
            env = {**(os.environ if env is None else env), os.fsdecode(entrance.tag): "1"}
        return self.original(loop, *args, env=env, **options)


class _Spawn:
    """In place of `os.posix_spawn` and `os.posix_spawnp`, which fork without telling anybody."""

    def __init__(self, original: Callable[..., int], *, searches: bool) -> None:
        self.original = original
        self._searches = searches

    def __call__(
        self,
        path: Argument,
        argv: Sequence[Argument],
        env: Any,
        /,
        **options: Any,
    ) -> int:
        if not _doors.opened or owner.get() is None:
            return self.original(path, argv, env, **options)
        name = os.fsencode(path)
        environment = None
        if env is not None:
            entries = env.items()
            environment = [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in entries]
        actions = _Actions(**options)
        paths = [name]
        if self._searches and b"/" not in name:
            paths = [os.path.join(os.fsencode(folder), name) for folder in os.get_exec_path(env)]
        arguments = [os.fsencode(each) for each in argv]
        if not arguments:
            raise ValueError("posix_spawn: argv must not be empty")
        error = _fork_and_exec(arguments, paths, environment, actions)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path)
        return error


class _Actions:
    """What `posix_spawn` is asked to do in the child."""

    def __init__(
        self,
        *,
        file_actions: Sequence[tuple[Any, ...]] | None = (),
        setpgroup: int | None = None,
        resetids: bool = False,
        setsid: bool = False,
        setsigmask: Sequence[int] = (),
        setsigdef: Sequence[int] = (),
        scheduler: tuple[int | None, Any] | None = None,
    ) -> None:
        self._files = list(file_actions or ())
        self._group = setpgroup
        self._resets = resetids
        self._session = setsid
        self._mask = list(setsigmask)
        self._defaults = list(setsigdef)
        self._scheduler = scheduler

    @property
    def highest(self) -> int:
        """No descriptor that it touches is above this one."""
        numbers = [each for action in self._files for each in action[1:3] if isinstance(each, int)]
        return max(numbers, default=2)

    def carry_out(self, kept: int) -> None:
        """In the child, whose descriptor `kept` stays open. Raises OSError."""
        if self._session:
            os.setsid()
        if self._group is not None:
            os.setpgid(0, self._group)
        if self._scheduler is not None:
            policy, param = self._scheduler
            if policy is None:
                os.sched_setparam(0, param)
            else:
                os.sched_setscheduler(0, policy, param)
        if self._resets:
            os.setegid(os.getgid())
            os.seteuid(os.getuid())
        for action in self._files:
            _carry_out_on_files(kept, *action)
        for number in self._defaults:
            signal.signal(number, signal.SIG_DFL)
        if self._mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _carry_out_on_files(kept: int, what: int, fd: int, *more: Any) -> None:
    if what == os.POSIX_SPAWN_OPEN:
        path, flags, mode = more
        opened = os.open(path, flags & ~os.O_CLOEXEC, mode)
        if opened != fd:
            os.dup2(opened, fd)
            os.close(opened)
        os.set_inheritable(fd, not flags & os.O_CLOEXEC)
    elif what == os.POSIX_SPAWN_CLOSE:
        os.close(fd)
    elif what == os.POSIX_SPAWN_DUP2:
        os.dup2(fd, more[0])
    else:
        # To close all from one on, which Python can ask for since 3.13.
        os.closerange(fd, kept)
        os.closerange(max(fd, kept + 1), os.sysconf("SC_OPEN_MAX"))


def _system(command: Argument) -> int:
    """In place of `os.system`. Ctrl-C is not ignored meanwhile: others may be waiting for it."""
    if not _doors.opened or owner.get() is None:
        return _doors.system(command)
    sys.audit("os.system", command)
    argv = [b"/bin/sh", b"-c", os.fsencode(command)]
    pid = _fork_and_exec(argv, [argv[0]], None, _Actions())
    if isinstance(pid, OSError):
        return 127 << 8
    return os.waitpid(pid, 0)[1]


def _fork_and_exec(
    argv: list[bytes], paths: list[bytes], environment: list[bytes] | None, actions: _Actions
) -> int | OSError:
    """The pid, or why it could not be started; nothing is left of it then."""
    told, telling = _pipe_above(actions.highest)

    def prepare() -> None:
        try:
            actions.carry_out(telling)
        except OSError as error:
            os.write(telling, b"OSError:%X:" % (error.errno or 0))
            os._exit(127)

    try:
        arguments: tuple[Any, ...] = (
            argv, paths, False, (), None, environment, -1, -1, -1, -1, -1, -1, told, telling,
            False, False, -1, None, None, None, -1, prepare, False,
        )  # fmt: skip
        pid = _posixsubprocess.fork_exec(*arguments[:_ARGUMENTS])
        os.close(telling)
        telling = -1
        complaint = b""
        while piece := os.read(told, 1000):
            complaint += piece
    finally:
        for fd in (told, telling):
            if fd >= 0:
                os.close(fd)
    if not complaint:
        return pid
    os.waitpid(pid, 0)
    code = int(complaint.split(b":")[1], 16)
    return OSError(code, os.strerror(code))


def _pipe_above(highest: int) -> tuple[int, int]:
    """A pipe whose descriptors are out of the way of those that the child is to have."""
    import fcntl

    low = os.pipe()
    try:
        first, second = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest + 1) for fd in low)
    finally:
        for fd in low:
            os.close(fd)
    return first, second


# --- threads --------------------------------------------------------------------------------------


def _submit(self: pools.ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """In place of `ThreadPoolExecutor.submit`. The threads of a pool serve many, so they belong
    to nobody, and each job to whoever gave it."""
    who = owner.get()
    if who is None or not _doors.opened:
        return _doors.submit(self, fn, *args, **kwargs)

    def job() -> Any:
        restore = owner.set(who)
        try:
            return fn(*args, **kwargs)
        finally:
            owner.reset(restore)

    with nobodys():
        return _doors.submit(self, job)


_STARTED_BY: Final = "_bargein_owner_of_processes"


def _start(self: threading.Thread) -> None:
    """In place of `Thread.start`."""
    who = owner.get()
    if who is not None and _doors.opened:
        # Not in a dictionary of ours: a class derived from Thread need not be hashable.
        self.__dict__[_STARTED_BY] = who
    _doors.start(self)


def _bootstrap_inner(self: threading.Thread) -> None:
    """In place of what a new thread runs first: its context is still empty."""
    who = self.__dict__.pop(_STARTED_BY, None)
    if who is not None:
        # From Python 3.14 on, what the thread is for runs in a context of its own.
        context: Context | None = getattr(self, "_context", None)
        if context is None:
            owner.set(who)
        else:
            context.run(owner.set, who)
    _doors.bootstrap(self)


_NOT_THERE: Final = object()


class _Doors:
    """What is replaced while somebody watches, and what was there before."""

    def __init__(self) -> None:
        self.opened = 0
        self.system: Callable[..., int] = os.system
        self.submit: Callable[..., Any] = pools.ThreadPoolExecutor.submit
        self.start: Callable[[threading.Thread], None] = threading.Thread.start
        self.bootstrap: Callable[[threading.Thread], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        self._registered = False
        self._replaced: list[tuple[object, str, object, object]] = []

    def install(self) -> None:
        if not self._registered:
            # For good: Python has no way to take it back. It looks whether a door is open.
            self._registered = True
            os.register_at_fork(
                before=_before_fork, after_in_child=_in_child, after_in_parent=_in_parent
            )
        fork_exec = _ForkExec(_posixsubprocess.fork_exec)
        self._replace(_posixsubprocess, "fork_exec", fork_exec)
        self._replace(subprocess, "_fork_exec", fork_exec)
        if hasattr(os, "posix_spawn"):
            self._replace(os, "posix_spawn", _Spawn(os.posix_spawn, searches=False))
            self._replace(os, "posix_spawnp", _Spawn(os.posix_spawnp, searches=True))
        self.system = os.system
        self._replace(os, "system", _system)
        self.submit = pools.ThreadPoolExecutor.submit
        self._replace(pools.ThreadPoolExecutor, "submit", _submit)
        self.start = threading.Thread.start
        self._replace(threading.Thread, "start", _start)
        self.bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        self._replace(threading.Thread, "_bootstrap_inner", _bootstrap_inner)
        self.watch_forkserver()

    def watch_forkserver(self) -> None:
        """Once it is imported, which it seldom is."""
        module = sys.modules.get("multiprocessing.forkserver")
        if module is not None and not isinstance(module.connect_to_new_process, _ForkServer):
            by = _ForkServer(module.connect_to_new_process)
            self._replace(module, "connect_to_new_process", by)

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
        """What somebody else has replaced meanwhile stays as it is; ours behind it does nothing."""
        while self._replaced:
            where, name, before, ours = self._replaced.pop()
            if vars(where).get(name) is not ours:
                continue
            if before is _NOT_THERE:
                delattr(where, name)
            else:
                setattr(where, name, before)


_doors = _Doors()
