"""`bargein store copy FROM TO`: copies all sessions from one store into another.

Nothing may use either store meanwhile. A copy that was interrupted goes on where it was when it is
run again, and is compared with the original at the end.
"""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread

from bargein.cli.backups import Progress
from bargein.cli.event_loop import run_in_loop
from bargein.cli.hosting import make_room
from bargein.errors import UserError
from bargein.runtime.config import Config
from bargein.runtime.directory_lock import DirectoryLock

if TYPE_CHECKING:
    from bargein.stores.copying import RawReader, RawWriter
    from bargein.stores.postgres.address import PostgresAddress


def main(given: argparse.Namespace, config: Config) -> int:
    return run_in_loop(_copy, given, config)


async def _copy(given: argparse.Namespace, config: Config) -> int:
    from bargein import stores
    from bargein.stores.copying import copy_sessions

    origin, goal = stores.shown(given.origin), stores.shown(given.goal)
    if given.origin == given.goal:
        raise UserError(f"{origin} is both sides of the copy: name two stores")
    files = [each for each in (given.origin, given.goal) if not stores.is_postgres(each)]
    progress = Progress()
    async with AsyncExitStack() as stack:
        for directory in {_file(each).parent for each in files}:
            if not directory.is_dir():
                raise UserError(f"there is no directory {directory}. Make it, or name another")
            await to_thread.run_sync(make_room, directory)
            stack.enter_context(DirectoryLock.take(directory))
        source = await stack.enter_async_context(_reading(given.origin))
        target = await stack.enter_async_context(_writing(given.goal))
        try:
            total = await source.count()
            copied = await copy_sessions(
                source, target, progress=lambda done, all_: progress("sessions", done, all_)
            )
        finally:
            progress.close()
    there = f", {total - copied} were there already" if copied < total else ""
    print(f"{copied} of {total} sessions copied to {goal}{there}; compared, all alike")
    print(
        "The server's tokens, owners and audit log stay in its data directory",
        file=sys.stderr,
    )
    return 0


@asynccontextmanager
async def _reading(address: str) -> AsyncIterator["RawReader"]:
    from bargein import stores

    if stores.is_postgres(address):
        from bargein.stores.postgres.raw import reading

        async with reading(await _quiet(address)) as rows:
            yield rows
        return
    from bargein.stores.sqlite.raw import RawSqlite

    raw = await RawSqlite.open(_file(address), writes=True)
    try:
        yield raw
    finally:
        await raw.aclose()


@asynccontextmanager
async def _writing(address: str) -> AsyncIterator["RawWriter"]:
    from bargein import stores

    if stores.is_postgres(address):
        from bargein.stores.postgres.raw import writing

        async with writing(await _quiet(address)) as rows:
            yield rows
        return
    from bargein.stores.sqlite.raw import RawSqlite

    raw = await RawSqlite.create(_file(address))
    try:
        yield raw
    finally:
        await raw.aclose()


def _file(address: str) -> Path:
    from bargein import stores

    path = stores.file_of(address)
    if path is None:
        raise UserError(f"{address} keeps nothing: name a file or a database")
    return path.absolute()


async def _quiet(address: str) -> "PostgresAddress":
    """Make the tables if they are missing. Raises if a node uses the database."""
    from bargein.stores.postgres import PostgresStore

    store = await PostgresStore.open(address, joins=False)
    try:
        living = [node for node in await store.nodes() if not node.dead and node.lease_s > 0]
    finally:
        await store.aclose()
    if living:
        names = ", ".join(node.id for node in living)
        raise UserError(
            f"{store.name} is in use by {names}: stop it first, so that nothing changes meanwhile"
        )
    return store.address
