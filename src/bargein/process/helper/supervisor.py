"""A process that holds one command and everything it starts: a subreaper.

Every process below it that loses its parent becomes its child. So when the kernel says that it has
no child (ECHILD), nobody is left; it reports that and exits. It obeys its control channel:

    ("interrupt", number)  signal the command's process group, while its first process is there
    ("signal", number)     signal everybody
    ("kill",)              kill everybody, again and again, until nobody is left

and reports on it:

    ("here", pid)                           its own pid, first of all
    ("exited", code)                        the first process ended and others are left: its exit
                                            code, or minus a signal
    ("met", [(pid, command), ...])          processes that a signal reached for the first time
    ("empty", (code, met, [(pid, how, last), ...]))
                                            nobody is left: how the first process ended; processes
                                            met and not reported yet; how each that it collected
                                            ended, and the last signal that it sent to each

When the control channel closes or Bargein dies, which it sees by itself, it kills everybody.
"""

import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Final, NoReturn

from bargein.process.helper import init, procfs, sandbox, spare, wire
from bargein.process.helper.syscalls import become_subreaper

_REPORTED_MAX: Final = 256
_SIGKILL: Final = int(signal.SIGKILL)  # plain, as messages have to be
_REPORT_MS: Final = 2
_SWEEP_MS_MIN: Final = 1
_SWEEP_MS_MAX: Final = 100


def live(
    channel: socket.socket,
    control: socket.socket,
    owner: int,
    not_ours: Sequence[int],
    plan: sandbox.Plan | None,
    sandboxing: sandbox.Sandboxing | None,
    limiting: Sequence[str],
) -> NoReturn:
    """Be a supervisor of a spare process. Called in a process that was just forked."""
    try:
        wire.close_all(not_ours)
        become_subreaper()
        # Before anybody exists who could kill us: our owner needs our pid to have us swept up.
        _report(control, "here", os.getpid())
        if plan is not None and sandboxing is not None and sandboxing[0] == sandbox.NAMESPACES:
            own = [channel.fileno(), control.fileno()]
            with init.Namespace(owner, plan, sandboxing[1], own, returns=False) as namespace:
                leader = os.fork()
                if leader == 0:
                    close_in = init.into_namespaces(namespace, sandboxing)
                    spare.live(channel, [control.detach(), owner], close_in, limiting)
                namespace.has_command()
            first = namespace.pid
        else:
            first = 0
            leader = os.fork()
            if leader == 0:
                close_in_domain = init.into_domain(plan, sandboxing)
                spare.live(channel, [control.detach(), owner], close_in_domain, limiting)
        channel.close()
        _Supervisor(control, leader, owner, first).run()
    finally:
        os._exit(1)


