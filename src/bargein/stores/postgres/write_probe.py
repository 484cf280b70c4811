"""Checks whether the database takes writes now: it commits a row and looks for room on the disk.

What holds:

- The write is real, so it fails if the database is read-only, if its log cannot be written, or if a
  standby does not confirm.
- The check for room writes a temporary file of `ROOM_BYTES`. A small write alone proves little: it
  may still fit into a table on a full disk.
- A successful check counts for `KEPT_S`. One check runs at a time, on a connection of its own, and
  all who ask meanwhile get its outcome. So a database that hangs is asked once and delays no other
  work.
- A caller that is cancelled only stops waiting.
"""

import asyncio
import logging
import time
from math import inf

import asyncpg

from bargein.stores.postgres.connection import PostgresConnection
from bargein.stores.postgres.faults import closed, explain, silent

_log = logging.getLogger("bargein.stores")

KEPT_S = 5.0
LOCK_S = 2
CLOSE_S = 2.0
# A segment of PostgreSQL's log: where that finds no room, the whole server stops.
ROOM_BYTES = 16 * 1024 * 1024
_ROW_BYTES = 8192


def write() -> str:
    """One message, so one transaction: it holds no lock if this program is frozen after it."""
    return f"""SET LOCAL lock_timeout = '{LOCK_S}s';
        INSERT INTO bargein.write_probe VALUES (1, clock_timestamp())
        ON CONFLICT (one) DO UPDATE SET at = excluded.at"""


ROOM = f"""SET LOCAL work_mem = '64kB';
    SET LOCAL temp_tablespaces = '';
    WITH room AS MATERIALIZED (
        SELECT repeat('x', {_ROW_BYTES}) AS x FROM generate_series(1, {ROOM_BYTES // _ROW_BYTES})
    )
    SELECT sum(length(x)) FROM room"""
"""What is larger than `work_mem` is kept in a file, which is gone with the statement. It is where
the database is, takes no lock and leaves nothing in a table or in the log."""


class WriteProbe:
    """`link` is for it alone; it closes it. For one of asyncio's event loops."""

    def __init__(self, link: PostgresConnection, name: str) -> None:
        self._link = link
        self._name = name
        self._fine_at = -inf
        self._looking: asyncio.Task[None] | None = None
        self._asks_for_room = True
        self._closed = False

    async def check(self) -> None:
        """Raises `StoreFailed` if the database does not take writes."""
        if self._closed:
            raise closed(self._name)
        if time.monotonic() - self._fine_at < KEPT_S:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
            # If every caller was cancelled, nobody else would retrieve the error.
            self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())
        await asyncio.shield(self._looking)

    async def aclose(self) -> None:
        """Bounded."""
        self._closed = True
        await self._link.aclose()
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=CLOSE_S)

    async def _look(self) -> None:
        try:
            await self._link.run(lambda connection: connection.execute(write()))
            if self._asks_for_room:
                await self._link.run(lambda connection: connection.execute(ROOM))
        except asyncpg.LockNotAvailableError as error:
            raise silent(self._name, LOCK_S) from error
        except asyncpg.ConfigurationLimitExceededError:
            self._asks_for_room = False
            _log.warning(
                "%s: temp_file_limit is below %d bytes, so /readyz cannot see whether its disk has "
                "room",
                self._name,
                ROOM_BYTES,
            )
        except asyncpg.PostgresError as error:
            raise explain(error, self._name) from error
        self._fine_at = time.monotonic()
