"""The first process of a command's pid namespace. It makes the sandbox around itself.

When it ends, the kernel kills everybody in the namespace. It ends when the command and everything
that the command started are gone, or as soon as Bargein dies: so even if every process of ours is
killed at once, no command lives on. The command itself is not its child (so that Bargein, or a
supervisor, collects the command's own exit status), but every orphan in the namespace is.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Self

from bargein.process.helper import rights, sandbox, wire
from bargein.process.helper.syscalls import CLONE_NEWPID, clone_init, enter_namespace

LINGER_S = 0.03
# The first process that is started after it.
_COMMAND = 2


class Namespace:
    """A new pid namespace with its first process, which is a child of ours to collect. From `with`
    on, our children are in that namespace:

        with Namespace(owner, plan, network, not_ours) as namespace:
            pid = fork()
            if pid == 0:
                spare.live(channel, fds, sandboxing, namespace)
            namespace.has_command()

    `not_ours` are descriptors of ours that its first process closes. With `returns`, children that
    we start after `with` are in our own pid namespace again, which takes root's rights.
    """

    def __init__(
        self,
        owner: int,
        plan: sandbox.Plan,
        network: str,
        not_ours: Sequence[int],
        *,
        returns: bool,
    ) -> None:
        self._network = network
        self._returns = returns
        self._ours = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._channel, theirs = wire.pair()
        self.pid = clone_init()
        if self.pid == 0:
            self._channel.close()
            wire.close_all([*not_ours, self._ours])
            _live(theirs, owner, plan, network)
        theirs.close()
        self._handle = os.pidfd_open(self.pid)

    def __enter__(self) -> Self:
        enter_namespace(self._handle, CLONE_NEWPID)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._returns:
            enter_namespace(self._ours, CLONE_NEWPID)
        self._channel.close()
        wire.close_all([self._ours, self._handle])

    def has_command(self) -> None:
        """The command's process was started."""
        wire.send(self._channel, ("command",))

    def join(self) -> sandbox.Marks:
        """In the command's process: wait until the sandbox is made, and be in it."""
        received = wire.receive(self._channel)
        if received is None:
            raise OSError(0, "the first process of the sandbox died")
        code, marks = received[0]
        if code:
            raise OSError(code, os.strerror(code))
        sandbox.join(self._handle, self._network)
        self._channel.close()
        wire.close_all([self._ours, self._handle])
        return list(marks)


def into_namespaces(
    namespace: Namespace, sandboxing: sandbox.Sandboxing
) -> Callable[[], sandbox.Marks]:
    def close_in() -> sandbox.Marks:
        marks = namespace.join()
        rights.restrict_system_calls(sandboxing[2])
        return marks

    return close_in


def into_domain(
    plan: sandbox.Plan | None, sandboxing: sandbox.Sandboxing | None
) -> Callable[[], sandbox.Marks] | None:
    if plan is None or sandboxing is None:
        return None

    def close_in() -> sandbox.Marks:
        marks = sandbox.enter_domain(plan)
        rights.restrict_system_calls(sandboxing[2])
        return marks

    return close_in


def _live(channel: socket.socket, owner: int, plan: sandbox.Plan, network: str) -> NoReturn:
    try:
        # It holds the number 2, so the command's process has to exist before anything is tried.
        if wire.receive(channel) is not None:
            answer: wire.Message
            try:
                answer = (0, sandbox.build(plan, network))
            except OSError as error:
                answer = (error.errno or 255, ())
            wire.send(channel, answer)
            wire.receive(channel)  # until the command's process has joined us
            rights.refuse_tracing()
            channel.close()
            _serve(owner)
    finally:
        os._exit(0)


def _serve(owner: int) -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.register(readable, select.POLLIN)
    command = -1
    try:
        command = os.pidfd_open(_COMMAND)
        poll.register(command, select.POLLIN)
    except ProcessLookupError:
        pass  # it is gone and collected
    while True:
        nobody = _collect()
        if nobody and command < 0:
            # Taking namespaces down keeps the machine busy: not while somebody waits for the end.
            time.sleep(LINGER_S)
            return
        ready = {fd for fd, _what in poll.poll()}
        if owner in ready:
            return
        if readable in ready:
            os.read(readable, 512)
        if command in ready:
            poll.unregister(command)
            command = -1


def _collect() -> bool:
    """Collect dead orphans. Returns whether there is no other."""
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
