"""What holds one command and all it starts: the seam between a `Process` and the means.

A cell is made empty, with an embryo in it that waits (see `helper.embryo`), and is used once.
Everything is called on the loop, save `interrupt`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from bargein.process.order import Order
from bargein.process.values import EndedProcess, Means, Survivor

if TYPE_CHECKING:
    from bargein.process.own_cell import OwnCell


class CellEvents(Protocol):
    """Told by a cell, each once, in this order."""

    def leader_ended(self, code: int | None, *, alone: bool) -> None:
        """The first process ended: an exit code, minus a signal, or None if not known.

        If it was `alone`, `emptied` follows at once.
        """

    def emptied(self) -> None:
        """Nobody is left in the cell, as far as this means can tell."""


class StoppedCell(Protocol):
    """What a stop needs of a cell."""

    @property
    def means(self) -> Means: ...

    @property
    def certain(self) -> bool:
        """Whether `emptied` is the kernel's word that nobody is left."""
        ...

    def take_roll(self) -> None:
        """Put on the roll who was noted, and who is there."""

    def signal_everybody(self, number: int) -> None:
        """Save those who were sent the same just before."""

    def kill(self) -> None: ...

    def look(self) -> None:
        """Look whether somebody is left, the first process too; what is found is told within."""

    def ended(self, began: float) -> tuple[EndedProcess, ...]:
        """Who was seen to end; times count from `began`."""
        ...

    def survivors(self) -> tuple[Survivor, ...]:
        """Who is there now."""
        ...


class Cell(StoppedCell, Protocol):
    @property
    def pid(self) -> int:
        """The first process; its group and session have the same number."""
        ...

    def launch(self, order: Order, standard: Sequence[int], events: CellEvents) -> None:
        """Send the command on its way, with these three descriptors, which stay the caller's.

        Raises `StillBorn` or `SpawnError`, and then has not started it. Else `events` are told
        what becomes of it, whether or not somebody waits in `launched`.
        """

    async def launched(self, order: Order) -> None:
        """Until the command runs, or has run already. Raises `SpawnError` if it could not be."""

    def discard(self) -> None:
        """Instead of `launch`, or after that raised: the rest follows by itself."""

    def note(self) -> None:
        """Note who is there, for the report. As `interrupt`: from any thread, never blocks."""

    def interrupt(self, number: int) -> None:
        """Note who is there, then signal the first process's group; if that process has ended,
        signal everybody who is known, with SIGTERM. Any thread, any handler: never blocks, never
        raises.

        The caller sees to it that it is not called while or after `release` is.
        """

    def release(self) -> None:
        """After `emptied`: give everything back. Then the pid may be anybody's."""


class Holder(Protocol):
    """A means in operation."""

    @property
    def means(self) -> Means: ...

    async def make_cell(self) -> Cell:
        """A cell in which nothing runs yet but our own waiting process.

        Raises `StillBorn`, or OSError.
        """
        ...

    def make_own_cell(self) -> "OwnCell":
        """A cell for what the code of a call starts by itself. Any thread. Raises OSError."""
        ...

    def unstick(self) -> None:
        """Nothing came of `make_cell` for far too long."""

    async def close(self) -> None:
        """After all cells are empty."""


class StillBorn(Exception):
    """The embryo died or was never born: nothing was started. `errno` is 0 if nobody knows why."""

    def __init__(self, errno: int = 0) -> None:
        super().__init__(errno)
        self.errno = errno
