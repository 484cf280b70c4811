"""What every test may ask for."""

from __future__ import annotations

import signal

import hypothesis
import pytest

Backend = tuple[str, dict[str, bool]]

BACKENDS: dict[str, Backend] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


# Cores are shared with others: how long something takes says nothing.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    """Hear the signals that tests send, also when we were started in the background or by nohup:
    there they are ignored from birth, and every process we start would inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            ours = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, ours)


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """The event loops that `@pytest.mark.anyio` runs a test on: all three, unless it names some."""
    name: str = request.param
    return BACKENDS[name]
