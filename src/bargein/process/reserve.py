"""One descriptor kept back, so that a kill can be written though our table is full."""

import os


class Reserve:
    def __init__(self) -> None:
        self._kept = os.open(os.devnull, os.O_RDONLY)

    def write(self, path: str, data: bytes) -> None:
        """Raises OSError."""
        try:
            file = os.open(path, os.O_WRONLY)
        except OSError:
            # If it was not for want of a descriptor, the second try says so again.
            self.close()
            file = os.open(path, os.O_WRONLY)
        try:
            os.write(file, data)
        finally:
            os.close(file)
            self._keep()

    def close(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def _keep(self) -> None:
        if self._kept < 0:
            try:
                self._kept = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                pass  # the table is still full; the next use tries again
