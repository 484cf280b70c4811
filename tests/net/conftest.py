from __future__ import annotations

import pytest

from tests.conftest import BACKENDS, Backend


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """This package is for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]
