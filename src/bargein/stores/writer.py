"""The one thread that writes. What waits while it syncs shares the next sync: group commit.

What holds:

- A step is told its result after the transaction that it was part of is on the disk.
- Commits are written together. If one of them is refused, or there is something else among them,
  each step runs under a savepoint of its own: one that raises is undone and told so, and the others
  of its transaction are not touched.
- If a transaction fails as a whole, the connection is made anew and what the transaction would have
  left is looked for. If it did not happen, its steps are done one by one, so that only
  what cannot be done fails: on a nearly full disk one that is too large fails alone. Not after it
  has waited for a lock: each of them would wait as long.
- At leisure, after those who wait were told, SQLite's log is moved into the file. Only here and by
  this connection: moved by another one beside a commit, what is in it could be lost (decision 79).
- Also at leisure, what is left of deleted sessions is removed and what was said is indexed, a few
  rows at a time; a long text is prepared piece by piece, and left for later when a job comes.
  Nobody is kept waiting by more than that: it is not synced (what a power cut
  undoes is done again), does not wait for locks, and begins a moment after the commit that made it
  necessary, which others often follow.
"""

import os
import sqlite3
import time
from collections.abc import Sequence

from bargein.errors import BargeinError
from bargein.stores import pen
from bargein.stores.faults import BUSY, code_of
from bargein.stores.file import StoreFile
from bargein.stores.index import Gathered, index_some
from bargein.stores.jobs import AnyStep, Job
from bargein.stores.ledger import Ledger
from bargein.stores.rows import sweep
from bargein.stores.worker import Worker
from bargein.stores.writes import Witness, Write, rows_of

STAMPED = "SELECT 1 FROM store WHERE stamp = ?"
BATCH_MAX = 128
LINGER_S = 0.1

MOVE_LOG = "PRAGMA wal_checkpoint(PASSIVE)"
LOG_PAGES = 250
"""About how many the log has when it is moved into the file: a millisecond or two."""
PAGES_ALONE = 5
QUIET_S = 0.002
"""What belongs together comes within less."""

# What SQLite says about the values of one step and not about the file.
ABOUT_THE_STEP = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)


