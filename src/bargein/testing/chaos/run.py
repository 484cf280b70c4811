"""Runs the chaos: `python -m bargein.testing.chaos.run --faults N --seed S`."""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bargein.stores.postgres import PostgresStore
from bargein.testing.chaos.checker import Acknowledged, EffectSeen, StopTold, violations
from bargein.testing.chaos.relay import Relay, Way
from bargein.testing.postgres_server import PostgresServer

NODES = 3
SESSIONS = 6
CLIENTS = 4
LEASE_S = 1.0
ASK_S = 10.0
PAUSE_S = (0.0, 0.4)
QUIET_S = 60.0


class ChaosNode:
    """A node's process, with a relay of its own to the database."""

    def __init__(self, chaos: "Chaos", number: int) -> None:
        self._chaos = chaos
        self.number = number
        self.relay = Relay(chaos.server.port)
        self.lives = 0
        self._process: Process | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._reading: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()

    async def start(self) -> None:
        if not self.relay.port:
            await self.relay.open()
        self.lives += 1
        self.ready.clear()
        chaos = self._chaos
        address = chaos.server.address(chaos.database, port=self.relay.port)
        with chaos.errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bargein.testing.chaos.node",
                address,
                f"{self.number}.{self.lives}",
                str(chaos.effects),
                str(LEASE_S),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
            )
        self._reading = asyncio.create_task(self._read(self._process))

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
        for future in self._asked.values():
            if not future.done():
                future.set_result({"error": "the node is gone"})
        self._asked.clear()

    async def ask(self, **asked: Any) -> dict[str, Any]:
        """The node's answer; an error if it is gone or does not answer in time."""
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
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

    async def kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


