"""HTTP is spoken on asyncio only; tests of what is written against anyio ask for all loops."""

from __future__ import annotations

import hypothesis
import pytest

from tests.conftest import BACKENDS, Backend

# Two cores shared by everything: how long one example takes says nothing.
hypothesis.settings.register_profile("models", deadline=None)
hypothesis.settings.load_profile("models")


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    return BACKENDS[name]
