"""The input history for the Up key: in a file, or in memory if the file cannot be used."""

from collections.abc import Iterable
from contextlib import suppress

from prompt_toolkit.history import FileHistory


class KeptHistory(FileHistory):
    """A file that cannot be read or written costs only the history."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError, UnicodeError):
            super().store_string(string)
