"""The one connection that writes. What queues up while a statement runs shares the next: group
commit.

What holds:

- Work is done in the order of asking, so the writes of one session are too.
- A caller that is cancelled only stops waiting.
- If the connection is lost, or the server stays silent, the outcome of what was sent is unknown:
  the server may still do it. So every write holds the row of this node in `writers`, and a new
  connection first raises the generation there. That waits for a statement that is still running,
  and every later one of the old connection finds another generation and writes nothing. A session
  with an unknown outcome is read only behind that (`is_unsure`). With a synchronous standby the
  raised generation is safe there too, and then so is everything before it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg

from bargein.cancel._loops import end_task
from bargein.stores.postgres.commit_sql import TOGETHER_MAX, PendingCommit, rounds, write
from bargein.stores.postgres.connection import Connection, PostgresConnection
from bargein.stores.postgres.faults import closed, explain

T = TypeVar("T")
Write = Callable[[Connection, int], Awaitable[T]]

CLOSE_S = 5.0
# What a single statement says about its values and not about the server.
REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)

RAISE_GENERATION = """INSERT INTO bargein.writers VALUES ($1, 1)
    ON CONFLICT (node) DO UPDATE SET generation = writers.generation + 1 RETURNING generation"""


class _Job:
    """Either commits or one other write, and who waits for it."""

    __slots__ = ("done", "sessions", "steps", "work")

    def __init__(
        self,
        sessions: Sequence[str],
        *,
        steps: Sequence[PendingCommit] = (),
        work: Write[object] | None = None,
    ) -> None:
        self.sessions = sessions
        self.steps = steps
        self.work = work
        self.done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        # A caller that was cancelled does not ask for the outcome.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())


class CommitWriter:
    """`node` returns the name that this store writes under now."""

    def __init__(self, link: PostgresConnection, name: str, node: Callable[[], str]) -> None:
        self._link = link
        self._name = name
        self._node = node
        self._generation = 0
        self._written_as = ""
        self._jobs: deque[_Job] = deque()
        self._pending: Counter[str] = Counter()
        self._unsure: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def run(self, work: Write[T], session: str) -> T:
        job = _Job((session,), work=work)
        return await self._ask(job)  # type: ignore[return-value]

    async def commit(self, steps: Sequence[PendingCommit]) -> None:
        """Sets the outcome of each step. Raises what concerns all of them."""
        await self._ask(_Job([step.commit.session for step in steps], steps=steps))

    def is_pending(self, session: str) -> bool:
        """Whether a write of this session is under way, or may be. To read what is decided, read
        through `run`."""
        return session in self._pending or session in self._unsure

    async def _ask(self, job: _Job) -> object:
        if self._closed:
            raise closed(self._name)
        self._jobs.append(job)
        self._pending.update(job.sessions)
        self._wake.set()
        return await asyncio.shield(job.done)

    async def aclose(self) -> None:
        """Finish what was asked for. Bounded; what is not done by then fails."""
        self._closed = True
        self._wake.set()
        done, _ = await asyncio.wait({self._task}, timeout=CLOSE_S)
        if not done:
            self._link.drop()
            await end_task(self._task)
            for job in self._jobs:
                self._finish(job, closed(self._name))

    # --- the task

    async def _work(self) -> None:
        while True:
            if not self._jobs:
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            if self._jobs[0].work is not None:
                await self._write(self._jobs.popleft())
            else:
                await self._commit(self._next_commits())

    def _next_commits(self) -> list[_Job]:
        """Commits at the head of the queue, as many as one statement writes."""
        jobs = [self._jobs.popleft()]
        count = len(jobs[0].steps)
        while self._jobs and self._jobs[0].work is None:
            count += len(self._jobs[0].steps)
            if count > TOGETHER_MAX:
                break
            jobs.append(self._jobs.popleft())
        return jobs

    async def _write(self, job: _Job) -> None:
        work = job.work
        assert work is not None

        async def run(connection: Connection) -> object:
            return await work(connection, await self._generation_on(connection))

        try:
            value = await self._link.run(run)
        except Exception as error:  # boundary: its caller gets it
            self._fail([job], error)
        else:
            self._finish(job, None, value)

    async def _commit(self, jobs: list[_Job]) -> None:
        steps = [step for job in jobs for step in job.steps]
        try:
            for some in rounds(steps):
                await self._commit_round(some)
        except Exception as error:  # boundary: the callers of these commits get it
            self._fail(jobs, error)
        else:
            for job in jobs:
                self._finish(job, None)

    async def _commit_round(self, steps: list[PendingCommit]) -> None:
        async def run(connection: Connection) -> None:
            await write(connection, self._node(), await self._generation_on(connection), steps)

        try:
            await self._link.run(run)
        except REFUSED as error:
            if len(steps) == 1:
                steps[0].error = explain(error, self._name)
                return
            # One of them has a value that PostgreSQL refuses: it must not fail the others.
            for step in steps:
                step.error = None
                await self._commit_round([step])

    async def _generation_on(self, connection: Connection) -> int:
        """The generation of this connection, raised before its first write."""
        if not self._generation or self._written_as != self._node():
            node = self._node()
            self._generation = await connection.fetchval(RAISE_GENERATION, node)
            self._written_as = node
            self._unsure.clear()
        return self._generation

    def _fail(self, jobs: list[_Job], error: Exception) -> None:
        if not self._link.is_connected:
            self._generation = 0
            for job in jobs:
                self._unsure.update(job.sessions)
        told = error if isinstance(error, ValueError) else explain(error, self._name)
        for job in jobs:
            self._finish(job, told)

    def _finish(self, job: _Job, error: Exception | None, value: object = None) -> None:
        for session in job.sessions:
            self._pending[session] -= 1
            if not self._pending[session]:
                del self._pending[session]
        if job.done.done():
            return
        if error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(value)
