"""Finds the host of a data directory, and starts it if there is none.

A host is a process of its own (`bargein host`) that owns the directory and outlives terminals. The
first terminal starts it. Terminals that start at the same moment wait for each other at a lock,
and all but the first find a host. The host says through a pipe when it can be reached, or why not.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from bargein import __version__
from bargein.cli.here import without_terminal
from bargein.errors import UserError, WorldError
from bargein.runtime.config import COMMAND_LINE, Config
from bargein.runtime.data_directory import (
    DOOR_FILE,
    make_data_directory,
    owner_listens,
    socket_path,
)
from bargein.runtime.directory_lock import Owner, owner_of

LOG_FILE = "host.log"
LOG_BYTES_MAX = 1024 * 1024
LOG_TAIL_BYTES = 2000
STARTING_FILE = "host.starting"
UNFIT_FILE = "host.unfit"
"""This file exists if commands of an agent could reach a host here. Then each terminal runs its own
agent."""
START_S = 30.0
LEAVE_S = 15.0
OTHERS_S = 5.0
DOOR_S = 5.0
READY = b"ready"
UNFIT = b"unfit"
NEEDED = ("uvicorn", "starlette", "aiohttp")


def may_host(config: Config) -> bool:
    """Whether a host can be started here for this configuration."""
    if not config["chat.host"] or sys.platform != "linux":
        return False
    store = config.effective.get("store")
    if store is not None and store.source == COMMAND_LINE:
        return False
    return all(find_spec(name) is not None for name in NEEDED) and not _is_unfit(config.home)


def reach_host(config: Config) -> bool:
    """Waits until the owner of the directory can be reached, and starts a host if there is none.
    Returns False if a host could not protect its data here. Raises `UserError` or `WorldError` if a
    host cannot start. Blocks: call it in a thread."""
    home = config.home
    if owner_listens(home):
        return True
    make_data_directory(home)
    starting = _open_starting(home)
    # Another terminal may be starting one: the lock is free when that host is there.
    fcntl.flock(starting, fcntl.LOCK_EX)
    if owner_listens(home):
        os.close(starting)
        return True
    return HostStart(config, starting).wait()


def begin_host(config: Config) -> "HostStart | None":
    """Starts a host, if one is needed and nobody else is starting it, and does not wait for it."""
    home = config.home
    if owner_listens(home) or not may_host(config):
        return None
    make_data_directory(home)
    starting = _open_starting(home)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(starting)
        return None
    if owner_listens(home):
        os.close(starting)
        return None
    return HostStart(config, starting)


class HostStart:
    """A host that is being started. `starting` is the lock that keeps others from starting one. The
    host shares it, so it is released when the host can be reached or has failed, even if this
    terminal ends before."""

    def __init__(self, config: Config, starting: int) -> None:
        self._home = config.home
        self._starting = starting
        environment = {**without_terminal(config.environment), "BARGEIN_HOME": str(self._home)}
        # A host has no folder and no model of its own.
        environment.pop("BARGEIN_MODEL", None)
        self._reading, writing = os.pipe()
        try:
            with _open_log(self._home) as log:
                shared = ["--ready", str(writing), "--starting", str(starting)]
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "bargein", "host", *shared],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment,
                    pass_fds=(writing, starting),
                    start_new_session=True,
                )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(writing)

    def wait(self) -> bool:
        """Waits for the host, and returns or raises as `reach_host` does. Call it once. Blocks:
        call it in a thread."""
        try:
            said = _read(self._reading)
            if said == UNFIT:
                # The caller takes the directory now, so the host must have let go of it.
                self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            raise WorldError(
                f"the host of {self._home} (process {self._process.pid}) cannot protect its data "
                "here and does not end; end it and try again",
                retryable=False,
            ) from None
        finally:
            self._close()
        if said in (READY, UNFIT):
            return said == READY
        self._process.poll()
        if said:
            raise UserError(said.decode(errors="replace"))
        raise WorldError(
            f"the host of {self._home} did not start; {self._home / LOG_FILE} says why: "
            f"{_tail(self._home)}",
            retryable=False,
        )

    def _close(self) -> None:
        os.close(self._reading)
        os.close(self._starting)


def _read(reading: int) -> bytes:
    """Returns all that the host says before it closes the pipe, or dies."""
    said, until = b"", time.monotonic() + START_S
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return said
        piece = os.read(reading, 4096)
        if not piece:
            return said
        said += piece


def _open_starting(home: Path) -> int:
    return os.open(home / STARTING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _open_log(home: Path) -> BinaryIO:
    path = home / LOG_FILE
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(home / f"{LOG_FILE}.1")
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab"
    )


def _tail(home: Path) -> str:
    try:
        with (home / LOG_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "it cannot be read"
    return lines[-1] if lines else "it is empty"


def wait_until_gone(owner: Owner | None) -> None:
    """Waits until a process that owned a directory has ended. Raises `UserError` if it does not
    end. Blocks: call it in a thread."""
    if owner is None or owner.host != socket.gethostname():
        return
    try:
        process = os.pidfd_open(owner.pid)
    except OSError:
        return
    try:
        if not select.select([process], [], [], LEAVE_S)[0]:
            raise UserError(f"{owner} was asked to leave, and has not; end it and try again")
    finally:
        os.close(process)


async def keep_others_waiting(home: Path) -> None:
    """Keeps terminals from starting a host until this process, which is the host, has ended: its
    door is closed already, and the directory is still in use. Waits for the lock at most
    `OTHERS_S`: a terminal that holds it gets an answer at the door, or gives up."""
    # Imported here: a terminal must start fast, and starts a host before anything else.
    import anyio
    from anyio import to_thread

    starting = _open_starting(home)
    with anyio.move_on_after(OTHERS_S):
        # The kernel releases it with this process.
        await to_thread.run_sync(fcntl.flock, starting, fcntl.LOCK_EX, abandon_on_cancel=True)


def make_room(home: Path) -> None:
    """Ends an idle host, for a command that must own the directory itself. A host at work and a
    server go on; the error about the directory's lock then names them."""
    if not owner_listens(home):
        return
    # Imported here: a terminal must start fast, and does not need it.
    from http.client import HTTPConnection, HTTPException

    owner = owner_of(home)
    with suppress(OSError, HTTPException), closing(HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(DOOR_S)
        with socket_path(home / DOOR_FILE) as reachable:
            connection.sock.connect(reachable)
        connection.request("POST", "/v1/host/leave", b"{}", {"content-type": "application/json"})
        if connection.getresponse().status == 200:
            wait_until_gone(owner)


# Where commands could reach a host


def note_unfit(home: Path) -> None:
    """Remembers that a host cannot hide its data here, until the machine or the version changes."""
    with suppress(OSError):
        (home / UNFIT_FILE).write_text(_circumstances())


def _is_unfit(home: Path) -> bool:
    try:
        return (home / UNFIT_FILE).read_text() == _circumstances()
    except (OSError, UnicodeDecodeError):
        return False


def _circumstances() -> str:
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{__version__} {boot} {os.geteuid()}"
