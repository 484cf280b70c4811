"""HTTP works on asyncio only; tests of anyio code ask for all loops."""

from __future__ import annotations

import pytest

from tests.conftest import BACKENDS, Backend


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    return BACKENDS[name]
