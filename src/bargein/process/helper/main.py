"""The helper's main loop: carries out its owner's orders, and acts when the owner dies.

An order comes with descriptors, of which the first is a channel for the answer. The answer to the
first two comes from the spare process itself (see `spare`), or is `("failed", "spare", errno)`.

    ("cgroup",)          channel, cgroup     start a spare process, a child of our owner
    ("supervised",)      channel, control    start a supervisor with a spare process as its child
    ("reap", [path..])   channel             clean up instances of dead owners: ("reaped", count)
    ("sweep", pid)       channel             ("swept",) when that supervisor and all processes that
                                             it held are dead
    ("hiding",)          channel             what is hidden, and how:
                                             ("hiding", how, fenced, errno)

The helper holds a pidfd of its owner. When the owner dies, it kills and removes the owner's
instance. Supervisors see the death by themselves. Processes that lost their supervisor become
children of the helper, which is a subreaper too, and it kills them.

An owner that needs the helper no more sends `("leave",)`, and the helper exits and kills nothing.
If the order channel closes without that, the owner is dying: the kernel closes a process's
descriptors a moment before its pidfd becomes readable.
"""

import errno
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Final

from bargein.process.helper import cgroups, hiding, procfs, spare, supervisor, wire
from bargein.process.helper.syscalls import become_subreaper, clone_sibling_into_cgroup

_LAST_ACT_S: Final = 5.0
_SWEEP_MS: Final = 2
# The interpreter rewrites code that runs often. Done here once, no spare process has to do it.
_REHEARSALS: Final = 20


def main(
    orders: int,
    owner: int,
    lock: int,
    instance: str,
    hidden: Sequence[str] = (),
    kept: Sequence[str] = (),
    expected: str = "",
) -> None:
    """`lock` keeps the instance locked while we live, and `instance` is its path; -1 and '' if
    there is none.

    `hidden` and `kept` are for `hiding.hide`. `expected` is how an earlier helper of this owner
    hid them: a helper that cannot do the same exits, and no command starts.
    """
    _block_signals()
    outcome = hiding.hide(hidden, kept) if hidden else ("", False, 0)
    if expected and outcome[0] != expected:
        return
    become_subreaper()
    for _ in range(_REHEARSALS):
        spare.rehearse()
    # The garbage collector would touch, and so copy, the pages of all objects that exist now.
    gc.collect()
    gc.freeze()
    gc.disable()
    _Helper(socket.socket(fileno=orders), owner, lock, instance, outcome).run()


def _block_signals() -> None:
    """Block all of them, and remove handlers and ignores, so that commands find the defaults."""
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    for number in every - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


class _Helper:
    def __init__(
        self,
        orders: socket.socket,
        owner: int,
        lock: int,
        instance: str,
        outcome: hiding.Outcome,
    ) -> None:
        self._orders = orders
        self._outcome = outcome
        self._owner = owner
        self._private = [fd for fd in (orders.fileno(), lock) if fd >= 0]
        self._instance = instance
        self._supervisors: dict[int, int] = {}
        self._strangers = False
        self._asked_to_sweep: dict[int, int] = {}
        self._let_go = False
        self._poll = select.poll()

    def run(self) -> None:
        orders = self._orders.fileno()
        self._poll.register(orders, select.POLLIN)
        self._poll.register(self._owner, select.POLLIN)
        while True:
            ready = {fd for fd, _what in self._poll.poll(_SWEEP_MS if self._strangers else None)}
            self._look_after_children(ready)
            if self._owner in ready:
                return self._owner_died()
            if orders in ready and not self._obey():
                return None if self._let_go else self._owner_is_dying()

    def _obey(self) -> bool:
        received = wire.receive(self._orders)
        if received is None:
            return False
        message, fds = received
        self._let_go = message[:1] == ("leave",)
        if self._let_go:
            return False
        try:
            self._carry_out(message, fds)
        except OSError as error:
            self._answer(fds, ("failed", "spare", error.errno or 0))
        finally:
            wire.close_all(fds)
        return True

    def _carry_out(self, message: wire.Message, fds: list[int]) -> None:
        if message and message[0] == "reap" and fds:
            self._answer(fds, ("reaped", cgroups.reap_free_instances(message[1])))
        elif message and message[0] == "sweep" and fds:
            self._asked_to_sweep[os.dup(fds[0])] = message[1]
            self._strangers = True
        elif message and message[0] == "hiding" and fds:
            self._answer(fds, ("hiding", *self._outcome))
        elif len(fds) < 2:
            raise OSError(errno.EMFILE, "the helper has no room for descriptors")
        elif message[0] == "cgroup":
            if clone_sibling_into_cgroup(fds[1]) == 0:
                spare.live(socket.socket(fileno=fds[0]), [fds[1], self._owner, *self._private])
        else:
            self._start_supervisor(fds[0], fds[1])

    def _start_supervisor(self, channel: int, control: int) -> None:
        pid = os.fork()
        if pid == 0:
            supervisor.live(
                socket.socket(fileno=channel),
                socket.socket(fileno=control),
                self._owner,
                [*self._supervisors, *self._asked_to_sweep, *self._private],
            )
        handle = os.pidfd_open(pid)
        self._supervisors[handle] = pid
        self._poll.register(handle, select.POLLIN)

    def _answer(self, fds: list[int], message: wire.Message) -> None:
        if not fds:
            return
        channel = socket.socket(fileno=os.dup(fds[0]))
        try:
            wire.send(channel, message)
        except OSError:
            pass  # the owner does not wait for the answer any more
        finally:
            channel.close()

    def _look_after_children(self, ready: set[int]) -> None:
        for handle in ready & self._supervisors.keys():
            os.waitpid(self._supervisors.pop(handle), 0)
            self._poll.unregister(handle)
            os.close(handle)
            self._strangers = True
        if self._strangers:
            self._strangers = self._kill_strangers()
        if self._asked_to_sweep and not self._strangers:
            self._answer_sweeps()

    def _answer_sweeps(self) -> None:
        alive = set(self._supervisors.values())
        for channel, pid in list(self._asked_to_sweep.items()):
            if pid not in alive:
                self._answer([channel], ("swept",))
                del self._asked_to_sweep[channel]
                os.close(channel)

    def _kill_strangers(self) -> bool:
        """Kill processes whose supervisor was killed. Returns whether some may be left."""
        ourselves = os.getpid()
        known = set(self._supervisors.values())
        orphans = procfs.descendants(ourselves, known)
        procfs.send(orphans, ourselves, signal.SIGKILL)
        for pid in orphans:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # not our own child yet, or already collected
        return bool(orphans)

    def _owner_is_dying(self) -> None:
        poll = select.poll()
        poll.register(self._owner, select.POLLIN)
        if poll.poll(_LAST_ACT_S * 1e3):
            self._owner_died()

    def _owner_died(self) -> None:
        if self._instance:
            cgroups.kill_and_remove(self._instance, _LAST_ACT_S)
        deadline = time.monotonic() + _LAST_ACT_S
        self._strangers = bool(self._supervisors)
        while (self._supervisors or self._strangers) and time.monotonic() < deadline:
            ready = {fd for fd, _what in self._poll_children()}
            self._look_after_children(ready)

    def _poll_children(self) -> list[tuple[int, int]]:
        poll = select.poll()
        for handle in self._supervisors:
            poll.register(handle, select.POLLIN)
        return poll.poll(_SWEEP_MS if self._strangers else 100)
