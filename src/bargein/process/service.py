"""A contained process that outlives calls: a server that speaks on standard input and output.

    service = await containment.start_service(argv, cwd=cwd, env=env, token=owners_token)
    await service.write(b"...")
    answer = await service.read()
    report = await service.stop()

What holds:

- Its owner's token stops it, not the token of a call. The owner decides whether and when to start
  another; a service never restarts itself.
- It is contained like a command: with everything it started, through wrappers such as npx too, and
  it dies with Bargein by the same means.
- Standard output is read only when the owner reads, so a service that writes too much has to wait.
  Standard error is captured within a bound, and a flood of it never blocks the service.
- A stop first closes its standard input and waits, then sends SIGTERM to all its processes, then
  kills them (`SERVICE_LADDER`). Its time is bounded, and the report names every process it ended.
- When its first process ends by itself, the processes that it left are stopped, too.
- Closing the containment stops it like a command, by SIGINT first: its owner stops it before.

All methods are called on the loop. Cancelling one ends the wait and nothing else.
"""

from typing import Final

from bargein.process.output import PIECE_BYTES
from bargein.process.process import Process
from bargein.process.values import Captured, Exit, Ladder, Means, StopReport

SERVICE_LADDER: Final = Ladder(end_input_s=0.5, interrupt_s=None)


class Service:
    """Made by `Containment.start_service`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __repr__(self) -> str:
        return repr(self._process).replace("<Process", "<Service", 1)

    @property
    def argv(self) -> tuple[str, ...]:
        return self._process.argv

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def means(self) -> Means:
        return self._process.means

    @property
    def exit(self) -> Exit | None:
        """How its first process ended, once it has."""
        return self._process.exit

    @property
    def alive(self) -> bool:
        """Whether one of its processes is left, or may be."""
        return self._process.alive

    def processes(self) -> tuple[tuple[int, str], ...]:
        """The processes that are inside now, as far as this means can tell: their numbers and the
        names of their programs."""
        return self._process.inside()

    @property
    def errors(self) -> Captured:
        """Its standard error so far: the beginning and the end."""
        return self._process.output

    async def read(self, bytes_max: int = PIECE_BYTES) -> bytes:
        """Wait for standard output and return up to `bytes_max` of it; `b""` when all its
        processes have ended or closed it, and all they wrote has been read.

        A cancelled read loses nothing.
        """
        return await self._process.read(bytes_max)

    async def write(self, data: bytes) -> None:
        """Write to standard input. Waits while the service does not read.

        Raises `InputClosed`. After a cancel, part of the data may have been written.
        """
        await self._process.write(data)

    def try_write(self, data: bytes) -> bool:
        """Write all of it at once, or nothing. Returns False if there is no room now, if another
        write waits, or if it is more than a few kilobytes. Raises `InputClosed`."""
        return self._process.try_write(data)

    def close_input(self) -> None:
        """Most servers exit then."""
        self._process.close_input()

    async def wait(self) -> Exit:
        """Wait until its first process has ended."""
        return await self._process.wait()

    async def stop(self, *, hurry: bool = False) -> StopReport:
        """Stop it, or join a stop that is under way, and report which processes ended how.

        `hurry` goes straight to the kill.
        """
        return await self._process.stop(hurry=hurry)

    def begin_stop(self, *, hurry: bool = False) -> None:
        """`stop` without waiting for it."""
        self._process.begin_stop(hurry=hurry)

    async def stopped(self) -> StopReport:
        """Wait until it has ended, by itself or stopped, and nobody is left."""
        await self._process.wait()
        return await self._process.stop()
