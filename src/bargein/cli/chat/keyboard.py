"""Reads the terminal's keys, including those pressed before the prompt appeared.

Until a program takes its terminal over, the terminal collects lines for it, and stores Enter as a
newline and Ctrl-D as a zero byte. Taking over turns both back into keys, so that input typed ahead
does what it would have done a moment later. A Ctrl-J of that time cannot be told from Enter.

Escape is a key of its own and the first byte of many others. A terminal writes all bytes of a key
at once, and one read gets them all. So an Escape at the end of a read, with nothing more to read,
was pressed alone and acts at once. If the rest of a key arrives in a later read after all (over a
serial line), it is joined to its Escape and types nothing; by then only the Escape has acted.
`escape_wait_s` above 0 waits that long before an Escape counts as pressed alone.
"""

import select
import termios
import time
import tty
from asyncio import get_running_loop
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding.key_processor import KeyPress, _Flush

# As much as a terminal stores; later input needs no translation.
KEPT_BYTES_MAX = 4096
ESCAPE = "\x1b"
# After an Escape, this ends the key bindings' wait for the second key of a pair.
ESCAPE_ALONE: KeyPress = _Flush
# How long after an Escape the rest of an arrow or function key may come, and what it begins with.
REST_S = 0.025
RESTS = ("[", "O")


class Keyboard(Vt100Input):
    def __init__(
        self,
        stdin: TextIO,
        *,
        escape_wait_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stdin)
        self._escape_wait_s = escape_wait_s
        self._now = now
        self._escaped_at = -REST_S

    def read_keys(self) -> list[KeyPress]:
        data = self.stdin_reader.read()
        if data.startswith(RESTS) and self._now() - self._escaped_at < REST_S:
            data = ESCAPE + data
        self.vt100_parser.feed(data)
        keys, self._buffer = self._buffer, []
        if data.endswith(ESCAPE) and self._was_pressed_alone():
            self._escaped_at = self._now()
            keys += [*self.flush_keys(), ESCAPE_ALONE]
        return keys

    def _was_pressed_alone(self) -> bool:
        if self._escape_wait_s or self.vt100_parser._in_bracketed_paste:
            return False
        more, _, _ = select.select([self.fileno()], [], [], 0)
        return not more

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
            # Input typed ahead has been read, and nothing else may ever arrive to announce it.
            get_running_loop().call_soon(input_ready_callback)
            yield


def _translated(terminal: int) -> dict[int, str]:
    """Returns the inverse of how the terminal's current mode translates keys."""
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