def _is_about_the_file(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and not isinstance(error, ABOUT_THE_STEP)


class Writer(Worker):
    def __init__(self, file: StoreFile) -> None:
        self._last_stamp = int.from_bytes(os.urandom(7), "big")
        self._leisure_at: float | None = None
        self._log_pages = 0
        self.ledger = Ledger()
        self._gathered = Gathered()
        super().__init__(file, "writer", batch_max=BATCH_MAX)

    def tidy_soon(self) -> None:
        """A session was deleted, or a text written. Called by its job, in the thread."""
        if self._leisure_at is None:
            self._leisure_at = time.monotonic() + LINGER_S

    def _connect(self) -> sqlite3.Connection:
        connection = self._file.connect_to_write()
        self.tidy_soon()
        return connection

    def _ready(self) -> sqlite3.Connection:
        connection = self._connected()
        self._file.check_whole()
        return connection

    def _serve(self, batch: list[Job]) -> None:
        super()._serve(batch)
        # An estimate, from what was counted of commits alone and of crowds: SQLite's module does
        # not tell how many there are.
        self._log_pages += PAGES_ALONE + sum(len(job.steps) for job in batch) // 2

    def _do(self, steps: list[AnyStep]) -> None:
        self.ledger.trim()
        if not self._do_together(steps):
            self._do_each(steps)

    def _do_together(self, steps: list[AnyStep]) -> bool:
        """Commits alone, all of which can be done, as almost always. False: nothing was done."""
        writes = [step for step in steps if isinstance(step, Write)]
        telling = next((write for write in writes if write.bodies), None)
        if telling is None or len(writes) < len(steps):
            return False
        connection = self._ready()
        witness: Witness | None = None
        try:
            rows = rows_of(writes, connection)
            witness = telling.witness()
            pen.write(connection, rows)
        except sqlite3.Error as error:
            if not _is_about_the_file(error):
                return False
            self._drop_connection()
            self._after_failure(steps, witness, error)
        except Exception:  # boundary: done one by one, it is told to its own waiter alone
            return False
        return True

    def _new_stamp(self) -> int:
        """Never in the file before; so that it is there only if what has put it there happened."""
        self._last_stamp += 1
        return self._last_stamp

    def _do_each(self, steps: Sequence[AnyStep]) -> None:
        connection = self._ready()
        connection.execute("BEGIN IMMEDIATE")
        stamp = self._new_stamp()
        try:
            self.ledger.begin(connection)
            for step in steps:
                self._apply(step, connection)
            connection.execute("UPDATE store SET stamp = ?", (stamp,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._drop_connection()
            self._after_failure(steps, (STAMPED, (stamp,)), error)

    def _apply(self, step: AnyStep, connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT step")
        try:
            step.value = step.work(connection)
        except Exception as error:  # boundary: told to the step's own waiter alone
            if _is_about_the_file(error):
                raise
            step.error = self.explain(error) if isinstance(error, sqlite3.Error) else error
            connection.execute("ROLLBACK TO step")
        connection.execute("RELEASE step")

    def _after_failure(
        self, steps: Sequence[AnyStep], witness: Witness | None, error: sqlite3.Error
    ) -> None:
        """Without a `witness` it has failed before its end, and so has not happened."""
        happened = witness is not None and self._happened(witness)
        if happened:
            return
        self._make_room()
        if happened is None or len(steps) == 1 or code_of(error) in BUSY:
            self._fail(steps, error)
            if happened is False and code_of(error) == sqlite3.SQLITE_IOERR:
                self._bury()
            return
        for place, step in enumerate(steps):
            step.value = step.error = None
            try:
                self._do_each([step])
            except Exception as cause:  # boundary: told to those for whom it was not done
                # Not this one's fault: the file could not even be begun on, and the rest would
                # wait as long again, each of them.
                self._distrust(cause)
                self._fail(steps[place:], cause)
                return

    def _happened(self, witness: Witness) -> bool | None:
        """Whether the transaction that this finds a row of is on the disk; None if nobody can tell.

        Being seen is not enough: after a sync that failed it may be in the kernel's memory alone.
        A checkpoint writes and syncs it once more.
        """
        try:
            connection = self._ready()
            if connection.execute(*witness).fetchone() is None:
                return False
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (sqlite3.Error, BargeinError) as error:
            self._distrust(error)
            return None
        return None if busy else True

    def _make_room(self) -> None:
        """If the log can be moved into the file, the next transaction begins it anew and needs no
        more space than it has."""
        self._log_pages = 0
        try:
            self._ready().execute(MOVE_LOG).fetchone()
        except Exception as error:  # boundary: nobody waits for it; it is still in the log
            self._distrust(error)

    def _bury(self) -> None:
        """Write over what a failed sync may have left in the log, where a later recovery would
        take it for a commit that its caller was told had failed."""
        try:
            self._ready().execute("UPDATE store SET stamp = ?", (self._new_stamp(),))
        except (sqlite3.Error, BargeinError) as error:
            self._distrust(error)

    def _leisure_in_s(self) -> float | None:
        if self._log_pages >= LOG_PAGES:
            return QUIET_S
        if self._leisure_at is None:
            return None
        return max(0.0, self._leisure_at - time.monotonic())

    def _work_at_leisure(self) -> None:
        if self._log_pages >= LOG_PAGES:
            self._make_room()
        else:
            self._tidy()

    def _has_work(self) -> bool:
        return not self._queue.empty()

    def _tidy(self) -> None:
        try:
            connection = self._ready()
            full_text = self._file.full_text
            if full_text and not self._gathered.gather(connection, busy=self._has_work):
                return
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("BEGIN IMMEDIATE")
            more = sweep(connection, full_text=full_text) or (
                full_text and index_some(connection, self._gathered)
            )
            connection.execute("COMMIT")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA busy_timeout = {int(self._file.busy_s * 1000)}")
            self._log_pages += PAGES_ALONE
            if not more:
                self._leisure_at = None
        except Exception as error:  # boundary: nobody waits for it, and the thread goes on
            # Tried again after the next text, the next deletion or the next connection.
            self._leisure_at = None
            if not isinstance(error, BargeinError):
                self._drop_connection()
