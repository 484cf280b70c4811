import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the server runs on in production."""
    return ("asyncio", {"use_uvloop": True})
