"""The terminal's keys, also those that were pressed before the prompt was there.

Until a program takes its terminal over, that collects lines for it, and keeps Enter as a newline
and Ctrl-D as a zero byte. Both are turned back into the keys they were when the terminal is taken
over, so that what is typed ahead does what it would have done a moment later. A Ctrl-J of that time
cannot be told from Enter.
"""

import termios
import tty
from asyncio import get_running_loop
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from prompt_toolkit.input.vt100 import Vt100Input

# All that a terminal keeps; what comes in behind it is not translated any more.
KEPT_BYTES_MAX = 4096


class Keyboard(Vt100Input):
    def raw_mode(self) -> AbstractContextManager[None]:
        return self._taken_over()

    def attach(self, input_ready_callback: Callable[[], None]) -> AbstractContextManager[None]:
        return self._attached(input_ready_callback)

    @contextmanager
    def _taken_over(self) -> Iterator[None]:
        keys = _translated(self.fileno())
        with super().raw_mode():
            self.vt100_parser.feed(self.stdin_reader.read(KEPT_BYTES_MAX).translate(keys))
            yield

    @contextmanager
    def _attached(self, input_ready_callback: Callable[[], None]) -> Iterator[None]:
        with super().attach(input_ready_callback):
            # What was typed ahead has been read; nothing else may ever come in to tell of it.
            get_running_loop().call_soon(input_ready_callback)
            yield


def _translated(terminal: int) -> dict[int, str]:
    """What a terminal makes of keys in the mode that it is in, backwards."""
    try:
        attributes = termios.tcgetattr(terminal)
    except termios.error:
        return {}
    keys = {}
    if attributes[tty.IFLAG] & termios.ICRNL:
        keys[ord("\n")] = "\r"
    if attributes[tty.LFLAG] & termios.ICANON:
        keys[0] = "\x04"
    return keys
