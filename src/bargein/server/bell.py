"""A word from another process that the database has changed, such as `bargein token revoke`.

It is for speed alone: the database has the truth, and is looked at anyway now and then. So a bell that
cannot be hung up, or is not heard, costs a moment and nothing else. It is a named pipe beside the
database, for its owner alone; there is one while a server listens.
"""

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

_log = logging.getLogger("bargein.server")

BELL = "gateway.bell"
RINGS_BYTES_MAX = 4096


def ring(db: Path) -> None:
    """Never waits, and does nothing where nobody listens."""
    with suppress(OSError):
        pipe = os.open(db.with_name(BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, b".")
        finally:
            os.close(pipe)


async def hear(db: Path, look: Callable[[], None]) -> None:
    """Call `look` whenever it rings, until cancelled. Many rings together are one."""
    path = db.with_name(BELL)
    try:
        pipe = _hang_up(path)
    except OSError as error:
        _log.info("%s cannot be made: %s; what changes is seen a moment later", path, error)
        return
    try:
        while True:
            await anyio.wait_readable(pipe)
            os.read(pipe, RINGS_BYTES_MAX)
            look()
    finally:
        anyio.notify_closing(pipe)
        os.close(pipe)
        with suppress(OSError):
            path.unlink()


def _hang_up(path: Path) -> int:
    """Whatever a server that was killed has left there is taken away."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.mkfifo(path, 0o600)
    # Also open for writing: a pipe without a writer would be at its end, again and again.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
