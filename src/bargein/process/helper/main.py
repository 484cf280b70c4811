"""The helper's main loop: carries out its owner's orders, and acts when the owner dies.

An order comes with descriptors, of which the first is a channel for the answer. The answer to the
first two comes from the spare process itself (see `spare`), or is `("failed", "spare", errno)`.

    ("cgroup", plan, limiting)      channel, cgroup
                                             start a spare process, a child of our owner
    ("supervised", plan, limiting)  channel, control
                                             start a supervisor with a spare process as its child
    ("reap", [path..])   channel             clean up instances of dead owners: ("reaped", count)
    ("sweep", pid)       channel             ("swept",) when that supervisor and all processes that
                                             it held are dead
    ("hiding",)          channel             what is hidden, and how:
                                             ("hiding", how, fenced, errno)
    ("sandbox",)         channel             how commands are closed in:
                                             ("sandbox", means, errno)

A plan says what the command may touch (see `sandbox`); None if it is in no sandbox. `limiting` are
further cgroups that it enters.

The helper also kills all commands when its owner's deadline is over (`deadline`): an owner that is
frozen then cannot.

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

from bargein.process.helper import (
    cgroups,
    hiding,
    init,
    procfs,
    sandbox,
    spare,
    supervisor,
    wire,
)
from bargein.process.helper.deadline import Deadline
from bargein.process.helper.init import into_domain, into_namespaces
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
    network: str = "",
    deadline: int = -1,
) -> None:
    """`lock` keeps the instance locked while we live, and `instance` is its path; -1 and '' if
    there is none.

    `hidden` and `kept` are for `hiding.hide`. With a `network` and a choice of means ("none/auto",
    see `sandbox`) commands are in a sandbox. `expected` is how an earlier helper of this owner did
    both: a helper that cannot do the same exits, and no command starts. `deadline` is a descriptor
    of memory that says until when our owner may act (see `deadline`); -1 if it always may.
    """
    _block_signals()
    outcome = ("", False, 0)
    if hidden or network:
        outcome = hiding.hide(hidden, kept, fenced=not network)
    network, _, choice = network.partition("/")
    closed_in = sandbox.probe(network, choice) if network else ("", 0)
    if expected and f"{outcome[0]}/{closed_in[0]}" != expected:
        return
    become_subreaper()
    for _ in range(_REHEARSALS):
        spare.rehearse()
    # The garbage collector would touch, and so copy, the pages of all objects that exist now.
    gc.collect()
    gc.freeze()
    gc.disable()
    helper = _Helper(socket.socket(fileno=orders), owner, lock, instance, outcome)
    helper.close_commands_in(*closed_in, network)
    helper.heed(deadline)
    helper.run()


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
        self._sandbox: wire.Message = ("sandbox", "", 0)
        self._sandboxing: sandbox.Sandboxing | None = None
        self._namespaces: dict[int, int] = {}
        self._deadline = Deadline(-1)
        self._marks = spare.may_be_marked()

    def close_commands_in(self, means: str, code: int, network: str) -> None:
        self._sandbox = ("sandbox", means, code)
        self._sandboxing = sandbox.sandboxing(means, network) if means else None

    def heed(self, deadline: int) -> None:
        self._deadline = Deadline(deadline)
        if deadline >= 0:
            # The memory stays; commands must not have the descriptor.
            os.close(deadline)

    def run(self) -> None:
        orders = self._orders.fileno()
        self._poll.register(orders, select.POLLIN)
        self._poll.register(self._owner, select.POLLIN)
        while True:
            patience_ms = _SWEEP_MS if self._strangers else self._deadline.patience_ms()
            ready = {fd for fd, _what in self._poll.poll(patience_ms)}
            if self._deadline.is_over():
                self._kill_commands()
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
        elif message and message[0] == "sandbox" and fds:
            self._answer(fds, self._sandbox)
        elif len(fds) < 2:
            raise OSError(errno.EMFILE, "the helper has no room for descriptors")
        else:
            self._start(message, fds)

    def _start(self, message: wire.Message, fds: list[int]) -> None:
        plan = message[1]
        sandboxing = self._sandboxing
        if plan is not None and sandboxing is not None and sandboxing[0] == sandbox.NAMESPACES:
            sandbox.bound_tmp(plan)
        if message[0] == "cgroup":
            self._start_in_cgroup(fds[0], fds[1], *message[1:])
        else:
            self._start_supervisor(fds[0], fds[1], *message[1:])

    def _start_in_cgroup(
        self, channel: int, cgroup: int, plan: sandbox.Plan | None, limiting: Sequence[str]
    ) -> None:
        sandboxing = self._sandboxing
        not_ours = [cgroup, self._owner, *self._namespaces, *self._private]
        if plan is None or sandboxing is None or sandboxing[0] != sandbox.NAMESPACES:
            if clone_sibling_into_cgroup(cgroup) == 0:
                spare.live(
                    socket.socket(fileno=channel),
                    not_ours,
                    into_domain(plan, sandboxing),
                    limiting,
                    marked=self._marks,
                )
            return
        with init.Namespace(
            self._owner,
            plan,
            sandboxing[1],
            [channel, cgroup, *self._namespaces, *self._private],
            returns=True,
        ) as namespace:
            if clone_sibling_into_cgroup(cgroup) == 0:
                close_in = into_namespaces(namespace, sandboxing)
                spare.live(socket.socket(fileno=channel), not_ours, close_in, limiting)
            namespace.has_command()
        handle = os.pidfd_open(namespace.pid)
        self._namespaces[handle] = namespace.pid
        self._poll.register(handle, select.POLLIN)

    def _start_supervisor(
        self, channel: int, control: int, plan: sandbox.Plan | None, limiting: Sequence[str]
    ) -> None:
        pid = os.fork()
        if pid == 0:
            supervisor.live(
                socket.socket(fileno=channel),
                socket.socket(fileno=control),
                self._owner,
                [*self._supervisors, *self._asked_to_sweep, *self._private],
                plan,
                self._sandboxing,
                limiting,
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
        for handle in ready & self._namespaces.keys():
            os.waitpid(self._namespaces.pop(handle), 0)
            self._poll.unregister(handle)
            os.close(handle)
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
        known = {*self._supervisors.values(), *self._namespaces.values()}
        orphans = procfs.descendants(ourselves, known)
        procfs.send(orphans, ourselves, signal.SIGKILL)
        for pid in orphans:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # not our own child yet, or already collected
        return bool(orphans)

    def _kill_commands(self) -> None:
        """Our owner is frozen, or cannot say that it may go on. It finds them dead when it wakes.
        What supervisors held comes to us when they are dead, and is swept."""
        if self._instance:
            cgroups.kill(self._instance)
        for pid in self._supervisors.values():
            os.kill(pid, signal.SIGKILL)

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
