from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from bargein.cancel import CancelSource, start_thread
from bargein.process import Containment, Means, MeansUnavailable, open_containment
from tests.conftest import BACKENDS, Backend
from tests.process import zoo
from tests.process.keeper import SHORT


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """This package is for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


TRIES = 5


async def _works(means: Means) -> bool:
    for _ in range(TRIES):
        try:
            containment = await open_containment(means.value)
        except MeansUnavailable as error:
            # Two workers must find the same, however busy the machine is.
            if "took too long" not in str(error):
                return False
        else:
            await containment.aclose()
            return True
    return False


def _those_that_work() -> list[Means]:
    return [means for means in Means if asyncio.run(_works(means))]


MEANS = _those_that_work()
CERTAIN = [means for means in MEANS if means is not Means.GROUP]


@pytest.fixture(params=MEANS, ids=str)
def means(request: pytest.FixtureRequest) -> Means:
    """Every means that this machine has, for the user that runs the tests."""
    chosen: Means = request.param
    return chosen


@pytest.fixture(scope="module")
async def warm_loop(anyio_backend: Backend) -> None:
    """A loop opens descriptors of its own when some things are first done on it."""
    async with await open_containment("group") as opened:
        with CancelSource("warm") as source:
            process = await opened.spawn(["true"], cwd="/", env={}, token=source.token)
            await process.wait()
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    start_thread(loop.call_soon_threadsafe, called.set)
    await called.wait()


@pytest.fixture
async def containment(
    warm_loop: None, means: Means, leaves_nothing: None
) -> AsyncIterator[Containment]:
    opened = await open_containment(means.value)
    yield opened
    await opened.aclose(SHORT)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """No descriptor and no dead child may be left over by a test."""
    before = zoo.descriptors()
    yield
    assert zoo.descriptors() - before == set()
    assert zoo.zombies() == []


@pytest.fixture
def source() -> Iterator[CancelSource]:
    with CancelSource("test") as made:
        yield made
