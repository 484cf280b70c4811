"""Whatever people do at their screens at once: in the end every screen shows the same.

A slice of the tests has one of these seeds; `./dev bench together` does 500 acts on one session.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.every_screen import play

if TYPE_CHECKING:
    from playwright.sync_api import Browser


ACTS = 20


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.timeout(180)
def test_every_screen_ends_with_the_same_picture(
    tmp_path: Path, browser: Browser, host_possible: None, seed: int
) -> None:
    play(tmp_path, browser, seed, ACTS)
