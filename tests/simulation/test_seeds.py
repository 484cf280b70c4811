"""Five thousand worlds from five thousand seeds: no law is broken in any of them.

A block of seeds is a test, so that workers share them. Four blocks in five run on trio, where every
step is shuffled; the others on the deterministic asyncio loop, which shows asyncio's own quirks.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bargein.testing.seeded import Backend
from bargein.testing.simulate import simulate

SEEDS = 5000
BLOCK = 50
BLOCKS = range(0, SEEDS, BLOCK)


def backend_of(block: int) -> Backend:
    return "asyncio" if block // BLOCK % 5 == 4 else "trio"


@pytest.mark.parametrize("first", BLOCKS)
def test_no_law_is_broken(first: int) -> None:
    backend = backend_of(first)
    for seed in range(first, first + BLOCK):
        outcome = simulate(seed, backend=backend)
        assert outcome.broken is None, (
            f"replay with: ./dev simulate --seed {seed} --backend {backend} --shrink\n"
            f"{outcome.story()}"
        )


REPLAYED = range(7, 47)

TELL = """
from bargein.testing.simulate import simulate
for seed in range({0}, {1}):
    print(simulate(seed, backend="{2}").story())
"""


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_seed_replays_exactly_also_in_another_process(backend: Backend) -> None:
    """Each step, each word and each moment: twice here, and once where every string has another
    hash and every object another address."""
    stories = [simulate(seed, backend=backend).story() for seed in REPLAYED]
    again = [simulate(seed, backend=backend).story() for seed in REPLAYED]
    assert again == stories
    told = subprocess.run(
        [sys.executable, "-c", TELL.format(REPLAYED.start, REPLAYED.stop, backend)],
        env={**os.environ, "PYTHONHASHSEED": "31"},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert told.stdout == "".join(f"{story}\n" for story in stories)


def test_another_seed_is_another_world() -> None:
    stories = {simulate(seed).story().partition("\n")[2] for seed in REPLAYED}
    assert len(stories) == len(REPLAYED)
