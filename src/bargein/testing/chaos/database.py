"""The database of a run: a primary that may be killed, filled up, or replaced by a standby."""

# ruff: noqa: ASYNC110  (what is waited for is in the database)

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from bargein.testing.postgres_server import PostgresServer

T = TypeVar("T")
Standby = Literal["synchronous", "asynchronous"]

DISK_BYTES = 448 * 1024 * 1024
# What PostgreSQL keeps of its log must leave room on that disk.
SETTINGS = ("max_wal_size=80MB", "min_wal_size=32MB", "wal_keep_size=32MB", "shared_buffers=32MB")
IN_STEP_S = 20.0
RELOADED_S = 0.5

IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1"
BEHIND = "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn < $1"


class ChaosDatabase:
    """`on_moved` is called with the port of each new primary."""

    def __init__(self, primary: PostgresServer, on_moved: Callable[[int], object]) -> None:
        self.primary = primary
        self._on_moved = on_moved
        self._old: list[PostgresServer] = []
        self._standby: PostgresServer | None = None

    @classmethod
    async def start(cls, on_moved: Callable[[int], object], *, own_disk: bool) -> "ChaosDatabase":
        disk = DISK_BYTES if own_disk else None
        make = partial(PostgresServer.start, settings=SETTINGS, disk_bytes=disk)
        return cls(await _blocking(make), on_moved)

    async def kill(self) -> None:
        await _blocking(self.primary.kill)

    async def run(self) -> None:
        await _blocking(self.primary.run)

    async def fill_disk(self) -> int:
        return await _blocking(self.primary.fill_disk)

    async def empty_disk(self) -> None:
        """Room again, and started again if it died of that."""
        await _blocking(self.primary.empty_disk)
        if not self.primary.is_running:
            await _blocking(self.primary.run)

    async def add_standby(self, kind: Standby) -> None:
        """Returns when a standby of this kind has everything that was confirmed."""
        self._standby = await _blocking(self.primary.standby)
        connection = await self.primary.connect()
        try:
            names = "*" if kind == "synchronous" else ""
            await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            await connection.execute("SELECT pg_reload_conf()")
            state = "sync" if kind == "synchronous" else "async"
            async with asyncio.timeout(IN_STEP_S):
                while not await connection.fetchval(IN_STEP, state):
                    await asyncio.sleep(0.02)
                # From here on every process of the server waits for it.
                await asyncio.sleep(RELOADED_S)
                place = await connection.fetchval("SELECT pg_current_wal_lsn()::text::pg_lsn")
                while await connection.fetchval(BEHIND, place):
                    await asyncio.sleep(0.02)
        finally:
            connection.terminate()

    async def fall_behind(self) -> None:
        """The standby hears nothing more from the primary."""
        assert self._standby is not None
        connection = await self._standby.connect()
        try:
            await connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await connection.execute("SELECT pg_reload_conf()")
        finally:
            connection.terminate()

    async def fail_over(self, *, old_lives: bool) -> None:
        """The standby becomes the primary. An old one that lives goes on beside it, and nobody is
        led to it any more."""
        assert self._standby is not None
        old, new = self.primary, self._standby
        if not old_lives:
            await _blocking(old.kill)
        await _blocking(new.promote)
        self.primary, self._standby = new, None
        self._on_moved(new.port)
        self._old.append(old)

    async def end_old(self) -> None:
        for old in self._old:
            await _blocking(old.end)
        self._old.clear()

    async def aclose(self) -> None:
        await self.end_old()
        for server in (self._standby, self.primary):
            if server is not None:
                await _blocking(server.end)


async def _blocking(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)
