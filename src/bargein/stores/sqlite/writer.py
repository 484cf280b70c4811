"""The only thread that writes. Writes that queue up during a sync share the next one: group commit.

What holds:

- A step gets its result after the transaction that it was part of is on the disk.
- Commits are written together, in one statement. If one is refused, or if another kind of step is
  among them, each step runs under its own savepoint: a step that raises is undone alone.
- If a transaction fails as a whole, the writer reconnects and checks whether it happened. If not,
  it runs the steps one by one, so that only the impossible ones fail: on a nearly full disk the one
  that is too large. After a vain wait for a lock it does not, because each step would wait as long
  again.
- A job with long values is set aside. The thread writes its segments one at a time, between the
  other jobs, and then its commits (`large_sql`). Jobs about the same sessions wait for it, so each
  session's writes keep their order.
- At leisure, after waking the callers, it moves SQLite's log into the file. No other connection
  does this: moving the log during a commit could lose what is in it (decision 79).
- Also at leisure it removes the rest of deleted sessions and indexes texts, a few rows at a time.
  That is not synced (a power cut undoes it, and it is repeated), does not wait for locks, and
  begins a moment after the commit that made it necessary, because more commits often follow.
"""

import os
import sqlite3
import time
from collections import deque
from collections.abc import Sequence

from bargein.errors import BargeinError
from bargein.stores.sqlite.commit_sql import (
    CommitStep,
    LogEnds,
    Witness,
    prepare,
    rows_of,
    write_rows,
)
from bargein.stores.sqlite.faults import BUSY, code_of
from bargein.stores.sqlite.file import StoreFile
from bargein.stores.sqlite.large_sql import LongValue, ValueNumbers, sweep_values
from bargein.stores.sqlite.search_sql import Gathered, index_some
from bargein.stores.sqlite.session_sql import sweep
from bargein.stores.sqlite.worker import AnyStep, Job, Worker

STAMPED = "SELECT 1 FROM store WHERE stamp = ?"
BATCH_MAX = 128
LINGER_S = 0.1

MOVE_LOG = "PRAGMA wal_checkpoint(PASSIVE)"
LOG_PAGES = 250
"""The approximate length of the log at which the writer moves it, which takes a millisecond or
two."""
LOG_PAGES_BETWEEN = 64
"""The same while segments are written: other jobs wait for the move, so it is kept short."""
PAGES_ALONE = 5
PAGE_BYTES = 4096
QUIET_S = 0.002
"""Jobs that belong together arrive within less than this."""

# Errors of SQLite that concern the values of one step and not the file.
ABOUT_THE_STEP = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)


