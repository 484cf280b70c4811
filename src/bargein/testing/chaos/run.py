"""Runs the chaos: `python -m bargein.testing.chaos.run --faults N --seed S`."""

import argparse
import asyncio
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from bargein.contracts.value import Value
from bargein.stores.postgres import PostgresStore
from bargein.testing.chaos.checker import EffectSeen, Verdict, check
from bargein.testing.chaos.clients import ChaosClient, ClientHistory
from bargein.testing.chaos.database import ChaosDatabase, Standby
from bargein.testing.chaos.faults import DatabaseFaults, Left, NodeFaults
from bargein.testing.chaos.network import INSIDE, Network, enter
from bargein.testing.chaos.node_process import NodeProcess
from bargein.testing.chaos.pooler import Pooler, find_pooler
from bargein.testing.chaos.relay import Relay, Way

NODES = 3
SESSIONS = 6
CLIENTS = 4
LEASE_S = 1.0
QUIET_S = 60.0
DATABASE = "chaos"
# The node whose clock is set, and the one behind the pooler.
CLOCK_NODE, POOLED_NODE = 1, 2

Tell = Callable[[str], object]


class ChaosRequest(Value, frozen=True):
    """What a run is to do. `inside`: it is in namespaces of its own."""

    faults: int
    seed: int
    only: tuple[str, ...] = ()
    standby: Standby = "synchronous"
    inside: bool = False


class Chaos:
    """One run. `open` starts everything, `play` breaks it and checks what came of it."""

    def __init__(self, request: ChaosRequest, folder: Path) -> None:
        self.request = request
        self.effects = folder / "effects"
        self.errors = folder / "errors"
        self.clock = folder / "clock"
        self.history = ClientHistory()
        self.faults: Counter[str] = Counter()
        self.nodes: list[NodeProcess] = []
        self.left_out: list[str] = []
        self.sessions = [f"s{number}" for number in range(SESSIONS)]
        self._dice = random.Random(request.seed)

    async def open(self, stack: AsyncExitStack) -> None:
        inside = self.request.inside
        self.network = await Network.open(is_real=inside)
        stack.push_async_callback(self.network.aclose)
        self.database = await ChaosDatabase.start(self._moved, own_disk=inside)
        stack.push_async_callback(self.database.aclose)
        await self._make_tables()
        if not inside:
            self.left_out += ["one way between nodes lost", "one way to the database lost"]
            self.left_out.append("full disk")
        clock = _clock_library()
        if clock is None:
            self.left_out.append("a node's clock an hour off")
        for number in range(NODES):
            await self._add_node(number, clock, stack)
        self.pooler = await self._open_pooler(stack)
        self.node_faults = NodeFaults(
            random.Random(self._dice.random()),
            LEASE_S,
            self.faults,
            nodes=self.nodes,
            network=self.network,
            clock=self.clock if clock is not None else None,
        )
        self.database_faults = DatabaseFaults(
            random.Random(self._dice.random()),
            LEASE_S,
            self.faults,
            database=self.database,
            pooler=self.pooler,
            standby=self.request.standby,
            own_disk=inside,
        )

    async def _make_tables(self) -> None:
        connection = await self.database.primary.connect()
        await connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")
        await connection.close()
        store = await PostgresStore.open(self.database.primary.address(DATABASE), joins=False)
        await store.aclose()

    async def _add_node(self, number: int, clock: Path | None, stack: AsyncExitStack) -> None:
        host = await self.network.add_host(number)
        relay = Relay(self.database.primary.port, self.network.database_host)
        await relay.open()
        stack.push_async_callback(relay.aclose)
        environment: dict[str, str] = {}
        if clock is not None and number == CLOCK_NODE:
            self.clock.write_text("+0s\n")
            environment = {
                "LD_PRELOAD": str(clock),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        node = NodeProcess(
            number,
            host,
            relay,
            effects=self.effects,
            errors=self.errors,
            lease_s=LEASE_S,
            environment=environment,
        )
        node.address = f"postgresql://bargein@{self.network.database_host}:{relay.port}/{DATABASE}"
        self.nodes.append(node)

    async def _open_pooler(self, stack: AsyncExitStack) -> Pooler | None:
        program = find_pooler()
        if program is None:
            self.left_out.append("kill -9 of PgBouncer")
            return None
        host, node = self.network.database_host, self.nodes[POOLED_NODE]
        pooler = Pooler(program, host, node.relay.port)
        stack.push_async_callback(pooler.aclose)
        await pooler.start()
        place = f"{host}:{node.relay.port}"
        node.address = f"postgresql://bargein@{host}:{pooler.port}/{DATABASE}?direct={place}"
        return pooler

    def _moved(self, port: int) -> None:
        for node in self.nodes:
            node.relay.lead_to(port)

    async def play(self) -> Verdict:
        await asyncio.gather(*(node.start() for node in self.nodes))
        await asyncio.gather(*(node.wait_until_ready() for node in self.nodes))
        clients = [
            ChaosClient(f"c{number}", self.nodes, self.sessions, self.history)
            for number in range(CLIENTS)
        ]
        living = [
            asyncio.create_task(client.live(random.Random(self._dice.random())))
            for client in clients
        ]
        try:
            await self._break_things()
        finally:
            for client in clients:
                client.end()
            await asyncio.gather(*living, return_exceptions=True)
        verdict = await self._settle_and_check()
        for node in self.nodes:
            await node.kill()
        return verdict

    async def _break_things(self) -> None:
        left, only = Left(self.request.faults), self.request.only
        known = {**self.node_faults.known, **self.database_faults.known}
        for name in only:
            if name not in known:
                raise SystemExit(f"no fault is named {name!r} here. There are: {', '.join(known)}")
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node_faults.happen(left, only))
            group.create_task(self.database_faults.happen(left, only))

    async def _settle_and_check(self) -> Verdict:
        """Everything is whole again: what waits runs, and then all is quiet."""
        for node in self.nodes:
            node.relay.set(Way.OPEN)
            node.signal(signal.SIGCONT)
        store = await PostgresStore.open(self.database.primary.address(DATABASE), joins=False)
        try:
            deadline = time.monotonic() + QUIET_S
            while (waiting := await store.unfinished()) and time.monotonic() < deadline:
                for session in waiting:
                    # Held by a stop whose client could not say that it goes on.
                    for node in self.nodes:
                        await node.ask(do="continue", session=session)
                await asyncio.sleep(1.0)
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
        history = self.history
        history.answers["effects"] = len(effects)
        verdict = check(
            logs,
            history.acknowledged,
            history.stopped,
            effects,
            stops_asked=history.stops_asked,
            thawed=self.node_faults.thawed,
            may_lose=self.request.standby == "asynchronous",
        )
        verdict.broken.extend(f"{each} is not quiet after {QUIET_S:g} s" for each in waiting)
        return verdict


