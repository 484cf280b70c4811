"""What is Discord's own: slash commands, threads, nonces, and what was said in its absence."""

from __future__ import annotations

import pytest

from bargein.channels.contract import ChatMessage, NotDelivered, RetryLater
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services.discord import FakeDiscord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


async def test_a_slash_command_stops_and_is_acknowledged() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.model.gate("on").reached()
            await platform.command(platform.private, platform.alice, "stop")
            await scene.sees("Stopped in")
            await scene.quiet()
        assert [each["type"] for each in platform.acknowledged] == [4]
        assert {"stop", "redirect"} <= {each["name"] for each in platform.commands}


async def test_what_was_said_while_the_bot_was_away_is_read_later() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        await scene.pair(platform.group)
        async with scene.program([[Say("Hello.")]], repeat=True):
            await platform.say(platform.private, platform.alice, "Hi")
            await platform.say(platform.group, platform.alice, "Hi")
            await scene.sees("Hello.")
            await scene.sees("Hello.", platform.group)
            await scene.quiet()
            after = scene.crash()
        await platform.say(platform.private, platform.alice, "Are you there?")
        await platform.say(platform.group, platform.alice, "Are you all there?")
        async with after.program([[Say("I am.")]], repeat=True):
            await after.sees("I am.")
            await after.sees("I am.", platform.group)
            await after.quiet()
            assert len(platform.shown(platform.private)) == 2
            assert len(platform.shown(platform.group)) == 2


async def test_a_thread_is_a_session_under_the_pairing_of_its_channel() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        async with scene.program([[Say("Hello.")]]):
            await platform.say(platform.thread, platform.alice, "Hi")
            await scene.sees("Hello.", platform.thread)
            assert await scene.sessions() == [scene.session_of(platform.thread)]


async def test_the_nonce_is_a_key_and_refusals_are_told_from_unknown_outcomes() -> None:
    async with FakeDiscord() as platform:
        channel, chat = platform.open_channel(), platform.private
        platform.break_after_next_send()
        with pytest.raises(Exception, match=r".") as broken:
            await channel.send(chat, ChatMessage("Hello.", "k"))
        assert not isinstance(broken.value, NotDelivered | RetryLater)
        sent = await channel.send(chat, ChatMessage("Hello.", "k"))
        assert [each.id for each in platform.shown(chat)] == [sent]
        with pytest.raises(NotDelivered, match="Invalid Form Body"):
            await channel.send(chat, ChatMessage("x" * 2001, "k2"))
        with pytest.raises(NotDelivered, match="Unknown Message"):
            await channel.edit(chat, "1", ChatMessage("x", "k"))
        platform.limit(0.5)
        with pytest.raises(RetryLater) as limited:
            await channel.typing(chat)
        assert 0 < limited.value.after_s <= 0.5
        await channel.aclose()
