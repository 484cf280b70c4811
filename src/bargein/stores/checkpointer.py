"""The thread that moves the log into the file, so that no commit has to.

SQLite would do it at the end of a commit, before that one's caller is told: some milliseconds when
the log has a thousand pages of as many sessions. Here it is done beside the commits, which go on.
What comes into the log meanwhile is moved after it, and when all of it has been, the next commit
begins the log anew. If commits come so fast that this never happens, or somebody reads for so long
that it cannot, the log grows until a commit moves the rest of it (`file.LOG_PAGES_MAX`).
"""

import sqlite3
from threading import Lock

from bargein.errors import BargeinError
from bargein.stores.file import StoreFile
from bargein.stores.worker import Worker

PAGES = 1_000
"""About how many the log has when it is moved."""

MOVE = "PRAGMA wal_checkpoint(PASSIVE)"


class Checkpointer(Worker):
    """`moving` is held while the log is being moved: SQLite lets nobody else do so meanwhile."""

    def __init__(self, file: StoreFile) -> None:
        self.moving = Lock()
        super().__init__(file, "checkpointer", batch_max=1)

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect_to_checkpoint()

    def _work_at_leisure(self) -> None:
        """Move what is there, and then what has come meanwhile."""
        try:
            for _ in range(2):
                with self.moving:
                    connection = self._connected()
                    self._file.check_whole()
                    connection.execute(MOVE).fetchone()
        except (sqlite3.Error, BargeinError) as error:
            # Nobody waits for it. What is not moved is still in the log, and tried again.
            self._distrust(error)
