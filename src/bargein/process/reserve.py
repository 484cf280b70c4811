"""One descriptor kept back, so that a stop can open a file though the table is full."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class Reserve:
    def __init__(self) -> None:
        self._kept = os.open(os.devnull, os.O_RDONLY)

    @contextmanager
    def opened(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        fd = self._open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)
            self._keep()

    def close(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._kept < 0:
                raise
        self.close()
        return os.open(path, flags)

    def _keep(self) -> None:
        if self._kept < 0:
            try:
                self._kept = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                pass  # the table is still full; the next use tries again
