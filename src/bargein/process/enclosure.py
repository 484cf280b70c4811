"""The seam between a `Process` and the means that holds it.

An `Enclosure` holds one command and everything that the command starts: a cgroup, a supervisor, or
a process group. It is made empty, with one spare process inside that waits (see `helper.spare`),
and it is used once. A `Backend` is a means in operation and makes enclosures.

Call everything on the loop, except where a method says "any thread". None of it waits, except
`launched`, `make_enclosure` and `close`; cancelling those ends the wait only, and the caller then
has to `discard` or stop what it holds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from bargein.process.exec_request import ExecRequest
from bargein.process.values import EndedProcess, Means, SandboxView, Survivor

if TYPE_CHECKING:
    from bargein.process.own_enclosures import OwnEnclosure


class EnclosureEvents(Protocol):
    """What an enclosure calls, each once, in this order."""

    def leader_ended(self, code: int | None, *, alone: bool) -> None:
        """The first process ended: with an exit code, minus a signal, or None if not known.

        If it was `alone`, `emptied` follows at once.
        """

    def emptied(self) -> None:
        """Nobody is left in the enclosure, as far as this means can tell."""


class StoppableEnclosure(Protocol):
    """The part of an enclosure that a stop uses."""

    @property
    def means(self) -> Means: ...

    @property
    def certain(self) -> bool:
        """Whether the kernel vouches for `emptied`."""
        ...

    def record_members(self) -> None:
        """Add the processes that are inside now, and those noted before, to the report."""

    def signal_everybody(self, number: int) -> None:
        """Skips processes whose last signal was this one."""

    def kill(self) -> None: ...

    def look_ahead(self) -> None:
        """Do work now, while signalled processes die, that confirming their end will need."""

    def look(self) -> None:
        """Look whether somebody is left, and call the events that follow from it at once."""

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        """The processes that were seen to end; times count from `began`."""
        ...

    def survivors(self) -> tuple[Survivor, ...]:
        """The processes that are inside now."""
        ...


class Enclosure(StoppableEnclosure, Protocol):
    @property
    def pid(self) -> int:
        """The first process; its group and its session have the same number."""
        ...

    def launch(
        self, request: ExecRequest, standard: Sequence[int], events: EnclosureEvents
    ) -> None:
        """Make the spare process become the command, with these three descriptors, which the
        caller still has to close.

        Raises `SpareLost` or `SpawnError` if it was not started. Otherwise it calls `events`,
        whether or not a task waits in `launched`.
        """

    async def launched(self, request: ExecRequest) -> None:
        """Wait until the command runs, or has run. Raises `SpawnError` if it could not run."""

    def discard(self) -> None:
        """End the spare process, instead of `launch` or after `launch` raised. Does not wait."""

    def note(self) -> None:
        """Note who is inside, for the report. Any thread, any signal handler: never blocks."""

    def interrupt(self, number: int) -> None:
        """Note who is inside and signal the first process's group; if that process has ended,
        send SIGTERM to everybody known. Any thread, any signal handler: never blocks or raises.

        The caller makes sure that it does not run during or after `release`.
        """

    def limits_reached(self) -> tuple[str, ...]:
        """Limits of the containment that the command has reached: "memory", "processes"."""
        ...

    def release(self) -> None:
        """After `emptied`: give everything back. From now on the pid may be another process's."""


class Backend(Protocol):
    """A means in operation."""

    @property
    def means(self) -> Means: ...

    async def make_enclosure(self, view: SandboxView | None = None) -> Enclosure:
        """Wait for an enclosure that holds only our spare process, closed in as `view` says.

        Raises `SpareLost`, or OSError.
        """
        ...

    def make_own_enclosure(self) -> "OwnEnclosure":
        """An enclosure for processes that a call's own code starts. Any thread. Raises OSError."""
        ...

    def restart_helper(self) -> None:
        """`make_enclosure` took far too long: kill the helper, so that the next try starts one."""

    async def close(self) -> None:
        """Give everything back. The caller has emptied all enclosures."""


class SpareLost(Exception):
    """The spare process died or was never started, so the command was not started either.

    `errno` is 0 if the reason is not known.
    """

    def __init__(self, errno: int = 0) -> None:
        super().__init__(errno)
        self.errno = errno
