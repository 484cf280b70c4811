"""A thread that reads, with a connection of its own: no read waits for the writer or its disk."""

import sqlite3

from bargein.stores.file import StoreFile
from bargein.stores.jobs import AnyStep
from bargein.stores.worker import Worker


class Reader(Worker):
    def __init__(self, file: StoreFile, name: str) -> None:
        super().__init__(file, name, batch_max=1)

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect_to_read()

    def _do(self, steps: list[AnyStep]) -> None:
        (step,) = steps
        connection = self._connected()
        self._file.check_identity()
        step.value = step.work(connection)
