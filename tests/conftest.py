"""What every test may ask for."""

from __future__ import annotations

import pytest

Backend = tuple[str, dict[str, bool]]

BACKENDS: dict[str, Backend] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """The event loops that `@pytest.mark.anyio` runs a test on: all three, unless it names some."""
    name: str = request.param
    return BACKENDS[name]
