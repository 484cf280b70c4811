"""The scenarios of every channel, on each platform: its adapter and its library, over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from bargein.channels.contract import ChatMessage
from bargein.channels.words import SENT_AGAIN
from bargein.testing.channel_conformance import CHECKS, ChannelCheck, PlatformUnderTest
from bargein.testing.chat_services.discord import FakeDiscord
from bargein.testing.chat_services.slack import FakeSlack
from bargein.testing.chat_services.telegram import FakeTelegram

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.channels.synapse import homeserver

    with homeserver(tmp_path_factory.mktemp("synapse")) as address:
        yield address


@pytest.mark.parametrize("service", [FakeTelegram, FakeSlack, FakeDiscord])
@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.anyio
async def test_on_a_service_of_ours(
    check: ChannelCheck, service: type[AbstractAsyncContextManager[PlatformUnderTest]]
) -> None:
    async with service() as platform:
        await check(platform)


@pytest.mark.needs("synapse")
@pytest.mark.timeout(120)  # the first one starts the homeserver
@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.anyio
async def test_on_a_real_homeserver(check: ChannelCheck, synapse: str, tmp_path: Path) -> None:
    from tests.channels.matrix_platform import matrix_platform

    async with matrix_platform(synapse, tmp_path) as platform:
        await check(platform)


@pytest.mark.parametrize("service", [FakeTelegram, FakeSlack, FakeDiscord])
@pytest.mark.anyio
async def test_the_longest_text_fits_with_the_mark_of_one_that_is_sent_again(
    service: type[AbstractAsyncContextManager[PlatformUnderTest]],
) -> None:
    async with service() as platform:
        channel = platform.open_channel()
        longest = "x" * channel.traits.text_max
        all_marks = "*" * (channel.traits.text_max // 2)
        messages = [
            ChatMessage(f"{SENT_AGAIN}\n{longest}", "k1"),
            ChatMessage(f"{SENT_AGAIN}\n{all_marks}", "k2", exact=True),
        ]
        for message in messages:
            assert await channel.send(platform.private, message)
        await channel.aclose()
