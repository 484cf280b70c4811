"""The store in a SQLite file: the default.

One thread writes and two read, so that neither the disk nor a long search delays a turn. A write
returns when it is on the disk (`synchronous = FULL`); writes that come together share a sync.

The file, with SQLite's own `-wal` and `-shm` beside it, belongs to one process at a time: the
holder of the lock on its directory. Because of that lock every other owner of sessions is dead, and
`claim` always succeeds. Should a second process get past the lock, epochs fence off the older one.

The store works in any event loop that anyio supports, and in several at once. A cancel only ends
the caller's wait: the operation still happens. An error names the file; the store then reconnects,
and the next operation may succeed.
"""

import os
import secrets
import socket
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from bargein.cancel import CancelSource, run_thread
from bargein.contracts.event import Recorded
from bargein.contracts.store import (
    AcceptKey,
    Commit,
    Found,
    SessionHead,
    StoreFailed,
)
from bargein.stores.encoding import check_commit, check_text, check_time, encode_events
from bargein.stores.sqlite import search_sql, session_sql
from bargein.stores.sqlite.backup import write_backup
from bargein.stores.sqlite.commit_sql import CommitStep
from bargein.stores.sqlite.faults import closed
from bargein.stores.sqlite.file import BUSY_S, StoreFile
from bargein.stores.sqlite.worker import ReadWorker, Work
from bargein.stores.sqlite.writer import Writer

T = TypeVar("T")

CLOSE_S = 5.0
BACKUP_GRACE_S = 5.0


class SqliteStore:
    """Made by `open`."""

    def __init__(self, file: StoreFile, owner: str | None = None) -> None:
        self._file = file
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._writer = Writer(file)
        self._reader = ReadWorker(file, "reader")
        self._searcher = ReadWorker(file, "searcher")
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        owner: str | None = None,
        busy_s: float = BUSY_S,
        full_text: bool = True,
    ) -> "SqliteStore":
        """Open the file; make it if it does not exist, migrate it if it is older.

        `owner` is the name under which the store owns sessions; the default is a new name. The
        store waits at most `busy_s`, here and later, for another program that has locked the file.
        """
        store = cls(StoreFile(Path(path), busy_s=busy_s, full_text=full_text), owner)
        try:
            await store._writer.run(lambda connection: None)
        except BaseException:
            # The caller gets the error of opening, not one of closing.
            with suppress(StoreFailed):
                await store.aclose()
            raise
        return store

    @property
    def owner(self) -> str:
        return self._owner

    # --- writing

    async def create(
        self, session: str, *, root: str, at: float, epoch: int | None = None
    ) -> SessionHead | None:
        check_text(session, root)
        check_time(at)

        def work(connection: sqlite3.Connection) -> SessionHead | None:
            return session_sql.create(connection, session, root, at, epoch, self._owner)

        return await self._writer.run(work, session)

    async def claim(self, session: str) -> SessionHead | None:
        check_text(session)
        return await self._writer.run(
            partial(session_sql.claim, session=session, owner=self._owner), session
        )

    async def commit(self, commits: Sequence[Commit]) -> list[Exception | None]:
        steps = [self._step(commit) for commit in commits]
        sound = [step for step in steps if step.error is None]
        if sound:
            await self._writer.run_all(sound)
        return [step.error for step in steps]

    def _step(self, commit: Commit) -> CommitStep:
        step = CommitStep(commit, self._writer.ends)
        try:
            check_commit(commit)
            if not step.is_large:
                step.bodies = encode_events(commit.events)
        except Exception as error:  # boundary: this commit alone fails
            step.error = error
        return step

    async def delete(self, session: str, *, epoch: int | None = None) -> bool:
        check_text(session)

        def work(connection: sqlite3.Connection) -> bool:
            gone = session_sql.delete(connection, session, epoch)
            if gone:
                self._writer.tidy_soon()
            return gone

        return await self._writer.run(work, session)

    # --- reading about one session

    async def head(self, session: str) -> SessionHead | None:
        check_text(session)
        return await self._read(session, partial(session_sql.head, session=session))

    async def events(
        self,
        session: str,
        *,
        after: int = 0,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Recorded]:
        check_text(session)
        return await self._read(
            session,
            partial(
                session_sql.events, session=session, after=after, limit=limit, bytes_max=bytes_max
            ),
        )

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        check_text(session, sender, client_id)
        return await self._read(
            session,
            partial(session_sql.find_key, session=session, sender=sender, client_id=client_id),
        )

    async def _read(self, session: str, work: Work[T]) -> T:
        """Read after any pending write of the same session. The write's caller may have been
        cancelled, and its fate must be decided when this read answers."""
        if self._writer.has_pending(session):
            return await self._writer.run(work, session)
        return await self._reader.run(work)

    # --- reading about many

    async def sessions(
        self,
        *,
        limit: int = 100,
        before: tuple[float, str] | None = None,
        under: str | None = None,
    ) -> list[SessionHead]:
        # Not in the thread that searches: lists are short, and many callers ask for them.
        return await self._reader.run(
            partial(session_sql.sessions, limit=limit, before=before, under=under)
        )

    async def unfinished(self, *, limit: int = 100, after: str = "") -> list[str]:
        return await self._reader.run(partial(session_sql.unfinished, limit=limit, after=after))

    async def search(
        self, words: str, *, limit: int = 50, roots: frozenset[str] | None = None
    ) -> list[Found]:
        full_text = self._file.full_text
        return await self._searcher.run(
            partial(search_sql.search, words=words, limit=limit, roots=roots, full_text=full_text)
        )

    # --- the whole of it

    async def backup(self, path: str) -> None:
        if self._closed:
            raise closed(self._file.path)
        with CancelSource(f"backup of {self._file.path.name}") as source:
            outcome = await run_thread(
                write_backup,
                self._file,
                Path(path),
                token=source.token,
                grace_s=BACKUP_GRACE_S,
            )
        outcome.unwrap()

    async def aclose(self) -> None:
        self._closed = True
        self._reader.end_soon()
        self._searcher.end_soon()
        self._writer.refuse_more()
        try:
            with anyio.move_on_after(CLOSE_S, shield=True) as patience:
                await self._reader.wait_ended()
                await self._searcher.wait_ended()
                # Last: closing the last connection moves the log into the file.
                self._writer.end_soon()
                await self._writer.wait_ended()
        finally:
            self._writer.end_soon()
        if patience.cancelled_caught:
            raise StoreFailed(
                f"{self._file.path}: the disk did not answer within {CLOSE_S:g} s of closing. "
                "Acknowledged writes are safe; writes that were still waiting may be lost",
                retryable=False,
            )
