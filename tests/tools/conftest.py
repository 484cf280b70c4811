from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Backend
from tests.tools.bench_of_tools import Shop, open_shop, warm_the_loop
from tests.tools.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(scope="module")
async def warm_loop(anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> None:
    await warm_the_loop(tmp_path_factory.mktemp("warm"))


@pytest.fixture
async def shop(warm_loop: None, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(tmp_path) as opened:
        yield opened
