"""What is Discord's own: slash commands, threads, nonces, and what was said in its absence."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from bargein.channels.contract import ChatAddress, ChatMessage, NotDelivered, RetryLater
from bargein.channels.discord import HINT_S
from bargein.errors import WorldError
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services.discord import FakeDiscord
from tests.channels.test_hostile import ListDesk

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


@pytest.mark.parametrize("asked", [True, False])
async def test_a_connection_that_breaks_is_resumed_and_loses_neither_words_nor_edits(
    asked: bool,
) -> None:
    """Also in a chat that was never heard before, of which nobody could ask later."""
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        await scene.pair(platform.group)
        async with scene.program([[Say("Hello.")], [Say("Changed.")], [Say("Group.")]]):
            said = await platform.say(platform.private, platform.alice, "Tea")
            await scene.sees("Hello.")
            await scene.quiet()
            platform.hold()
            await platform.edit(platform.private, platform.alice, said, "Coffee")
            if asked:
                await platform.ask_to_reconnect()
            else:
                platform.drop()
            await scene.until(lambda: platform.connections == 2, "another connection")
            platform.release()
            await scene.sees("Changed.")
            await platform.say(platform.group, platform.alice, "Hi all")
            await scene.sees("Group.", platform.group)
            await scene.quiet()
            assert platform.identified == 1
            assert "Coffee" in str(scene.model.requests[1].messages)
            assert len(scene.model.requests) == 3


async def test_what_was_not_durable_when_the_connection_broke_is_delivered_again() -> None:
    async with FakeDiscord() as platform:
        desk, channel = RefusingDesk(), platform.open_channel()

        async def read() -> None:
            for _ in range(2):
                with pytest.raises(ExceptionGroup):
                    await channel.run(desk)
            desk.refuses = False
            await channel.run(desk)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await platform.say(platform.private, platform.alice, "Hi")
            with anyio.fail_after(10):
                while not desk.updates:  # noqa: ASYNC110 - the desk has no event
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert [each.text for each in desk.updates] == ["Hi"]
        assert (desk.refused, platform.identified) == (2, 1)
        await channel.aclose()


class RefusingDesk(ListDesk):
    """Cannot keep anything for a while."""

    refuses = True
    refused = 0

    async def receive(self, updates: Any, *, cursor: str = "") -> Any:
        if self.refuses:
            self.refused += 1
            raise OSError("no space left")
        return await super().receive(updates, cursor=cursor)


async def test_a_session_that_discord_has_forgotten_is_begun_anew() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]], repeat=True):
            await platform.say(platform.private, platform.alice, "Hi")
            await scene.sees("Hello.")
            await scene.quiet()
            platform.forget_session()
            platform.drop()
            await scene.until(lambda: platform.identified == 2, "another session")
            await platform.say(platform.private, platform.alice, "Are you there?")
            await scene.sees("Hello.", count=2)
            assert platform.identified == 2


async def test_no_session_is_begun_when_discord_lets_the_bot_begin_hardly_any_more() -> None:
    """Discord takes the token of a bot away that begins too many."""
    async with FakeDiscord() as platform:
        platform.starts_left = 5
        channel = platform.open_channel()
        with anyio.fail_after(10), pytest.raises(WorldError, match="only 5 more sessions"):
            await channel.run(ListDesk())
        assert not platform.identified
        await channel.aclose()


async def test_what_discord_says_by_itself_is_no_message() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await platform._connected.wait()
            pinned = platform._message(platform.private, platform.alice, "")
            platform._happened("MESSAGE_CREATE", {**pinned, "type": 6})
            gone = platform._message(platform.group, platform.alice, "Hi")
            platform._happened("MESSAGE_CREATE", {**gone, "channel_id": "404"})
            await platform.say(platform.private, platform.alice, "Hi")
            await scene.sees("Hello.")
            await scene.quiet()
            assert platform.identified == 1
        await scene.check_session(scene.session, messages=1, turns=1)


class SlowHints(FakeDiscord):
    """No answer to an acknowledgement."""

    hangs = 0

    async def _call(self, request: Any) -> Any:
        if request.match_info["path"].endswith("/callback"):
            self.hangs += 1
            await anyio.sleep_forever()
        return await super()._call(request)


async def test_an_acknowledgement_that_hangs_keeps_no_stop_from_being_read() -> None:
    async with SlowHints() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.model.gate("on").reached()
            with anyio.fail_after(HINT_S - 1):
                await platform.command(platform.private, platform.alice, "status")
                await scene.until(lambda: platform.hangs, "an acknowledgement hangs")
                await platform.say(platform.private, platform.alice, "/stop")
                await scene.sees("Stopped in")


async def test_a_limit_for_the_whole_bot_holds_every_chat() -> None:
    async with FakeDiscord() as platform:
        channel = platform.open_channel()
        platform.limit(30)
        platform.limit_is_global = True
        for chat in (platform.private, ChatAddress("50000")):
            with pytest.raises(RetryLater) as limited:
                await channel.send(chat, ChatMessage("x", "k"))
            assert limited.value.after_s > 20
        assert platform.refused == 1, "the second call was not made"
        await channel.aclose()
