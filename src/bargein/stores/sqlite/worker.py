"""A thread that owns one connection and runs jobs in the order in which they were queued.

A caller makes a `Job` of one or more `JobStep`s in its own event loop, puts it into the queue and
awaits it. The thread runs the steps, stores a value or an error in each and wakes the caller. Any
number of loops of any kind may wait at once. A caller that is cancelled only stops waiting: its job
still runs.

The thread is a daemon, so a process that exits does not wait for it. It continues after any error.
"""

import copy
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar, cast

from bargein.cancel._loops import new_alarm, ring, running_loop
from bargein.contracts.store import StoreFailed
from bargein.errors import BargeinError, BugError
from bargein.stores.sqlite.faults import closed, explain
from bargein.stores.sqlite.file import StoreFile

T = TypeVar("T")
J = TypeVar("J", bound="Job")

PENDING_MAX = 100_000

Work = Callable[[sqlite3.Connection], T]


# --- jobs


class JobStep(Generic[T]):
    """One operation, done wholly or not at all, and its outcome. `session` is the session that it
    concerns, if it concerns one. `is_large`: it writes so much that others go first."""

    __slots__ = ("error", "session", "value")

    is_large = False

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.value: T | None = None
        self.error: Exception | None = None

    def work(self, connection: sqlite3.Connection) -> T:
        raise NotImplementedError

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


AnyStep = JobStep[Any]


class _WorkStep(JobStep[T]):
    __slots__ = ("_work",)

    def __init__(self, work: Work[T], session: str | None) -> None:
        super().__init__(session)
        self._work = work

    def work(self, connection: sqlite3.Connection) -> T:
        return self._work(connection)


class Job:
    """Steps that one caller asked for together. Made and awaited in the caller's loop."""

    __slots__ = ("_alarm", "loop", "steps")

    def __init__(self, steps: Sequence[AnyStep]) -> None:
        self.steps = steps
        self.loop: Any = running_loop()
        self._alarm = new_alarm()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._alarm.__await__()

    def wake(self) -> None:
        """Wake the caller. Runs in its loop; the caller may have been cancelled and gone."""
        ring(self._alarm)


class Single(Job, Generic[T]):
    """A job of one step. Awaiting it returns the step's value or raises its error."""

    __slots__ = ()

    def __init__(self, work: Work[T], session: str | None = None) -> None:
        super().__init__((_WorkStep(work, session),))

    def __await__(self) -> Generator[Any, None, T]:
        yield from super().__await__()
        return cast(T, self.steps[0].result())


def announce(jobs: Iterable[Job]) -> None:
    """Wake the callers of these jobs, from any thread, with one call into each loop."""
    by_loop: dict[object, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, those in by_loop.items():
        call_soon = getattr(loop, "call_soon_threadsafe", None) or cast(Any, loop).run_sync_soon
        try:
            call_soon(partial(_wake, those))
        except RuntimeError:
            pass  # the loop is closed, and its callers are gone


def _wake(jobs: list[Job]) -> None:
    for job in jobs:
        job.wake()


# --- the thread


class Worker:
    """Subclasses define how to connect and how to run a batch of steps. Both happen in the
    thread."""

    def __init__(self, file: StoreFile, name: str, *, batch_max: int) -> None:
        self._file = file
        self._batch_max = batch_max
        self._connection: sqlite3.Connection | None = None
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        # Held only for a moment, never during work on the file.
        self._guard = Lock()
        self._pending = 0
        self._pending_of: dict[str, int] = {}
        self._refusing = False
        self._closing = False
        self._ended = False
        self._wait_for_end: list[Job] = []
        self._process = os.getpid()
        Thread(target=self._run, name=f"bargein-store-{name}", daemon=True).start()

    # In the callers' loops

    def run(self, work: Work[T], session: str | None = None) -> Single[T]:
        """Queue work. Awaiting the job returns the work's value or raises its error."""
        self._check_process()
        return self._put(Single(work, session))

    def run_all(self, steps: Sequence[AnyStep]) -> Job:
        """Queue steps as one job. After awaiting it, each step has its value or error."""
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
        """Whether a step about this session is queued or running."""
        return session in self._pending_of

    def refuse_more(self) -> None:
        """Refuse new jobs. Queued ones still run."""
        with self._guard:
            self._refusing = True

    def end_soon(self) -> None:
        """Refuse new jobs, run the queued ones, close the connection, end. May be called twice."""
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
        """Refuse in a forked process: it has neither the thread nor a right to the connection."""
        if self._process != os.getpid():
            raise BugError(
                f"{self._file.path} was opened before this process was forked: open it again here"
            )

    def _check_usable(self) -> None:
        if self._refusing:
            raise closed(self._file.path)
        if self._pending >= PENDING_MAX:
            raise StoreFailed(
                f"{self._file.path}: {self._pending} requests are waiting for the disk, which is "
                "the most that may wait. Try again when it has caught up",
                retryable=True,
            )

    # In the thread

    def _connect(self) -> sqlite3.Connection:
        raise NotImplementedError

    def _do(self, steps: list[AnyStep]) -> None:
        """Give each step its value or its error. An exception fails all steps."""
        raise NotImplementedError

    def _leisure_in_s(self) -> float | None:
        """Return how long until there is work to do at leisure; None if there is none."""
        return None

    def _work_at_leisure(self) -> None:
        """Do something short while no job waits. Raises nothing."""

    def _finish(self) -> None:
        """Do what is left of the jobs before the thread ends. Raises nothing."""

    def _run(self) -> None:
        running = True
        while running:
            batch, running = self._gather()
            if batch:
                self._serve(batch)
            elif running:
                self._work_at_leisure()
            # Keep no reference while waiting: the result of a read may be a whole log.
            del batch
        self._finish()
        self._drop_connection()
        with self._guard:
            self._ended = True
        announce(self._wait_for_end)

    def _gather(self) -> tuple[list[Job], bool]:
        """Return the waiting jobs in order, and False if the thread is to end. If there are none,
        wait for one, or until there is work to do at leisure."""
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
        except Exception as error:  # boundary: the callers get it; the thread continues
            self._distrust(error)
            self._fail(steps, error)
        self._end(batch)

    def _end(self, jobs: list[Job]) -> None:
        """Wake the callers of jobs whose steps have their outcome."""
        steps = [step for job in jobs for step in job.steps]
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
        announce(jobs)

    def _fail(self, steps: Sequence[AnyStep], error: Exception) -> None:
        """Give each step its own error object, because each caller raises it."""
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
        """Drop a connection that failed: it may be inside a transaction. But keep it if its file
        was moved away: if the file is put back, only this connection can reach the log."""
        if not isinstance(error, BargeinError):
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # it had failed before, and everything acknowledged is on the disk


class ReadWorker(Worker):
    """A thread that reads, so that no read waits for the writer and its disk."""

    def __init__(self, file: StoreFile, name: str) -> None:
        super().__init__(file, name, batch_max=1)

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect_to_read()

    def _do(self, steps: list[AnyStep]) -> None:
        (step,) = steps
        connection = self._connected()
        self._file.check_identity()
        step.value = step.work(connection)
