"""The scenarios of every channel, on a platform in memory and on virtual time."""

from typing import Literal

import pytest

from bargein.testing.channel_conformance import CHECKS, ChannelCheck, FakePlatform
from bargein.testing.seeded import run_seeded


@pytest.mark.parametrize(
    ("keyed", "backend"), [(True, "asyncio"), (False, "trio")], ids=["keyed", "unkeyed"]
)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_channel_keeps_its_promises(
    check: ChannelCheck, keyed: bool, backend: Literal["trio", "asyncio"]
) -> None:
    run_seeded(lambda run: check(FakePlatform(keyed=keyed), run.clock), 1, backend=backend)