class _Supervisor:
    """`first` is the first process of the command's pid namespace, if it has one: a child of ours,
    and no part of the command."""

    def __init__(self, control: socket.socket, leader: int, owner: int, first: int) -> None:
        self._control = control
        self._first = first
        self._leader = leader
        self._leader_is_there = True
        self._leader_code: int | None = None
        self._owner = owner
        self._killing = False
        self._sweep_ms = _SWEEP_MS_MIN
        self._met: dict[int, int] = {}
        self._unreported: list[tuple[int, str]] = []
        self._ended: dict[int, int] = {}

    def run(self) -> NoReturn:
        control = self._control.fileno()
        self._control.setblocking(False)
        child_ended = _notices_of_children()
        poll = select.poll()
        for fd in (control, self._owner, child_ended):
            poll.register(fd, select.POLLIN)
        self._collect()
        while True:
            ready = {fd for fd, _what in poll.poll(self._patience_ms())}
            if not ready and self._unreported:
                # Not at once: most often the message that nobody is left carries them, too.
                self._report("met", self._unreported)
                self._unreported = []
            if child_ended in ready:
                os.read(child_ended, 512)
            if self._owner in ready:
                poll.unregister(self._owner)
                self._killing = True
            if control in ready and not self._obey():
                poll.unregister(control)
                self._killing = True
            self._collect()
            if self._killing:
                self._sweep()

    def _patience_ms(self) -> int | None:
        if self._killing:
            return self._sweep_ms
        return _REPORT_MS if self._unreported else None

    def _obey(self) -> bool:
        """Carry out one order. Returns False if no more can come."""
        try:
            received = wire.receive(self._control)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if received is None:
            return False
        what, *rest = received[0]
        if what == "interrupt":
            if self._leader_is_there:
                self._note(self._tree(), 0)
                # The pid of a child, and its group's number, stay its own until we collect it.
                _send_to_group(self._leader, rest[0])
                _send_to_group(self._leader, signal.SIGCONT)
        elif what == "signal":
            tree = self._tree()
            self._note(tree, 0)
            numbers = rest[0], signal.SIGCONT
            for pid in procfs.send(tree, os.getpid(), *numbers, through=self._first):
                self._met[pid] = rest[0]
        else:
            self._killing = True
        return True

    def _tree(self) -> list[int]:
        below = procfs.descendants(os.getpid())
        return [pid for pid in below if pid != self._first] if self._first else below

    def _note(self, pids: list[int], number: int) -> None:
        # Our owner knows the first process.
        new = [pid for pid in pids if pid not in self._met and pid != self._leader][:_REPORTED_MAX]
        for pid in pids:
            self._met[pid] = number or self._met.get(pid, 0)
        room = _REPORTED_MAX - len(self._unreported)
        self._unreported += [(pid, procfs.command_of(pid)) for pid in new[:room]]

    def _sweep(self) -> None:
        """Kill everybody, and again at once as long as that finds somebody new.

        A chain of processes that each fork a successor and exit is caught by being quicker than
        they are. A process that cannot be killed (asleep in the kernel, or another user's) is
        tried ever more rarely.
        """
        before: set[int] = set()
        while True:
            tree = self._tree()
            reached = set(procfs.send(tree, os.getpid(), _SIGKILL, through=self._first))
            self._note(list(reached), _SIGKILL)
            self._collect()
            if reached <= before:
                break
            if self._first and before:
                # They are quicker than we are. With the first process of the namespace, the kernel
                # kills everybody in it.
                os.kill(self._first, _SIGKILL)
            before |= reached
            self._sweep_ms = _SWEEP_MS_MIN
        self._sweep_ms = min(2 * self._sweep_ms, _SWEEP_MS_MAX)

    def _collect(self) -> None:
        """Collect the dead. Ends this process when it has no child left."""
        leader_was_there = self._leader_is_there
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._end()
            if pid == 0:
                if self._namespace_is_empty():
                    self._end()
                break
            if pid == self._first:
                self._first = 0
                continue
            code = os.waitstatus_to_exitcode(status)
            self._ended[pid] = code
            if len(self._ended) > _REPORTED_MAX:
                del self._ended[next(iter(self._ended))]
            if pid == self._leader:
                self._leader_is_there = False
                self._leader_code = code
        if leader_was_there and not self._leader_is_there:
            self._report("exited", self._leader_code)

    def _namespace_is_empty(self) -> bool:
        """Nobody but the first process is left in the namespace: it has no child, and when the
        command had ended, all that the command had started were below it. An empty list is exact:
        the kernel looks under its own lock."""
        return bool(self._first and not self._leader_is_there and not procfs.children(self._first))

    def _end(self) -> NoReturn:
        known = {**dict.fromkeys(self._ended, 0), **self._met}
        last = list(known.items())[: 2 * _REPORTED_MAX]
        ended = [(pid, self._ended.get(pid), number) for pid, number in last]
        self._report("empty", (self._leader_code, self._unreported, ended))
        if self._first:
            os.waitpid(self._first, 0)  # it ends by itself
        os._exit(0)

    def _report(self, what: str, value: object) -> None:
        _report(self._control, what, value)


def _report(control: socket.socket, what: str, value: object) -> None:
    try:
        wire.send(control, (what, value))
    except OSError:
        pass  # our owner is gone; the main loop sees that and kills everybody


def _send_to_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except OSError:
        pass


def _notices_of_children() -> int:
    """A descriptor that becomes readable when a child has ended."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    return readable
