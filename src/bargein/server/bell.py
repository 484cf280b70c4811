"""The bell: another process tells a running server that the gateway's database has changed.

`bargein token revoke` rings it, for example. The bell only saves time: the database is the truth,
and the server reads it every few moments anyway. A bell that cannot be made or is not heard costs
a short delay and nothing else. It is a named pipe beside the database that only its owner may
open, and it exists while a server listens.
"""

import logging
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio

_log = logging.getLogger("bargein.server")

BELL = "gateway.bell"
RINGS_BYTES_MAX = 4096


def ring(db: Path) -> None:
    """Rings for the server of this database. Never waits; does nothing if no server listens."""
    with suppress(OSError):
        pipe = os.open(db.with_name(BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b".")
        finally:
            os.close(pipe)


async def hear(db: Path, look: Callable[[], Awaitable[object]]) -> None:
    """Calls `look` after each ring, once for several at the same time, until cancelled. A cancel
    removes the pipe."""
    path = db.with_name(BELL)
    try:
        pipe = _make_pipe(path)
    except OSError as error:
        _log.info("%s cannot be made: %s; the server sees changes a moment later", path, error)
        return
    try:
        while True:
            await anyio.wait_readable(pipe)
            os.read(pipe, RINGS_BYTES_MAX)
            await look()
    finally:
        anyio.notify_closing(pipe)
        os.close(pipe)
        with suppress(OSError):
            path.unlink()


def _make_pipe(path: Path) -> int:
    """Replaces a pipe that a killed server left behind."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.mkfifo(path, 0o600)
    # Open for writing too: a pipe without a writer is always readable, at its end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
