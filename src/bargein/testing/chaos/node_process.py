"""A node as the run sees it: a process on a host, with a relay of its own to the database."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import msgspec

from bargein.testing.chaos.network import Host
from bargein.testing.chaos.relay import Relay

ASK_S = 10.0
LEAVE_S = 20.0
READY_S = 60.0
START_AGAIN_S = 0.2


class NodeProcess:
    """`environment` is added to its own; `address` of the database is set before it starts. A node
    that ends by itself, for example because there is no database, is started again, as by systemd.
    """

    def __init__(
        self,
        number: int,
        host: Host,
        relay: Relay,
        *,
        effects: Path,
        errors: Path,
        lease_s: float,
        environment: dict[str, str],
    ) -> None:
        self.number = number
        self.host = host
        self.relay = relay
        self.address = ""
        self.lives = 0
        self.ready = asyncio.Event()
        self._effects = effects
        self._errors = errors
        self._lease_s = lease_s
        self._environment = environment
        self._process: Process | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._living: asyncio.Task[None] | None = None
        self._stays = False

    async def start(self) -> None:
        self._stays = True
        process = await self._start()
        self._living = asyncio.create_task(self._live(process))

    async def _live(self, process: Process) -> None:
        while True:
            await self._read(process)
            await process.wait()
            if not self._stays:
                return
            await asyncio.sleep(START_AGAIN_S)
            process = await self._start()

    async def _start(self) -> Process:
        self.lives += 1
        self.ready.clear()
        name = f"{self.number}.{self.lives}"
        program = [sys.executable, "-m", "bargein.testing.chaos.node"]
        given = [self.address, name, str(self._effects), str(self._lease_s)]
        with self._errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *self.host.command(*program, *given),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env={**os.environ, **self._environment},
            )
        self._process = process
        if not self._stays:
            # It was killed while it was started.
            process.kill()
        return process

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(READY_S):
            await self.ready.wait()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = msgspec.json.decode(line)
            if "ready" in said:
                self.ready.set()
                continue
            future = self._asked.pop(said["number"], None)
            if future is not None and not future.done():
                future.set_result(said)
        self.ready.clear()
        for future in self._asked.values():
            if not future.done():
                future.set_result({"error": "the node is gone"})
        self._asked.clear()

    async def ask(self, **asked: Any) -> dict[str, Any]:
        """The node's answer; an error if it is gone or does not answer in time."""
        process = self._process
        if process is None or process.stdin is None or not self.ready.is_set():
            return {"error": "the node is not there"}
        self._count += 1
        number = self._count
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            process.stdin.write(msgspec.json.encode({"number": number, **asked}) + b"\n")
            async with asyncio.timeout(ASK_S):
                await process.stdin.drain()
                return await future
        except (OSError, TimeoutError):
            self._asked.pop(number, None)
            return {"error": "no answer"}

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def leave(self) -> bool:
        """Let its turns end, and end. Returns False if it had to be killed."""
        self._stays = False
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(LEAVE_S):
                if self._living is not None:
                    await asyncio.shield(self._living)
        except TimeoutError:
            await self.kill()
            return False
        return self._process is not None and self._process.returncode == 0

    async def kill(self) -> None:
        self._stays = False
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._living is not None:
            await self._living
