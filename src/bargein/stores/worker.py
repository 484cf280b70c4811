"""A thread of a store: it owns one connection and does what it is asked for, in that order.

The thread is a daemon, so a process that exits does not wait for it, and outlives whatever a job
does. A waiter that is cancelled only stops waiting.
"""

import copy
import os
import sqlite3
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, BugError
from bargein.stores.faults import closed, explain
from bargein.stores.file import StoreFile
from bargein.stores.jobs import AnyStep, Job, Single, Work, announce

T = TypeVar("T")
J = TypeVar("J", bound=Job)

PENDING_MAX = 100_000


class Worker:
    """Subclasses say how to connect and how to do a batch; all of that happens in the thread."""

    def __init__(self, file: StoreFile, name: str, *, batch_max: int) -> None:
        self._file = file
        self._batch_max = batch_max
        self._connection: sqlite3.Connection | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        # Held for a moment only, and never while anything is done to the file.
        self._guard = Lock()
        self._pending = 0
        self._pending_of: dict[str, int] = {}
        self._refusing = False
        self._closing = False
        self._ended = False
        self._wait_for_end: list[Job] = []
        self._process = os.getpid()
        Thread(target=self._run, name=f"bargein-store-{name}", daemon=True).start()

    # --- in the loops of the callers

    def run(self, work: Work[T], session: str | None = None) -> Single[T]:
        """Ask for it; whoever wants to know what came of it awaits the job."""
        self._check_process()
        return self._put(Single(work, session))

    def run_all(self, steps: Sequence[AnyStep]) -> Job:
        """The same; what came of them is told at once, and found in the steps."""
        self._check_process()
        return self._put(Job(steps))

    def _put(self, job: J) -> J:
        with self._guard:
            self._check_usable()
            self._pending += len(job.steps)
            pending_of = self._pending_of
            for step in job.steps:
                session = step.session
                if session is not None:
                    pending_of[session] = pending_of.get(session, 0) + 1
            self._queue.put(job)
        return job

    def has_pending(self, session: str) -> bool:
        """Whether something about this session was asked for and is not decided yet."""
        return session in self._pending_of

    def refuse_more(self) -> None:
        """From now on nothing is taken; what was taken is done."""
        with self._guard:
            self._refusing = True

    def end_soon(self) -> None:
        """Refuse more, do what was taken, close the connection, end. May be repeated."""
        self._check_process()
        with self._guard:
            self._refusing = True
            if not self._closing:
                self._closing = True
                self._queue.put(None)

    async def wait_ended(self) -> None:
        end = Job(())
        with self._guard:
            if self._ended:
                return
            self._wait_for_end.append(end)
        await end

    def _check_process(self) -> None:
        """A fork has neither the thread nor a right to the connection."""
        if self._process != os.getpid():
            raise BugError(
                f"{self._file.path} was opened before this process was forked: open it again here"
            )

    def _check_usable(self) -> None:
        if self._refusing:
            raise closed(self._file.path)
        if self._pending >= PENDING_MAX:
            raise StoreFailed(
                f"{self._file.path}: {self._pending} requests are waiting for the disk, and no "
                "more are taken. Wait until it has caught up",
                retryable=True,
            )

    # --- in the thread

    def _connect(self) -> sqlite3.Connection:
        raise NotImplementedError

    def _do(self, steps: list[AnyStep]) -> None:
        """Give each its value or its error. Whatever is raised instead is told to all."""
        raise NotImplementedError

    def _leisure_in_s(self) -> float | None:
        """How long from now there will be something to do at leisure; None: nothing is left."""
        return None

    def _work_at_leisure(self) -> None:
        """Something short, done while nothing waits. Raises nothing."""

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch, going_on = self._gather()
            if batch:
                self._serve(batch)
            elif going_on:
                self._work_at_leisure()
            # While it waits for more it holds on to nothing: a read may be of a whole log.
            del batch
        self._drop_connection()
        with self._guard:
            self._ended = True
        announce(self._wait_for_end)

    def _gather(self) -> tuple[list[Job], bool]:
        """What waits now, in order; if nothing does, wait for it, or until there is something to do
        at leisure. False: the end."""
        batch: list[Job] = []
        steps = 0
        try:
            while steps < self._batch_max:
                job = (
                    self._queue.get_nowait()
                    if batch
                    else self._queue.get(timeout=self._leisure_in_s())
                )
                if job is None:
                    return batch, False
                batch.append(job)
                steps += len(job.steps)
        except Empty:
            pass
        return batch, True

    def _serve(self, batch: list[Job]) -> None:
        steps = [step for job in batch for step in job.steps]
        try:
            self._do(steps)
        except Exception as error:  # boundary: told to whoever waits; the thread goes on
            self._distrust(error)
            self._fail(steps, error)
        with self._guard:
            self._pending -= len(steps)
            pending_of = self._pending_of
            for step in steps:
                session = step.session
                if session is not None:
                    left = pending_of[session] - 1
                    if left:
                        pending_of[session] = left
                    else:
                        del pending_of[session]
        announce(batch)

    def _fail(self, steps: Sequence[AnyStep], error: Exception) -> None:
        """Each waiter raises what it is told, so each is told an error of its own."""
        for step in steps:
            step.value = None
            step.error = self.explain(error)

    def explain(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            explained: Exception = explain(error, self._file.path)
        elif isinstance(error, BargeinError):
            explained = copy.copy(error)
        else:
            explained = BugError(f"{self._file.path}: {type(error).__name__}: {error}")
        explained.__cause__ = error
        return explained

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _distrust(self, error: Exception) -> None:
        """A connection that has failed is not used again: it may be in a transaction. One whose
        file was moved away is: it is the only way back to what is in the log, should the file be
        put back."""
        if not isinstance(error, BargeinError):
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # it had failed before; what it could not write down was told to nobody
