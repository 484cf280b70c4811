"""The three standard descriptors of a command, and our ends of them."""

import os
from collections.abc import Sequence

from bargein.process.input import InputWriter
from bargein.process.output import OnOutput, OutputReader
from bargein.process.terminal import open_terminal
from bargein.process.values import Captured, CaptureLimits, Input, PtySize
from bargein.process.watch import Watch

_END_OF_INPUT = b"\x04"


class Stdio:
    """`theirs` are for the command, and ours to close once it has them."""

    def __init__(
        self,
        watch: Watch,
        *,
        pty: PtySize | None,
        stdin: Input,
        limits: CaptureLimits,
        on_output: OnOutput | None,
    ) -> None:
        self.terminal = -1
        self.input: InputWriter | None = None
        self._open: list[int] = []
        try:
            readable, writable = self._prepare(pty, stdin)
            if writable >= 0:
                self.input = InputWriter(watch, writable)
            self._reader = OutputReader(watch.loop, readable, limits=limits, on_output=on_output)
        except BaseException:
            for fd in self._open:
                os.close(fd)
            raise

    def _prepare(self, pty: PtySize | None, stdin: Input) -> tuple[int, int]:
        """Sets `theirs`; gives what we read from and, if there is, what we write to."""
        if pty is not None:
            ours, slave = self._keep(open_terminal(pty))
            self.terminal = ours
            self.theirs: Sequence[int] = (slave, slave, slave)
            # One owner for each descriptor: the writer has a copy of its own.
            return ours, self._keep([os.dup(ours)])[0]
        readable, output = self._keep(os.pipe())
        os.set_blocking(readable, False)
        if stdin == "pipe":
            source, writable = self._keep(os.pipe())
            os.set_blocking(writable, False)
        else:
            source, writable = self._keep([os.open(os.devnull, os.O_RDONLY)])[0], -1
        self.theirs = (source, output, output)
        return readable, writable

    def _keep(self, fds: Sequence[int]) -> Sequence[int]:
        self._open.extend(fds)
        return fds

    @property
    def captured(self) -> Captured:
        return self._reader.captured

    def handed_over(self) -> None:
        """The command has its ends, or never will."""
        for fd in set(self.theirs):
            os.close(fd)
        self.theirs = ()

    def drain(self) -> None:
        self._reader.drain()

    def end_input(self) -> None:
        if self.input is None:
            return
        if self.terminal >= 0:
            self.input.write_now(_END_OF_INPUT)
        else:
            self.input.close()

    def close(self) -> None:
        self.handed_over()
        self.terminal = -1
        if self.input is not None:
            self.input.close()
        self._reader.close()
