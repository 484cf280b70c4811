"""What is Telegram's own: drafts with a Stop button, webhooks, topics, limits, files."""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio
import pytest

from bargein.channels.contract import (
    ChatAddress,
    ChatMessage,
    NotDelivered,
    Offer,
    RetryLater,
    Update,
)
from bargein.channels.telegram import TelegramChannel
from bargein.errors import WorldError
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services.telegram import TOKEN, FakeTelegram

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


class ListDesk:
    def __init__(self) -> None:
        self.updates: list[Update] = []

    @property
    def cursor(self) -> str:
        return ""

    async def reached(self) -> None:
        pass

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        self.updates += updates
        return updates


async def test_the_stop_button_of_a_draft_stops_just_that_turn() -> None:
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        script = [
            Answer([Say("One. "), Wait("on"), Say("Late.")]),
            Answer([Wait("two"), Say("2.")]),
        ]
        async with scene.program(script):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.until(lambda: platform.drafts, "a draft is shown")
            _, draft, text, can_stop = platform.drafts[-1]
            assert (text, can_stop) == ("One.  …", True)
            await platform.press_stop(platform.private, draft)
            await scene.sees("Stopped in")
            await platform.say(platform.private, platform.alice, "Next")
            await scene.model.gate("two").reached()
            await platform.redeliver()
            await scene.quiet()
            scene.model.gate("two").open()
            await scene.sees("2.")
            assert not [each for each in platform.messages() if "Late." in each.text]


async def test_a_webhook_is_checked_before_it_is_read_and_answered_when_durable() -> None:
    async with FakeTelegram() as platform:
        channel = TelegramChannel(
            "t", TOKEN, api=platform.address, webhook="https://h/channels/t", secret="long word"
        )
        desk = ListDesk()
        headers = {"x-telegram-bot-api-secret-token": "long word"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, desk)
            with anyio.fail_after(10):
                while (await channel.hook(headers, b"{}")).status == 503:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert platform.webhook["secret_token"] == "long word"
            await platform.say(platform.private, platform.alice, "Hi")
            body = json.dumps(platform.waiting[0]).encode()
            assert (await channel.hook({}, body)).status == 401
            assert (
                await channel.hook({**headers, "x-telegram-bot-api-secret-token": "x"}, b"{")
            ).status == 401
            assert not desk.updates
            assert (await channel.hook(headers, b"{")).status == 400
            assert (await channel.hook(headers, body)).status == 200
            assert [each.text for each in desk.updates] == ["Hi"]
            tasks.cancel_scope.cancel()
        await channel.aclose()


async def test_refusals_are_told_from_unknown_outcomes() -> None:
    async with FakeTelegram() as platform:
        channel = platform.open_channel()
        chat, hello = platform.private, ChatMessage("Hello.", "k")
        sent = await channel.send(chat, hello)
        await channel.edit(chat, sent, hello)  # unchanged: no error
        with pytest.raises(NotDelivered, match="too long"):
            await channel.send(chat, ChatMessage("x" * 5000, "k2"))
        with pytest.raises(NotDelivered, match="not found"):
            await channel.edit(chat, "999", hello)
        platform.limit(2.5)
        with pytest.raises(RetryLater) as limited:
            await channel.send(chat, hello)
        assert limited.value.after_s == 3
        platform.limit(0)
        platform.break_after_next_send()
        with pytest.raises(WorldError) as broken:
            await channel.send(chat, hello)
        assert not isinstance(broken.value, NotDelivered | RetryLater)
        assert TOKEN not in str(broken.value)
        await channel.aclose()


async def test_any_text_of_the_longest_length_fits() -> None:
    async with FakeTelegram() as platform:
        channel = platform.open_channel()
        for text in ("😀" * channel.traits.text_max, "**b** " * (channel.traits.text_max // 6)):
            await channel.send(platform.private, ChatMessage(text, "k"))
        await channel.aclose()


async def test_a_topic_is_a_session_and_files_have_a_bound() -> None:
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        topic = ChatAddress(platform.group.id, platform.group.kind, "7")
        async with scene.program([[Say("Hello.")]], repeat=True):
            await platform.say(topic, platform.alice, "Hi")
            await scene.sees("Hello.", topic)
            assert await scene.sessions() == [scene.session_of(topic)]
        channel = platform.open_channel()
        platform.files["f"] = b"x" * 100
        assert await channel.fetch(Offer("f", "f", "text/plain"), 100) == b"x" * 100
        with pytest.raises(NotDelivered):
            await channel.fetch(Offer("f", "f", "text/plain"), 99)
        await channel.aclose()
