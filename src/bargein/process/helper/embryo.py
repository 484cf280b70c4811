"""A process that waits for a command and becomes it.

Born ahead of time in the cell that will hold it, so that a command is contained before it exists
and costs no birth when it is wanted. On its channel it first says who it is, `("born", pid)`. Then
comes the order, with standard input, output and error as descriptors. Nothing more is heard if it
became the command: the channel closes, by exec. Else `("failed", stage, errno)`, and it exits. If
the channel closes before the order came it exits quietly.

All signals are blocked until just before exec, so that none is lost and none finds a Python
handler: one sent to an embryo takes effect on the command, or a moment before.
"""

import fcntl
import os
import signal
import socket
import termios
from collections.abc import Sequence
from typing import NoReturn

from bargein.process.helper import wire

# argv, environment, working directory, paths to try, whether the input is a terminal
Order = tuple[list[bytes], dict[bytes, bytes], bytes, list[bytes], bool]


def live(channel: socket.socket, not_ours: Sequence[int]) -> NoReturn:
    """Be an embryo. For a process that was just born; `not_ours` are its parent's descriptors."""
    try:
        wire.close_all(not_ours)
        os.setsid()
        rehearse()
        wire.send(channel, ("born", os.getpid()))
        received = wire.receive(channel)
        if received is not None:
            stage, code = _become(received[0], received[1], signal.SIG_SETMASK)
            wire.send(channel, ("failed", stage, code))
    finally:
        os._exit(127)


def _become(order: wire.Message, fds: list[int], mask_how: int) -> tuple[str, int]:
    """Returns only if it fails: what failed, and the error."""
    stage = "descriptors"
    code = 0
    try:
        argv, environment, directory, paths, terminal = order
        for standard, fd in enumerate(fds):
            os.dup2(fd, standard)
        if terminal:
            stage = "terminal"
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        stage = "directory"
        os.chdir(directory)
        stage = "exec"
        signal.pthread_sigmask(mask_how, ())
        code = _exec_first(paths, argv, environment)
    except OSError as error:
        code = error.errno or 0
    return stage, code


def _exec_first(paths: list[bytes], argv: list[bytes], environment: dict[bytes, bytes]) -> int:
    """Try the paths in turn, as a shell does: a file that may not be run is passed over, and is
    the answer if no other is found."""
    missing = 0
    other = 0
    for path in paths:
        try:
            # Looking costs a tenth of trying, and most folders of a PATH do not have it.
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
    """Go through all the motions once while nobody waits.

    The first run of any code after a fork copies the pages it touches; that is half the time
    between an order and its exec.
    """
    order = ([b"bargein"], {b"A": b"1"}, b".", [b"/nowhere", b"/"], False)
    here, there = wire.pair()
    wire.send(here, order, [0, 1, 2])
    received = wire.receive(there)
    if received is not None:
        _become(received[0], received[1], signal.SIG_BLOCK)
        wire.close_all(received[1])
    here.close()
    there.close()
