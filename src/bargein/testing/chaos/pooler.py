"""PgBouncer in transaction mode, between some nodes and the database."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

READY_S = 10.0
SETTINGS = """[databases]
* = host={server_host} port={server_port}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
server_connect_timeout = 2
server_login_retry = 1
query_wait_timeout = 5
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
"""


def find_pooler() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Pooler:
    """A process of PgBouncer on `host`, which leads to one server."""

    def __init__(self, program: str, host: str, server_port: int) -> None:
        self.host = host
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.port = int(probe.getsockname()[1])
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="bgpool-"))
        settings = SETTINGS.format(
            server_host=host,
            server_port=server_port,
            host=host,
            port=self.port,
            folder=self._folder,
        )
        (self._folder / "settings").write_text(settings)
        (self._folder / "users").write_text('"bargein" ""\n')
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, "nobody")
        self._process: Process | None = None

    async def start(self) -> None:
        as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *as_nobody,
            str(self._folder / "settings"),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(self.host, self.port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def aclose(self) -> None:
        await self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
