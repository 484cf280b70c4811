from __future__ import annotations

import pytest

from tests.conftest import BACKENDS, Backend


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    """Processes are for asyncio."""
    return BACKENDS["asyncio"]
