from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.server.page_house import House
    from tests.server.page_visit import Visit


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the server runs on in production."""
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[House]":
    from tests.server.page_house import House

    with House(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("work")) as house:
        yield house


@pytest.fixture(scope="module")
def tab(house: "House", browser: "Browser") -> "Iterator[Visit]":
    """The page, open and signed in."""
    from tests.server.page_visit import Visit

    visit = Visit.begin(house, browser)
    visit.enter()
    yield visit
    visit.close()


@pytest.fixture
def visit(tab: "Visit") -> "Visit":
    """The same page, in a new session."""
    tab.session = tab.new_session()
    return tab
