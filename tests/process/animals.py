"""The zoo: programs that are hard to kill. Run as `python animals.py KIND`.

Each says "ready" on its output when everything it will start has been started. They use nothing
but the standard library's small modules, and each is bounded: it ends by itself after a while.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

LIFE_S = 120


def say_ready() -> None:
    os.write(1, b"ready\n")


def live() -> NoReturn:
    time.sleep(LIFE_S)
    os._exit(0)


def fork(child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    return pid


def sleeper() -> None:
    say_ready()
    live()


def family() -> None:
    """A child and a grandchild, all in one group."""

    def child() -> None:
        fork(sleeper)
        live()

    fork(child)
    live()


def setsid() -> None:
    def child() -> None:
        os.setsid()
        sleeper()

    fork(child)
    live()


def double_fork() -> None:
    """The child in the middle is gone: the grandchild is nobody's but init's."""

    fork(lambda: fork(sleeper))
    os.wait()
    live()


def daemon() -> None:
    """Double fork and setsid; the first process itself goes too."""

    def child() -> None:
        os.setsid()
        fork(sleeper)

    fork(child)


def nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execvp("nohup", ["nohup", sys.executable, "-I", "-S", "-E", __file__, "sleeper"])


def deaf() -> None:
    """Ignores what can be ignored, and so does its child."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    fork(sleeper)
    live()


def frozen() -> None:
    """Stopped, as by Ctrl-Z, with a child that is stopped too."""

    def child() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        live()

    pid = fork(child)
    os.waitpid(pid, os.WUNTRACED)
    say_ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    live()


def chain() -> None:
    """Forks a successor and exits, over and over, in a session of its own.

    Nobody can catch it by looking for it, so it also ends when a file appears.
    """
    end = time.monotonic() + LIFE_S
    os.setsid() if os.fork() == 0 else os._exit(0)
    say_ready()
    while time.monotonic() < end and not os.path.exists(os.environ["BARGEIN_ZOO_END"]):
        if os.fork() != 0:
            os._exit(0)
        time.sleep(0.001)


def zombies() -> None:
    """Never collects its children."""
    for _ in range(20):
        fork(lambda: None)
    say_ready()
    live()


def flood() -> None:
    say_ready()
    line = b"0123456789abcdef" * 4096
    end = time.monotonic() + LIFE_S
    while time.monotonic() < end:
        os.write(1, line)


def silent() -> None:
    """Closes its outputs and goes on."""
    say_ready()
    for fd in (0, 1, 2):
        os.close(fd)
    live()


def pipe_holder() -> None:
    """Hands its output to one that escapes, and is done."""

    def child() -> None:
        os.setsid()

        def grandchild() -> None:
            say_ready()
            live()

        fork(grandchild)

    fork(child)
    os.wait()


def prompt() -> None:
    """Catches Ctrl-C, as an editor or a shell does, and goes on."""
    signal.signal(signal.SIGINT, lambda _number, _frame: os.write(1, b"caught\n"))
    say_ready()
    end = time.monotonic() + LIFE_S
    while time.monotonic() < end:
        time.sleep(1)


def quick() -> None:
    """Has escaped before its starter knows that it runs."""
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                live()
            os._exit(0)


KINDS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        sleeper,
        family,
        setsid,
        double_fork,
        daemon,
        nohup,
        deaf,
        frozen,
        chain,
        zombies,
        flood,
        silent,
        pipe_holder,
        prompt,
        quick,
    )
}

if __name__ == "__main__":
    # The interpreter's own handler only makes a note, which nobody reads if it comes in the moment
    # before a long sleep.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    KINDS[sys.argv[1]]()
