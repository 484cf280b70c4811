"""A process that waits for a command and becomes it.

The helper starts it ahead of time, in the enclosure that will hold the command. So the command is
contained before it runs, and starting a process is not on its way. On its channel the spare process
sends `("ready", pid)`. It then receives a request, with standard input, output and error as
descriptors. If it becomes the command, exec closes the channel; otherwise it sends `("failed",
stage, errno)` and exits. If the channel closes before a request came, it exits.

All signals are blocked until just before exec, so that none is lost and none meets a Python
handler: a signal to a spare process takes effect on the command, or a moment before.
"""

import errno
import fcntl
import os
import resource
import signal
import socket
import termios
from collections.abc import Callable, Sequence
from typing import NoReturn

from bargein.process.helper import sandbox, wire
from bargein.process.helper.syscalls import CLONE_NEWTIME, enter_namespace, unshare


def live(
    channel: socket.socket,
    not_ours: Sequence[int],
    close_in: Callable[[], sandbox.Marks] | None = None,
    cgroups: Sequence[str] = (),
    *,
    marked: bool = False,
) -> NoReturn:
    """Be a spare process. Called in a process that was just forked; `not_ours` are descriptors of
    its parent. `close_in` puts it into a sandbox. It enters `cgroups`, which limit it.
    With `marked`, it and all that it starts can be told by their time namespace."""
    try:
        wire.close_all(not_ours)
        os.setsid()
        if marked:
            # Before it says that it is ready: then its namespace is looked at.
            _be_marked()
        # Our number outside of our pid namespace, if we are in one: /proc is still the outside's.
        # Before the rehearsal, so that a stop meanwhile does not take us for a stranger.
        wire.send(channel, ("ready", int(os.readlink("/proc/self"))))
        marks: sandbox.Marks = []
        failed = 0
        try:
            for directory in cgroups:
                _enter(directory)
            if close_in is not None:
                marks = close_in()
        except OSError as error:
            failed = error.errno or errno.EPERM
        rehearse()
        received = wire.receive(channel)
        if received is not None:
            outcome = ("sandbox", failed)
            if not failed:
                outcome = _become(received[0], received[1], signal.SIG_SETMASK, marks)
            wire.send(channel, ("failed", *outcome))
    finally:
        os._exit(127)


def may_be_marked() -> bool:
    """Whether this process and those that it forks may enter time namespaces. Changes nothing."""
    try:
        now = os.open("/proc/self/ns/time", os.O_RDONLY)
        try:
            enter_namespace(now, CLONE_NEWTIME)
        finally:
            os.close(now)
    except OSError:
        return False
    return True


def _be_marked() -> None:
    """Enter a time namespace of our own, whose clocks show what they showed before. A process that
    leaves its cgroup, its parents and its environment behind is still in its namespace, with all
    that it starts."""
    try:
        unshare(CLONE_NEWTIME)
    except OSError:
        return  # there are too many
    new = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    enter_namespace(new, CLONE_NEWTIME)
    os.close(new)


def _enter(cgroup: str) -> None:
    file = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY)
    try:
        os.write(file, b"0")
    finally:
        os.close(file)


def _become(
    request: wire.Message, fds: list[int], mask_how: int, marks: sandbox.Marks
) -> tuple[str, int]:
    """Become the command. Returns only if that fails: the stage and the error."""
    stage = "descriptors"
    code = 0
    try:
        argv, environment, directory, paths, terminal, rlimits = request
        for standard, fd in enumerate(fds):
            os.dup2(fd, standard)
        if terminal:
            stage = "terminal"
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        stage = "stale"
        if marks and sandbox.is_stale(marks):
            return stage, 0
        stage = "directory"
        os.chdir(directory)
        stage = "exec"
        for which, value in rlimits:
            resource.setrlimit(which, (value, value))
        signal.pthread_sigmask(mask_how, ())
        code = _exec_first(paths, argv, environment)
    except OSError as error:
        code = error.errno or 0
    return stage, code


def _exec_first(paths: list[bytes], argv: list[bytes], environment: dict[bytes, bytes]) -> int:
    """Try the paths in turn, as a shell does: it skips a file that may not be run, and returns
    that error if no other file is found."""
    missing = 0
    other = 0
    for path in paths:
        try:
            # A stat costs a tenth of an exec, and most folders of a PATH do not have the file.
            os.stat(path)
            os.execve(path, argv, environment)
        except OSError as error:
            code = error.errno or 0
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                missing = code
            elif isinstance(error, PermissionError):
                other = other or code
            else:
                return code
    return other or missing


def rehearse() -> None:
    """Go through all the motions once, up to an exec that fails, while nobody waits.

    The first run of any code after a fork copies the pages that it touches, which takes half of
    the time between a request and its exec.
    """
    request = ([b"bargein"], {b"A": b"1"}, b".", [b"/nowhere", b"/"], False, ())
    here, there = wire.pair()
    wire.send(here, request, [0, 1, 2])
    received = wire.receive(there)
    if received is not None:
        _become(received[0], received[1], signal.SIG_BLOCK, [])
        wire.close_all(received[1])
    here.close()
    there.close()