class Chaos:
    def __init__(self, server: PostgresServer, database: str, folder: Path, seed: int) -> None:
        self.server = server
        self.database = database
        self.effects = folder / "effects"
        self.errors = folder / "errors"
        self.random = random.Random(seed)
        self.nodes = [ChaosNode(self, number) for number in range(NODES)]
        self.sessions = [f"s{number}" for number in range(SESSIONS)]
        self.acknowledged: list[Acknowledged] = []
        self.stopped: list[StopTold] = []
        self.stops_asked: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._over = False

    # --- clients

    async def client(self, number: int) -> None:
        dice = random.Random(f"{self.random.random()} {number}")
        count = 0
        while not self._over:
            session, node = dice.choice(self.sessions), dice.choice(self.nodes)
            if dice.random() < 0.25:
                await self._stop(session, node)
            else:
                count += 1
                await self._send(session, f"c{number}.{count}", dice)
            await asyncio.sleep(dice.uniform(*PAUSE_S) / 4)

    async def _send(self, session: str, key: str, dice: random.Random) -> None:
        """Until it is acknowledged, as any client would: the same message, at any node."""
        mode = dice.choice(["steer", "queue", "interrupt"])
        node = dice.choice(self.nodes)
        for _ in range(200):
            said = await node.ask(do="send", session=session, text=key, mode=mode, key=key)
            if "message" in said:
                self.answers["message accepted"] += 1
                self.acknowledged.append(Acknowledged(session, key))
                return
            self.answers["elsewhere" if "elsewhere" in said else "send failed"] += 1
            node = dice.choice(self.nodes)
            await asyncio.sleep(0.02)
            if self._over:
                return

    async def _stop(self, session: str, node: ChaosNode) -> None:
        self.stops_asked[session] += 1
        said = await node.ask(do="stop", session=session)
        if "status" in said:
            self.answers[f"stop {said['status']}"] += 1
            if said["stored"]:
                self.stopped.append(StopTold(session, said["status"], said["turn"]))
        else:
            self.answers["stop failed"] += 1
        # What it holds is to run too. Only the node that has the session can let it on.
        await asyncio.gather(*(each.ask(do="continue", session=session) for each in self.nodes))

    # --- faults

    async def break_things(self, count: int) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill_node,
            self._kill_node,
            self._freeze_node,
            self._freeze_node,
            self._partition,
            self._partition,
            self._kill_postgres,
        ]
        for _ in range(count):
            await asyncio.sleep(self.random.uniform(*PAUSE_S))
            await self.random.choice(faults)()

    def _node(self) -> ChaosNode:
        return self.random.choice(self.nodes)

    async def _kill_node(self) -> None:
        self.faults["kill -9 of a node"] += 1
        node = self._node()
        await node.kill()
        await asyncio.sleep(self.random.uniform(0, 2 * LEASE_S))
        await node.start()

    async def _freeze_node(self) -> None:
        """Past its lease, or not."""
        self.faults["SIGSTOP of a node"] += 1
        node = self._node()
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.uniform(0.1, 2.5 * LEASE_S))
        node.signal(signal.SIGCONT)

    async def _partition(self) -> None:
        way = self.random.choice([Way.SILENT, Way.NOTHING_UP, Way.NOTHING_DOWN, Way.CUT])
        self.faults[f"partition: {way}"] += 1
        node = self._node()
        node.relay.set(way)
        await asyncio.sleep(self.random.uniform(0.1, 2.5 * LEASE_S))
        node.relay.set(Way.OPEN)

    async def _kill_postgres(self) -> None:
        self.faults["kill -9 of PostgreSQL"] += 1
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.server.kill)
        await asyncio.sleep(self.random.uniform(0, LEASE_S))
        await loop.run_in_executor(None, self.server.run)

    # --- the whole of it

    async def play(self, faults: int) -> list[str]:
        for node in self.nodes:
            await node.start()
        for node in self.nodes:
            async with asyncio.timeout(30):
                await node.ready.wait()
        clients = [asyncio.create_task(self.client(number)) for number in range(CLIENTS)]
        try:
            await self.break_things(faults)
        finally:
            self._over = True
            await asyncio.gather(*clients, return_exceptions=True)
        found = await self._settle_and_check()
        for node in self.nodes:
            await node.kill()
            await node.relay.aclose()
        return found

    async def _settle_and_check(self) -> list[str]:
        """Everything is whole again: what waits runs, and then all is quiet."""
        for node in self.nodes:
            node.relay.set(Way.OPEN)
            node.signal(signal.SIGCONT)
        store = await PostgresStore.open(self.server.address(self.database), joins=False)
        try:
            deadline = time.monotonic() + QUIET_S
            while (waiting := await store.unfinished()) and time.monotonic() < deadline:
                for session in waiting:
                    # Held by a stop whose client could not say that it goes on.
                    for node in self.nodes:
                        await node.ask(do="continue", session=session)
                await asyncio.sleep(1.0)
            found = [f"{each} is not quiet after {QUIET_S:g} s" for each in waiting]
            logs = {
                session: await store.events(session)
                for session in self.sessions
                if await store.head(session) is not None
            }
        finally:
            await store.aclose()
        effects: list[EffectSeen] = []
        with suppress(FileNotFoundError):
            lines = self.effects.read_bytes().splitlines()
            effects = [EffectSeen(*msgspec.json.decode(line)) for line in lines]
        self.answers["effects"] = len(effects)
        return found + violations(
            logs, self.acknowledged, self.stopped, effects, stops_asked=self.stops_asked
        )


async def chaos(faults: int, seed: int, tell: Callable[[str], object]) -> list[str]:
    """Returns what was broken, each as a sentence."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="bargein-chaos-") as folder:
        started = await loop.run_in_executor(None, lambda: PostgresServer.start(settings=()))
        with started as server:
            database = (await server.new_database()).rpartition("/")[2]
            prepared = await PostgresStore.open(server.address(database), joins=False)
            await prepared.aclose()
            run = Chaos(server, database, Path(folder), seed)
            found = await run.play(faults)
            tell(f"seed {seed}: {sum(run.faults.values())} faults")
            for what, count in sorted(run.faults.items()):
                tell(f"  {count:5} {what}")
            for what, count in sorted(run.answers.items()):
                tell(f"  {count:5} {what}")
            if found and run.errors.exists():
                tell(run.errors.read_text(errors="replace")[-3000:])
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500, help="how many; 500 unless given")
    parser.add_argument("--seed", type=int, default=None, help="repeats what is chosen")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(2**32)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    found = asyncio.run(chaos(given.faults, seed, say))
    for each in found:
        say(f"BROKEN: {each}")
    say(f"{len(found)} violations; repeat with --seed {seed} --faults {given.faults}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
