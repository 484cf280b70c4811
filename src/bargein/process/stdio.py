"""The standard descriptors of a command and our ends of them: pipes, or a pseudo-terminal.

One `Stdio` belongs to one `Process`, which closes it. Standard error is merged into the output,
so that a reader sees both in the order in which they were written. Only a `Service` has them apart:
its standard output is an `OutputStream`, and `captured` is its standard error.
"""

import asyncio
import fcntl
import os
import select
import signal
import sys
import termios
from collections.abc import Sequence
from typing import Final

from bargein.process.errors import InputClosed
from bargein.process.output import OnOutput, OutputReader, OutputStream
from bargein.process.values import Captured, CaptureLimits, Input, PtySize
from bargein.process.waiting import Descriptor, DescriptorWatch, Event

_END_OF_INPUT: Final = b"\x04"
# Signals the foreground group of the terminal in one step, so that the group cannot change between
# asking for it and signalling it. Python has no name for this ioctl.
_TIOCSIG: Final = 0x2000_745F if sys.platform == "darwin" else 0x4004_5436


class Stdio:
    """`theirs` are the command's three descriptors; call `handed_over` once it has them."""

    def __init__(
        self,
        watch: DescriptorWatch,
        *,
        pty: PtySize | None,
        stdin: Input,
        limits: CaptureLimits,
        on_output: OnOutput | None,
        streams: bool = False,
    ) -> None:
        self.terminal = -1
        self.input: InputWriter | None = None
        self.stream: OutputStream | None = None
        self.theirs: Sequence[int] = ()
        self._open: list[int] = []
        try:
            readable, writable, streamed = self._prepare(pty, stdin, streams=streams)
            if writable >= 0:
                self.input = InputWriter(watch, writable)
            if streamed >= 0:
                self.stream = OutputStream(watch, streamed)
            self._reader = OutputReader(watch.loop, readable, limits=limits, on_output=on_output)
        except BaseException:
            for fd in self._open:
                os.close(fd)
            raise

    def _prepare(self, pty: PtySize | None, stdin: Input, *, streams: bool) -> tuple[int, int, int]:
        """Sets `theirs`. Returns our ends: to capture from, to write to and to stream from; -1
        for an end that does not exist."""
        if pty is not None:
            ours, slave = self._keep(_open_terminal(pty))
            self.terminal = ours
            self.theirs = (slave, slave, slave)
            # One owner for each descriptor: the writer has a copy of its own.
            return ours, self._keep([os.dup(ours)])[0], -1
        readable, errors = self._keep(os.pipe())
        os.set_blocking(readable, False)
        streamed, output = -1, errors
        if streams:
            streamed, output = self._keep(os.pipe())
            os.set_blocking(streamed, False)
        if stdin == "pipe":
            source, writable = self._keep(os.pipe())
            os.set_blocking(writable, False)
        else:
            source, writable = self._keep([os.open(os.devnull, os.O_RDONLY)])[0], -1
        self.theirs = (source, output, errors)
        return readable, writable, streamed

    def _keep(self, fds: Sequence[int]) -> Sequence[int]:
        self._open.extend(fds)
        return fds

    @property
    def captured(self) -> Captured:
        return self._reader.captured

    def handed_over(self) -> None:
        """Close the command's ends here: it has its copies, or will never run."""
        for fd in set(self.theirs):
            os.close(fd)
        self.theirs = ()

    def drain(self) -> None:
        self._reader.drain()

    def end_input(self) -> None:
        """Close the command's input; on a terminal, type Ctrl-D."""
        if self.input is None:
            return
        if self.terminal >= 0:
            self.input.write_now(_END_OF_INPUT)
        else:
            self.input.close()

    def interrupt_terminal(self) -> None:
        """Do what Ctrl-C does, also to a program that switched Ctrl-C off (raw mode). Any thread,
        any signal handler."""
        try:
            fcntl.ioctl(self.terminal, _TIOCSIG, signal.SIGINT)
        except OSError:
            try:
                os.killpg(os.tcgetpgrp(self.terminal), signal.SIGINT)
            except OSError:
                pass  # nobody is in the foreground

    def resize_terminal(self, size: PtySize) -> None:
        """The kernel sends SIGWINCH to the foreground group."""
        termios.tcsetwinsize(self.terminal, (size.rows, size.columns))

    def close(self) -> None:
        self.handed_over()
        self.terminal = -1
        if self.input is not None:
            self.input.close()
        if self.stream is not None:
            self.stream.close()
        self._reader.close()


class InputWriter:
    """Writes to a descriptor that it owns, and that must not block."""

    def __init__(self, watch: DescriptorWatch, fd: int) -> None:
        self._descriptor = Descriptor(watch, fd)
        self._turn = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Write all of it, in turn with other writers. Waits while the command does not read.

        Raises `InputClosed`. After a cancel, part of the data may have been written.
        """
        async with self._turn:
            rest = memoryview(data)
            while rest:
                rest = rest[self._write_some(rest) :]
                if rest:
                    await self._descriptor.until_ready(Event.WRITABLE)

    def try_write(self, data: bytes) -> bool:
        """Write all of it at once, or nothing: False if there is no room, if another writer waits,
        or if it is longer than a pipe takes in one piece. Raises `InputClosed`."""
        if len(data) > select.PIPE_BUF or self._turn.locked():
            return False
        return self._write_some(memoryview(data)) == len(data)

    def write_now(self, data: bytes) -> None:
        """Write a few bytes if there is room for them. Raises `InputClosed`."""
        self._write_some(memoryview(data))

    def close(self) -> None:
        """A write that waits raises `InputClosed`."""
        self._descriptor.close()

    def _write_some(self, data: memoryview) -> int:
        if self._descriptor.fd < 0:
            raise InputClosed("the command's input is closed")
        try:
            return os.write(self._descriptor.fd, data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise InputClosed(f"the command does not read its input any more: {error}") from error


def _open_terminal(size: PtySize) -> tuple[int, int]:
    """Returns our end, which does not block, and the command's."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (size.rows, size.columns))
        os.set_blocking(ours, False)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    return ours, theirs
