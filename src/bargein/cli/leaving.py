"""Leaving the program: announced at once, bounded whatever a tool, model or store does, and with a
clean terminal.

`begin` may be called from a signal handler, at any time and more than once. The watchdog that it
arms needs no Python. A second Ctrl-C ends the program at once: the helper notices that we are gone
and kills commands that still run.
"""

import os
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
from bargein.runtime.config import Config

AT_ONCE = 130
TELL_AFTER_S = 0.5
# Shows the cursor and ends colours and bracketed paste, which a drawing program may have left on.
CLEAN = b"\x1b[?2026l\x1b[?25h\x1b[0m\x1b[?2004l"


class Leaving:
    """Create it while the terminal is in the user's own state."""

    def __init__(self, config: Config) -> None:
        self._bound_s = config.number("chat.leave_s")
        self._trace = config.home / "leaving.log"
        self._began_at: float | None = None
        self._terminal = _attributes()
        self._over = threading.Event()

    def begin(self) -> None:
        if self._began_at is not None:
            return
        self._began_at = time.monotonic()
        # If the watchdog ends us, the stacks of all threads help; the screen is no place for them.
        try:
            file = self._trace.open("w")
        except OSError:
            arm_quit_watchdog(self._bound_s)
        else:
            arm_quit_watchdog(self._bound_s, file=file)
        # A thread restores the terminal, because a blocked loop cannot.
        threading.Thread(target=self._restore_if_wedged, daemon=True).start()

    def tell(self, waited_for: Callable[[], str], *, come_back: str = "") -> None:
        """Says that leaving is under way and, later, what it waits for. `come_back`: none of it
        ends with this terminal, and this command comes back to it."""
        words = waited_for()
        if come_back:
            if words:
                _say(f"{words} goes on; {come_back} comes back to it")
            return
        _say(f"Shutting down{f': stopping {words}' if words else ''}")

        def tell_later() -> None:
            while not self._over.wait(TELL_AFTER_S * 2):
                _say(f"still waiting for {waited_for() or 'the store'}; Ctrl-C leaves at once")

        threading.Thread(target=tell_later, daemon=True).start()

    def over(self) -> None:
        self._over.set()
        disarm_quit_watchdog()
        with suppress(OSError):
            self._trace.unlink(missing_ok=True)

    def at_once(self) -> None:
        """Leaves without waiting. Never returns."""
        self.restore()
        os._exit(AT_ONCE)

    def _restore_if_wedged(self) -> None:
        if not self._over.wait(max(0.1, self._bound_s - 0.3)):
            self.restore()
            _say("leaving although not everything has ended")

    def restore(self) -> None:
        """Restores the user's terminal state. Any thread, any signal handler."""
        if self._terminal is None:
            return
        try:
            os.write(1, CLEAN)
            termios.tcsetattr(0, termios.TCSANOW, self._terminal)
        except (OSError, termios.error):
            return


_Attributes = list[int | list[bytes | int]]


def _attributes() -> _Attributes | None:
    if not (os.isatty(0) and os.isatty(1)):
        return None
    return termios.tcgetattr(0)


def _say(words: str) -> None:
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        return
