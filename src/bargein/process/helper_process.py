"""Our side of the helper: starts it, sends it orders, starts another if it dies.

The helper (`bargein.process.helper`) starts spare processes for us and kills our commands if we are
killed. The processes that it started live on without it. If it dies before it has carried out an
order, the channel that was sent with the order closes, which ends the wait for the answer.

Everything is called on the loop, except `HelperProcess.begin`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bargein.process.fork_hooks import unowned
from bargein.process.helper import wire
from bargein.process.owner_deadline import OWNER_DEADLINE
from bargein.process.values import Hiding
from bargein.process.waiting import DescriptorWatch, Event, Once

CLOSE_S_MAX: Final = 1.0

# Empty modules stand in for the packages above the helper, so that it imports none of them.
_PROGRAM: Final = """
import sys
for name, path in (("bargein", sys.argv[1]), ("bargein.process", sys.argv[2])):
    package = type(sys)(name)
    package.__path__ = [path]
    sys.modules[name] = package
from bargein.process.helper.main import main
network, deadline, hidden = sys.argv[8], int(sys.argv[9]), int(sys.argv[10])
directories = sys.argv[11:]
given = [directories[:hidden], directories[hidden:], sys.argv[7], network, deadline]
main(*map(int, sys.argv[3:6]), sys.argv[6], *given)
"""

OnAnswer = Callable[[wire.Message | None], object]


class HelperProcess:
    """`lock` and `instance`: the locked cgroup directory, if any, that it kills when we die.

    `hiding` names the directories that it hides from commands. With a `network`, "none/auto" say,
    commands run in a sandbox. Set `expected` to how the first helper did both: a later helper that
    cannot do the same starts no command.
    """

    def __init__(
        self,
        watch: DescriptorWatch,
        *,
        lock: int = -1,
        instance: str = "",
        hiding: Hiding = Hiding(),  # noqa: B008 - frozen
        network: str = "",
    ) -> None:
        self._watch = watch
        self._lock = lock
        self._instance = instance
        self.hiding = hiding
        self.network = network
        self.expected = ""
        self._running: _Running | None = None
        self._closed = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._running.process.pid if self._running is not None else None

    def begin(self) -> None:
        """Start it before the first order, so that it can kill our commands if we die. Any
        thread."""
        if self._running is None:
            self._start()

    def order(self, message: wire.Message, fds: Sequence[int]) -> None:
        """Send an order. Starts a helper if there is none; raises OSError if that fails."""
        if self._closed:
            raise BrokenPipeError("the helper has been closed")
        for _ in range(2):
            running = self._running or self._start()
            try:
                running.send(message, fds)
            except (BrokenPipeError, ConnectionError):
                # It died, and the notice of its death has not come yet.
                self._forget(running)
            else:
                return
        raise BrokenPipeError("the helper dies as soon as it is started")

    def ask(self, message: wire.Message, on_answer: OnAnswer) -> None:
        """Send an order that has one answer. Calls `on_answer` once, on the loop: with the
        answer, or with None if there will be none."""
        _Answer(self._watch, on_answer).expect(self, message)

    def kill(self) -> None:
        """For a helper that does not answer. The next order starts another."""
        if self._running is not None:
            self._running.process.send_signal(signal.SIGKILL)
            self._forget(self._running)

    async def close(self) -> None:
        self._closed = True
        running = self._running
        if running is None:
            return
        try:
            wire.send(running.orders, ("leave",))
        except OSError:
            pass  # it is gone, or too busy to receive; then it is killed below
        running.orders.shutdown(socket.SHUT_RDWR)
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await running.gone.wait()
        except TimeoutError:
            self.kill()

    def _start(self) -> "_Running":
        hiding = (self.expected, self.network, self.hiding)
        self._running = _Running(self._watch, self._lock, self._instance, hiding, self._forget)
        self.starts += 1
        return self._running

    def _forget(self, running: "_Running") -> None:
        if self._running is running:
            self._running = None
        running.close()


class _Running:
    """One helper process, until we have collected it."""

    def __init__(
        self,
        watch: DescriptorWatch,
        lock: int,
        instance: str,
        hiding: tuple[str, str, Hiding],
        on_death: "Callable[[_Running], object]",
    ) -> None:
        self._watch = watch
        self._waiting: deque[tuple[wire.Message, list[int]]] = deque()
        self.gone: Once[None] = Once(watch.loop)
        self.orders, theirs = wire.pair()
        owner = -1
        try:
            owner = os.pidfd_open(os.getpid())
            deadline = OWNER_DEADLINE.file
            fds = [fd for fd in (theirs.fileno(), owner, lock, deadline) if fd >= 0]
            with unowned():
                self.process = subprocess.Popen(
                    _command(theirs.fileno(), owner, lock, instance, deadline, *hiding),
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    cwd="/",
                    start_new_session=True,
                )
            self._handle = os.pidfd_open(self.process.pid)
        except BaseException:
            self.orders.close()
            raise
        finally:
            theirs.close()
            if owner >= 0:
                os.close(owner)
        self.orders.setblocking(False)
        watch.add(self._handle, Event.READABLE, partial(on_death, self))

    def send(self, message: wire.Message, fds: Sequence[int]) -> None:
        if not self._waiting:
            try:
                wire.send(self.orders, message, fds)
                return
            except BlockingIOError:
                self._watch.add(self.orders.fileno(), Event.WRITABLE, self._send_waiting)
        self._waiting.append((message, [os.dup(fd) for fd in fds]))

    def _send_waiting(self) -> None:
        while self._waiting:
            message, fds = self._waiting[0]
            try:
                wire.send(self.orders, message, fds)
            except BlockingIOError:
                return
            except OSError:
                pass  # it is dead; closing the descriptors ends the wait for its answer
            self._waiting.popleft()
            wire.close_all(fds)
        self._watch.remove(self.orders.fileno())

    def close(self) -> None:
        """Collect it, dead or just killed, and close our ends."""
        if self.orders.fileno() < 0:
            return
        self._watch.remove(self._handle)
        os.close(self._handle)
        self._watch.remove(self.orders.fileno())
        self.orders.close()
        for _message, fds in self._waiting:
            wire.close_all(fds)
        self._waiting.clear()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.gone.set(None)


class _Answer:
    """The one answer to an order, on a channel of its own."""

    def __init__(self, watch: DescriptorWatch, on_answer: OnAnswer) -> None:
        self._watch = watch
        self._on_answer = on_answer
        self._ours, self._theirs = wire.pair()
        self._ours.setblocking(False)

    def expect(self, helper: HelperProcess, message: wire.Message) -> None:
        try:
            helper.order(message, [self._theirs.fileno()])
        except OSError:
            self._ours.close()
            self._watch.loop.call_soon(self._on_answer, None)
            return
        finally:
            self._theirs.close()
        self._watch.add(self._ours.fileno(), Event.READABLE, self._hear)

    def _hear(self) -> None:
        try:
            received = wire.receive(self._ours)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = None
        self._watch.remove(self._ours.fileno())
        self._ours.close()
        self._on_answer(received[0] if received is not None else None)


def _command(
    orders: int,
    owner: int,
    lock: int,
    instance: str,
    deadline: int,
    expected: str,
    network: str,
    hiding: Hiding,
) -> list[str]:
    process = Path(__file__).parent
    arguments = [str(process.parent), str(process), str(orders), str(owner), str(lock), instance]
    arguments += [expected, network, str(deadline)]
    arguments += [str(len(hiding.directories)), *hiding.directories, *hiding.kept]
    return [sys.executable, "-I", "-S", "-E", "-c", _PROGRAM, *arguments]


def _environment() -> dict[str, str]:
    """Only what an interpreter may need to start: commands can read the helper's environment."""
    name = "LD_LIBRARY_PATH"
    return {name: os.environ[name]} if name in os.environ else {}
