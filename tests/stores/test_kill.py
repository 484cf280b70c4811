"""kill -9 at random moments: every acknowledged commit is there, no half one, and recovery can be
killed as well."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from bargein.contracts.event import TextCheckpoint
from bargein.contracts.store import Store
from bargein.stores.sqlite import SqliteStore
from bargein.testing.store_conformance.scene import looked
from tests.stores import children

SESSIONS = 8
EVENTS = 3


def run_and_kill(directory: Path, chance: random.Random, *, early: bool) -> list[str]:
    """Start a writer, kill it, and return what it had acknowledged. Early: while it starts."""
    process = subprocess.Popen(
        children.command("commit_until_killed", directory, str(SESSIONS)),
        cwd=children.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    if early:
        time.sleep(chance.uniform(0.2, 0.6))
    else:
        lines += [process.stdout.readline() for _ in range(chance.randrange(1, 200))]
        time.sleep(chance.uniform(0, 0.02))
    process.kill()
    out, err = process.communicate()
    assert process.returncode == -9, err
    whole, _, _ = out.rpartition("\n")
    return [line.strip() for line in [*lines, *whole.splitlines()] if line.strip()]


async def check(store: Store, acknowledged: dict[str, int]) -> None:
    for name, seq in acknowledged.items():
        head = await looked(store, name)
        assert head.seq >= seq, f"{name}: {seq} was acknowledged, {head.seq} is there"
        assert head.seq % EVENTS == 0
        assert head.state == str(head.seq // EVENTS - 1).encode()
        events = await store.events(name)
        assert [one.seq for one in events] == list(range(1, head.seq + 1))
        for place, one in enumerate(events):
            number, part = divmod(place, EVENTS)
            assert one.event == TextCheckpoint(str(number), "x" * 700 * part)
        for number in range(head.seq // EVENTS):
            assert await store.find_key(name, "ann", str(number)) is not None
        assert await store.find_key(name, "ann", str(head.seq // EVENTS)) is None
    assert set(acknowledged) <= set(await store.unfinished())


@pytest.mark.timeout(120)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}
    for round_number in range(14):
        # Some find a log left by one that was killed, and are killed while they take it in.
        early = round_number % 3 == 1
        for line in run_and_kill(tmp_path, chance, early=early):
            name, seq = line.split()
            assert int(seq) > acknowledged.get(name, 0), f"seed {seed}"
            acknowledged[name] = int(seq)
        if round_number % 2:
            store = await SqliteStore.open(tmp_path / "store.db")
            try:
                await check(store, acknowledged)
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise
            await store.aclose()
    store = await SqliteStore.open(tmp_path / "store.db")
    found = await store.search("number 0", limit=1_000)
    assert {one.session for one in found} == set(acknowledged)
    (verdict,) = await store._reader.run(lambda c: c.execute("PRAGMA integrity_check").fetchone())
    assert verdict == "ok"
    await store.aclose()
