"""What was sent before, for the key Up: kept in a file, or if that cannot be had, while it runs."""

from collections.abc import Iterable
from contextlib import suppress

from prompt_toolkit.history import FileHistory


class KeptHistory(FileHistory):
    """A file that cannot be read or written costs only what would be in it."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError, UnicodeError):
            super().store_string(string)
