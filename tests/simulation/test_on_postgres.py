"""Whole worlds from seeds, with their disk in a real PostgreSQL: no law is broken in any."""

from __future__ import annotations

from functools import partial

import pytest

from bargein.testing.seeded import Seeded
from bargein.testing.simulate import simulate
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.store import Disk
from bargein.testing.simulation.world import World
from tests.simulation.postgres_disk import Background, PostgresDisk
from tests.stores.postgres_kinds import give_back, server, take_database

SEEDS = 200
BLOCK = 5


class PostgresWorld(World):
    def __init__(self, background: Background, address: str, plan: Plan, run: Seeded) -> None:
        self._make = partial(PostgresDisk, background, address)
        self.disks: list[PostgresDisk] = []
        super().__init__(plan, run)

    def make_disk(self) -> Disk:
        for disk in self.disks:
            disk.give_up()
        self.disks.append(self._make())
        return self.disks[-1]


def in_a_world(background: Background, address: str, seed: int) -> str:
    """What broke, told as a story; empty if nothing did."""
    worlds: list[PostgresWorld] = []

    def make(plan: Plan, run: Seeded) -> World:
        worlds.append(PostgresWorld(background, address, plan, run))
        return worlds[-1]

    try:
        outcome = simulate(seed, make_world=make)
    finally:
        for disk in (disk for world in worlds for disk in world.disks):
            disk.close()
    return outcome.story() if outcome.broken is not None else ""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_law_is_broken_on_postgresql(first: int) -> None:
    background, on = Background(), server()
    for seed in range(first, first + BLOCK):
        address = background.run(take_database(on))
        try:
            assert in_a_world(background, address, seed) == ""
        finally:
            background.run(give_back(on, address))
