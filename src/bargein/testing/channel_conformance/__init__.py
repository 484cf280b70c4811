"""Checks that an adapter for a chat platform loses nothing and answers nothing twice.

Say how your platform is used by people and how it fails (`PlatformUnderTest`), and run every check
on it. With pytest, on virtual time:

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_channel(check: ChannelCheck) -> None:
        run_seeded(lambda run: check(MyPlatform(), run.clock), seed=1)

A platform behind a real socket needs real time: `await check(my_platform)`. A check raises
AssertionError and says what it found.
"""

from bargein.testing.channel_conformance.incoming import INCOMING_CHECKS
from bargein.testing.channel_conformance.outgoing import OUTGOING_CHECKS
from bargein.testing.channel_conformance.platform import (
    BotMessage,
    FakeChannel,
    FakePlatform,
    PlatformUnderTest,
)
from bargein.testing.channel_conformance.scene import ChannelCheck, ChannelScene
from bargein.testing.channel_conformance.stops import STOP_CHECKS

__all__ = [
    "CHECKS",
    "BotMessage",
    "ChannelCheck",
    "ChannelScene",
    "FakeChannel",
    "FakePlatform",
    "PlatformUnderTest",
]

CHECKS: tuple[ChannelCheck, ...] = (*INCOMING_CHECKS, *STOP_CHECKS, *OUTGOING_CHECKS)
