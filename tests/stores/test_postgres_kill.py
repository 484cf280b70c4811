"""kill -9 of the program that writes and of PostgreSQL, at random moments: every acknowledged
commit is there, and no half one."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.stores.postgres import PostgresStore
from bargein.testing.postgres_server import PostgresServer
from tests.stores import children
from tests.stores.test_kill import SESSIONS, check

ROUNDS = 6


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.start(settings=()) as started:
        yield started


def run_and_kill(
    server: PostgresServer, address: str, directory: Path, chance: random.Random, *, whole: bool
) -> list[str]:
    """Start a writer, kill it or the server beneath it, and return what it had acknowledged."""
    process = subprocess.Popen(
        children.command("commit_until_killed", directory, str(SESSIONS), address),
        cwd=children.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(chance.randrange(1, 200))]
    time.sleep(chance.uniform(0, 0.02))
    if whole:
        server.kill()
        # What it hears is an error, and it ends by that.
        process.wait(20)
        server.run()
    process.kill()
    out, _ = process.communicate()
    known, _, _ = out.rpartition("\n")
    return [line.strip() for line in [*lines, *known.splitlines()] if line.strip()]


@pytest.mark.timeout(120)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_acknowledged_is_lost_by_kill_9(
    server: PostgresServer, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    address = await server.new_database()
    acknowledged: dict[str, int] = {}
    for round_number in range(ROUNDS):
        whole = round_number % 3 == 2
        for line in run_and_kill(server, address, tmp_path, chance, whole=whole):
            name, seq = line.split()
            assert int(seq) > acknowledged.get(name, 0), f"seed {seed}"
            acknowledged[name] = int(seq)
        store = await PostgresStore.open(address, joins=False)
        try:
            await check(store, acknowledged)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        await store.aclose()
