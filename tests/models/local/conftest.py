"""The real weights, fetched once, and containments."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bargein.cancel import CancelSource
from bargein.models.local.errors import LocalModelError
from bargein.models.local.notices import LocalNotices
from bargein.models.local.weights import Weights
from bargein.process import Containment, open_containment


@pytest.fixture
async def containment() -> AsyncIterator[Containment]:
    async with await open_containment() as opened:
        yield opened
        assert opened.processes == (), "something was left running"


@pytest.fixture(scope="session")
def weights_dir(pytestconfig: pytest.Config) -> Path:
    """A folder with the real weights in it.

    Fetched with the real pip from the user's own index, in the way a user gets them, unless an
    earlier session has left them in pytest's cache. Workers wait for each other, as processes do.
    """
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("bargein-weights")
    try:
        asyncio.run(_fetch(folder))
    except LocalModelError as error:
        pytest.fail(f"the real weights are needed to test the local model: {error}")
    return folder


async def _fetch(folder: Path) -> None:
    with CancelSource("fetching for the tests", timeout_s=300) as source:
        async with await open_containment() as opened:
            await Weights(folder, os.environ).obtain(opened, source.token, LocalNotices())
