"""The faults of a run. Each breaks one thing, waits, and mends it again.

Those of `NodeFaults` hit nodes and what is between them, those of `DatabaseFaults` the database and
its pooler. The run draws from both at the same time, each in its own order.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bargein.testing.chaos.checker import Thawed
from bargein.testing.chaos.database import ChaosDatabase, Standby
from bargein.testing.chaos.network import Network
from bargein.testing.chaos.node_process import NodeProcess
from bargein.testing.chaos.pooler import Pooler
from bargein.testing.chaos.relay import Way

PAUSE_S = (0.0, 0.4)
HOUR_S = 3600

Fault = Callable[[], Awaitable[None]]


class _Faults:
    """`counts` names each fault that happened. With `only`, no other is drawn."""

    def __init__(self, dice: random.Random, lease_s: float, counts: Counter[str]) -> None:
        self._dice = dice
        self._lease_s = lease_s
        self._counts = counts
        self.known: dict[str, tuple[int, Fault]] = {}
        """Each fault with its weight."""

    async def happen(self, left: "Left", only: Sequence[str]) -> None:
        drawn = {name: known for name, known in self.known.items() if not only or name in only}
        weights = [weight for weight, _ in drawn.values()]
        while drawn and left.take():
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
            name = self._dice.choices(list(drawn), weights)[0]
            self._counts[name] += 1
            await drawn[name][1]()

    async def _while(self, leases: float, at_least_s: float = 0.1) -> None:
        await asyncio.sleep(self._dice.uniform(at_least_s, leases * self._lease_s))


class Left:
    """How many faults are still to come, for all who draw."""

    def __init__(self, count: int) -> None:
        self._count = count

    def take(self) -> bool:
        self._count -= 1
        return self._count >= 0


class NodeFaults(_Faults):
    """`clock` is the file that says how far a node's clock is off; None if clocks stay right."""

    def __init__(
        self,
        dice: random.Random,
        lease_s: float,
        counts: Counter[str],
        *,
        nodes: Sequence[NodeProcess],
        network: Network,
        clock: Path | None,
    ) -> None:
        super().__init__(dice, lease_s, counts)
        self._nodes = nodes
        self._network = network
        self._clock = clock
        self.thawed: list[Thawed] = []
        self.unclean: Counter[str] = Counter()
        """Nodes that did not leave in order within the bound, by the reason they had to leave."""
        self.known = {
            "kill -9 of a node": (6, self._kill),
            "SIGSTOP of a node": (6, self._freeze),
            "cut off from the database": (6, self._cut_off),
            "rolling deploy": (1, self._deploy),
        }
        if network.is_real:
            self.known["one way to the database lost"] = (3, self._lose_database)
            self.known["one way between nodes lost"] = (5, self._lose_node)
        if clock is not None:
            self.known["a node's clock an hour off"] = (2, self._set_clock)

    def _node(self) -> NodeProcess:
        return self._dice.choice(self._nodes)

    async def _kill(self) -> None:
        node = self._node()
        await node.kill()
        await self._while(2, 0)
        await node.start()

    async def _freeze(self) -> None:
        """Past its lease, or not."""
        node = self._node()
        node.signal(signal.SIGSTOP)
        await self._while(2.5)
        self.thawed.append(Thawed(node.number, time.monotonic()))
        node.signal(signal.SIGCONT)

    async def _cut_off(self) -> None:
        way = self._dice.choice([Way.SILENT, Way.NOTHING_UP, Way.NOTHING_DOWN, Way.CUT])
        node = self._node()
        node.relay.set(way)
        await self._while(2.5)
        node.relay.set(Way.OPEN)

    async def _deploy(self) -> None:
        """One node after the other leaves in order and comes back."""
        for node in self._nodes:
            if not await node.leave():
                self.unclean["rolling deploy"] += 1
            await node.start()
            await node.wait_until_ready()

    async def _lose_database(self) -> None:
        node, network = self._node(), self._network
        if self._dice.random() < 0.5:
            await node.host.lose(network.database_host)
            await self._while(2.5)
            await node.host.heal(network.database_host)
        else:
            await network.lose(node.host.address)
            await self._while(2.5)
            await network.heal(node.host.address)

    async def _lose_node(self) -> None:
        one, other = self._dice.sample(list(self._nodes), 2)
        await one.host.lose(other.host.address)
        await self._while(4)
        await one.host.heal(other.host.address)

    async def _set_clock(self) -> None:
        """It jumps while the node runs."""
        assert self._clock is not None
        self._clock.write_text(f"{self._dice.choice([-HOUR_S, HOUR_S]):+}s\n")
        await self._while(2)
        if self._dice.random() < 0.5:
            self._clock.write_text("+0s\n")


class DatabaseFaults(_Faults):
    def __init__(
        self,
        dice: random.Random,
        lease_s: float,
        counts: Counter[str],
        *,
        database: ChaosDatabase,
        pooler: Pooler | None,
        standby: Standby,
        own_disk: bool,
    ) -> None:
        super().__init__(dice, lease_s, counts)
        self._database = database
        self._pooler = pooler
        self._standby: Standby = standby
        self.filled_bytes: list[int] = []
        """How much room there was each time."""
        self.known = {
            "kill -9 of PostgreSQL": (4, self._kill),
            f"{standby} standby promoted": (2, self._fail_over),
        }
        if own_disk:
            self.known["full disk"] = (3, self._fill_disk)
        if pooler is not None:
            self.known["kill -9 of PgBouncer"] = (3, self._kill_pooler)

    async def _kill(self) -> None:
        await self._database.kill()
        await self._while(1, 0)
        await self._database.run()
        await self._while(4)

    async def _fail_over(self) -> None:
        """An asynchronous standby is behind when it is promoted, or there would be nothing to
        lose. A synchronous one may leave the old primary alive, as when the network parts them."""
        asynchronous = self._standby == "asynchronous"
        await self._database.add_standby(self._standby)
        await self._while(2)
        if asynchronous:
            await self._database.fall_behind()
            await self._while(1)
            await self._database.kill()
        await self._database.fail_over(old_lives=not asynchronous and self._dice.random() < 0.5)
        await self._while(4)
        await self._database.end_old()

    async def _fill_disk(self) -> None:
        self.filled_bytes.append(await self._database.fill_disk())
        await self._while(2)
        await self._database.empty_disk()
        await self._while(4)

    async def _kill_pooler(self) -> None:
        assert self._pooler is not None
        await self._pooler.kill()
        await self._while(1, 0)
        await self._pooler.start()
        await self._while(4)
