"""Checks whether the server can take work: its disk, or its database, answers and has room.

Anybody may ask without a token, so the result is kept for `KEPT_S`: asking often does not keep the
disk busy. The check does not wait for the thread that searches.
"""

import os
import time
from pathlib import Path

import anyio
import anyio.to_thread

from bargein.contracts.store import StoreFailed
from bargein.server.gateway import Gateway
from bargein.server.problems import Code, Problem

READY_S = 2.0
KEPT_S = 1.0
ROOM_BYTES = 16 * 1024 * 1024
PROBE = "ready.probe"
PROBE_BYTES = 4096


class Readiness:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._place = gateway.db.place
        self._looking = anyio.Lock()
        self._looked_at = -KEPT_S
        self._problem: Problem | None = None

    async def check(self) -> None:
        """Raises `Problem` if the server is not ready, `TimeoutError` if the disk hangs."""
        with anyio.fail_after(READY_S):
            async with self._looking:
                if time.monotonic() - self._looked_at >= KEPT_S:
                    self._problem = await self._look()
                    self._looked_at = time.monotonic()
        if self._problem is not None:
            raise Problem(self._problem.code, self._problem.detail, retry_after_s=1)

    async def _look(self) -> Problem | None:
        db, store = self._gateway.db, self._gateway.engine.store
        try:
            await db.check()
            await store.sessions(limit=1)
        except StoreFailed as error:
            return Problem(Code.UNAVAILABLE, str(error))
        if self._place is None:
            return None
        return await anyio.to_thread.run_sync(room_problem, self._place, abandon_on_cancel=True)


def room_problem(place: Path) -> Problem | None:
    """Returns the problem that keeps this directory from being written to, or None."""
    try:
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        if free < ROOM_BYTES:
            return Problem(
                Code.UNAVAILABLE,
                f"the disk of {place} has {free} bytes left and needs {ROOM_BYTES}; make room",
            )
        # Finds a quota that is used up and a file system that has become read-only.
        _write_probe(place / PROBE)
    except OSError as error:
        return Problem(Code.UNAVAILABLE, f"{place} cannot be written to: {error.strerror}")
    return None


def _write_probe(path: Path) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    probe = os.open(path, flags, 0o600)
    try:
        os.write(probe, bytes(PROBE_BYTES))
    finally:
        os.close(probe)
        path.unlink(missing_ok=True)