def _clock_library() -> Path | None:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


async def chaos(request: ChaosRequest, tell: Tell) -> Verdict:
    folder = Path(tempfile.mkdtemp(prefix="bargein-chaos-"))
    try:
        async with AsyncExitStack() as stack:
            run = Chaos(request, folder)
            await run.open(stack)
            verdict = await run.play()
        _tell_about(run, verdict, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _tell_about(run: Chaos, verdict: Verdict, tell: Tell) -> None:
    tell(f"seed {run.request.seed}: {sum(run.faults.values())} faults")
    for what, count in sorted(run.faults.items()):
        tell(f"  {count:5} {what}")
    for what, count in sorted(run.history.answers.items()):
        tell(f"  {count:5} {what}")
    for what, count in run.node_faults.unclean.items():
        tell(f"  {count:5} nodes did not leave in order: {what}")
    if verdict.residue:
        tell(f"  {verdict.residue:5} effects of a node that was frozen between decision and effect")
    if room := run.database_faults.filled_bytes:
        tell(f"  {min(room) // 2**20:5} MiB of room at least before the disk was filled")
    if run.left_out:
        tell(f"NOT POSSIBLE HERE: {', '.join(run.left_out)} (needs root, Debian's programs)")
    if run.request.standby == "asynchronous":
        tell(f"  {len(verdict.lost):5} things that were confirmed are lost, as is allowed here")
    if verdict.broken and run.errors.exists():
        tell(run.errors.read_text(errors="replace")[-3000:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500, help="how many; 500 unless given")
    parser.add_argument("--seed", type=int, default=None, help="repeats what is chosen")
    parser.add_argument("--only", action="append", default=[], help="a fault; may be given again")
    parser.add_argument(
        "--standby",
        choices=["synchronous", "asynchronous"],
        default="synchronous",
        help="which kind is promoted; an asynchronous one may lose what was confirmed",
    )
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    all_given = list(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(all_given)
    if not given.inside:
        enter(all_given)
    # A server that dies of a full disk must not fill it for ever.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    seed = given.seed if given.seed is not None else random.randrange(2**32)
    request = ChaosRequest(given.faults, seed, tuple(given.only), given.standby, given.inside)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    verdict = asyncio.run(chaos(request, say))
    for each in verdict.broken:
        say(f"BROKEN: {each}")
    say(f"{len(verdict.broken)} violations; repeat with --seed {seed} --faults {given.faults}")
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
