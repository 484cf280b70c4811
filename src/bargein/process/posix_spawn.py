"""`os.posix_spawn`, `os.posix_spawnp` and `os.system`, done by `fork_exec`.

Python's own versions fork in C and run no fork hook in the child. These do the same, with the same
arguments, results and errors, by a call that does run the hooks (see `fork_hooks`). They know
nothing of calls or enclosures. Any thread; they wait as long as the originals do.
"""

import _posixsubprocess
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

FORK_EXEC_ARGUMENTS: Final = 22 if sys.version_info >= (3, 14) else 23
"""How many `fork_exec` takes. The last one, whether it may vfork, is gone since 3.14."""

Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def posix_spawn(
    path: Argument, argv: Sequence[Argument], env: Any, *, search: bool, options: dict[str, Any]
) -> int:
    """`search` looks for `path` on PATH, as `posix_spawnp` does. Raises OSError."""
    name = os.fsencode(path)
    environment = None
    if env is not None:
        entries = env.items()
        environment = [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in entries]
    actions = _Actions(**options)
    paths = [name]
    if search and b"/" not in name:
        paths = [os.path.join(os.fsencode(folder), name) for folder in os.get_exec_path(env)]
    arguments = [os.fsencode(each) for each in argv]
    if not arguments:
        raise ValueError("posix_spawn: argv must not be empty")
    started = _fork_and_exec(arguments, paths, environment, actions)
    if isinstance(started, OSError):
        raise OSError(started.errno, started.strerror, path)
    return started


def system(command: Argument) -> int:
    """Unlike the original it does not ignore Ctrl-C meanwhile: others may be waiting for it."""
    sys.audit("os.system", command)
    argv = [b"/bin/sh", b"-c", os.fsencode(command)]
    pid = _fork_and_exec(argv, [argv[0]], None, _Actions())
    if isinstance(pid, OSError):
        return 127 << 8
    return os.waitpid(pid, 0)[1]


class _Actions:
    """What the options of `posix_spawn` ask for in the child."""

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
        """No descriptor that they touch is above this one."""
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
        # Close all descriptors from `fd` on, an action that Python has since 3.13.
        os.closerange(fd, kept)
        os.closerange(max(fd, kept + 1), os.sysconf("SC_OPEN_MAX"))


def _fork_and_exec(
    argv: list[bytes], paths: list[bytes], environment: list[bytes] | None, actions: _Actions
) -> int | OSError:
    """Returns the pid, or why it could not be started; then the child has been collected."""
    readable, writable = _pipe_above(actions.highest)

    def prepare() -> None:
        try:
            actions.carry_out(writable)
        except OSError as error:
            os.write(writable, b"OSError:%X:" % (error.errno or 0))
            os._exit(127)

    try:
        arguments: tuple[Any, ...] = (
            argv, paths, False, (), None, environment, -1, -1, -1, -1, -1, -1, readable, writable,
            False, False, -1, None, None, None, -1, prepare, False,
        )  # fmt: skip
        pid = _posixsubprocess.fork_exec(*arguments[:FORK_EXEC_ARGUMENTS])
        os.close(writable)
        writable = -1
        complaint = b""
        while piece := os.read(readable, 1000):
            complaint += piece
    finally:
        for fd in (readable, writable):
            if fd >= 0:
                os.close(fd)
    if not complaint:
        return pid
    os.waitpid(pid, 0)
    code = int(complaint.split(b":")[1], 16)
    return OSError(code, os.strerror(code))


def _pipe_above(highest: int) -> tuple[int, int]:
    """A pipe with descriptors above `highest`, out of the way of those that the child needs."""
    low = os.pipe()
    try:
        first, second = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest + 1) for fd in low)
    finally:
        for fd in low:
            os.close(fd)
    return first, second