def _is_about_the_file(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and not isinstance(error, ABOUT_THE_STEP)


class _LargeJob:
    """A job whose long values are written first, and the jobs that wait for it because they
    concern the same sessions: its own, or those of another that waits. `values` is None before its
    turn."""

    def __init__(self, job: Job) -> None:
        self.jobs = [job]
        self.sessions = _sessions_of(job)
        self.values: deque[LongValue] | None = None
        self.numbers: list[int] = []

    def begin(self, numbers: ValueNumbers) -> deque[LongValue]:
        values: deque[LongValue] = deque()
        for step in self.jobs[0].steps:
            if isinstance(step, CommitStep) and step.is_large:
                try:
                    values.extend(step.cut(numbers))
                except Exception:  # boundary: the transaction raises it again, for this step alone
                    continue
        self.numbers = [value.number for value in values]
        return values


def _sessions_of(job: Job) -> set[str]:
    return {step.session for step in job.steps if step.session is not None}


class Writer(Worker):
    def __init__(self, file: StoreFile) -> None:
        self._last_stamp = int.from_bytes(os.urandom(7), "big")
        self._large: deque[_LargeJob] = deque()
        self._numbers = ValueNumbers()
        self._leisure_at: float | None = None
        self._log_pages = 0
        self.ends = LogEnds()
        self._gathered = Gathered()
        super().__init__(file, "writer", batch_max=BATCH_MAX)

    def tidy_soon(self) -> None:
        """Plan to sweep and index. Called in the thread, after a deletion or a text."""
        if self._leisure_at is None:
            self._leisure_at = time.monotonic() + LINGER_S

    def _connect(self) -> sqlite3.Connection:
        connection = self._file.connect_to_write()
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        self.tidy_soon()
        return connection

    def _ready(self) -> sqlite3.Connection:
        connection = self._connected()
        self._file.check_whole()
        return connection

    def _serve(self, batch: list[Job]) -> None:
        now = self._set_large_aside(batch)
        if now:
            self._serve_now(now)
        if self._large:
            self._write_large()

    def _serve_now(self, batch: list[Job]) -> None:
        super()._serve(batch)
        if self.ends.has_new_texts:
            self.ends.has_new_texts = False
            self.tidy_soon()
        # An estimate, measured for lone commits and for large groups: Python's `sqlite3` does not
        # report the length of the log.
        self._log_pages += PAGES_ALONE + sum(len(job.steps) for job in batch) // 2

    def _finish(self) -> None:
        while self._large:
            self._write_large()

    # --- large jobs

    def _set_large_aside(self, batch: list[Job]) -> list[Job]:
        """Return the jobs to do now. The others are large, or wait for a large one."""
        if not self._large and not any(step.is_large for job in batch for step in job.steps):
            return batch
        now: list[Job] = []
        for job in batch:
            sessions = _sessions_of(job)
            before = [each for each in self._large if not sessions.isdisjoint(each.sessions)]
            if any(step.is_large for step in job.steps):
                self._large.append(_LargeJob(job))
            elif before:
                before[-1].jobs.append(job)
                before[-1].sessions |= sessions
            else:
                now.append(job)
        return now

    def _write_large(self) -> None:
        """Write the next segment of the first large job, or the job itself if it has them all."""
        if self._log_pages >= LOG_PAGES_BETWEEN:
            self._make_room()
            return
        large = self._large[0]
        try:
            if large.values is None:
                large.values = large.begin(self._numbers)
                return
            if large.values:
                self._write_segment(large.values)
                return
        except Exception as error:  # boundary: the callers get it; the thread continues
            self._fail_large(large.jobs[0], error)
            del large.jobs[0]
        self._large.popleft()
        if large.jobs:
            self._serve_now(large.jobs)
        if large.numbers and any(step.error for job in large.jobs for step in job.steps):
            self.tidy_soon()

    def _write_segment(self, values: deque[LongValue]) -> None:
        connection = self._ready()
        # The sync of the commit, or of moving the log, includes what was written before it.
        connection.execute("PRAGMA synchronous = NORMAL")
        size = values[0].write_segment(connection)
        connection.execute("PRAGMA synchronous = FULL")
        self._log_pages += size // PAGE_BYTES + 1
        if not size:
            values.popleft()

    def _fail_large(self, job: Job, error: Exception) -> None:
        """Fail a job whose segments cannot be written. Nothing refers to those that were."""
        self._distrust(error)
        self._make_room()
        self._fail(job.steps, error)
        self._end([job])
        self.tidy_soon()

    # --- transactions

    def _do(self, steps: list[AnyStep]) -> None:
        self.ends.trim()
        if not self._do_together(steps):
            self._do_each(steps)

    def _do_together(self, steps: list[AnyStep]) -> bool:
        """Write a batch of commits in one statement. Returns False, with nothing written, if there
        are other steps among them, or if one is refused."""
        commits = [step for step in steps if isinstance(step, CommitStep)]
        with_events = next((step for step in commits if step.commit.events), None)
        if with_events is None or len(commits) < len(steps):
            return False
        connection = self._ready()
        witness: Witness | None = None
        try:
            rows = rows_of(commits, connection)
            witness = with_events.witness()
            write_rows(connection, rows, large=any(step.has_large_rows for step in commits))
        except sqlite3.Error as error:
            if not _is_about_the_file(error):
                return False
            self._drop_connection()
            self._after_failure(steps, witness, error)
        except Exception:  # boundary: each step is then run alone, and only its own caller gets it
            return False
        return True

    def _do_each(self, steps: Sequence[AnyStep]) -> None:
        """Run each step under its own savepoint, in one transaction."""
        connection = self._ready()
        connection.execute("BEGIN IMMEDIATE")
        stamp = self._new_stamp()
        try:
            self.ends.begin(connection)
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
        except Exception as error:  # boundary: only the step's own caller gets it
            if _is_about_the_file(error):
                raise
            step.error = self.explain(error) if isinstance(error, sqlite3.Error) else error
            connection.execute("ROLLBACK TO step")
        connection.execute("RELEASE step")

    def _new_stamp(self) -> int:
        """Return a number that was never in the file: it is there only if its transaction
        happened."""
        self._last_stamp += 1
        return self._last_stamp

    # --- after a failure

    def _after_failure(
        self, steps: Sequence[AnyStep], witness: Witness | None, error: sqlite3.Error
    ) -> None:
        """Find out whether a failed transaction happened, and give each step its outcome. Without a
        `witness` the transaction failed before its end, so it did not happen."""
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
            except Exception as cause:  # boundary: the callers whose steps were not run get it
                # No transaction could begin, which is not the fault of this step. Each of the other
                # steps would wait as long again.
                self._distrust(cause)
                self._fail(steps[place:], cause)
                return

    def _happened(self, witness: Witness) -> bool | None:
        """Return whether the transaction whose row `witness` finds is on the disk; None if unknown.

        Seeing the row is not enough: after a failed sync it may be only in the kernel's memory. A
        checkpoint writes and syncs it once more.
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
        """Move the log into the file, so that the next transaction starts the log anew and needs no
        more space."""
        self._log_pages = 0
        try:
            self._ready().execute(MOVE_LOG).fetchone()
        except Exception as error:  # boundary: no caller waits for it, and the log still has it
            self._distrust(error)

    def _bury(self) -> None:
        """Overwrite what a failed sync may have left in the log. A later recovery would take it for
        a commit, although its caller got an error."""
        try:
            self._ready().execute("UPDATE store SET stamp = ?", (self._new_stamp(),))
        except (sqlite3.Error, BargeinError) as error:
            self._distrust(error)

    # --- at leisure

    def _leisure_in_s(self) -> float | None:
        if self._large:
            return 0.0
        if self._log_pages >= LOG_PAGES:
            return QUIET_S
        if self._leisure_at is None:
            return None
        return max(0.0, self._leisure_at - time.monotonic())

    def _work_at_leisure(self) -> None:
        if self._large:
            self._write_large()
        elif self._log_pages >= LOG_PAGES:
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
            under_way = [number for large in self._large for number in large.numbers]
            more = (
                sweep(connection, full_text=full_text)
                or sweep_values(connection, under_way)
                or (full_text and index_some(connection, self._gathered))
            )
            connection.execute("COMMIT")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA busy_timeout = {int(self._file.busy_s * 1000)}")
            self._log_pages += PAGES_ALONE
            if not more:
                self._leisure_at = None
        except Exception as error:  # boundary: no caller waits for it, and the thread continues
            # The next text, deletion or connection plans it again.
            self._leisure_at = None
            if not isinstance(error, BargeinError):
                self._drop_connection()
