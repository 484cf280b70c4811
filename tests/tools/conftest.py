from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bargein.process import Containment, Ladder
from bargein.tools import declaration, process_tool, tool_environment
from tests.conftest import Backend
from tests.tools.bench_of_tools import Shop, open_shop, warm_the_loop
from tests.tools.desk import Desk


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is given up after a second or so, and a kill is not waited for longer than that. A
    machine that stands still for as long must not fail tests that are about neither; those that
    are name a time of their own. Nothing takes longer by this that goes well."""
    monkeypatch.setattr(tool_environment, "PROCESS_S", 20.0)
    monkeypatch.setattr(process_tool, "PROCESS_S", 20.0)
    monkeypatch.setattr(tool_environment, "CALLED_S", 25.0)
    monkeypatch.setattr(declaration, "TOOL_S", 30.0)
    set_ladder(monkeypatch, Ladder(kill_s=15))


def set_ladder(monkeypatch: pytest.MonkeyPatch, ladder: Ladder) -> None:
    """For every command that names none."""
    defaults = Containment.spawn.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "ladder", ladder)


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
