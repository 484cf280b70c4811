"""What is Telegram's own: drafts with a Stop button, webhooks, topics, limits, files."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

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
from bargein.channels.telegram import HINT_S, TelegramChannel
from bargein.errors import UserError, WorldError
from bargein.models.script import Answer, Call, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services.telegram import TOKEN, FakeTelegram
from bargein.tools.ask import ask_tool

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


class ListDesk:
    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.is_reached = anyio.Event()

    @property
    def cursor(self) -> str:
        return ""

    async def reached(self) -> None:
        self.is_reached.set()

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
            "t", TOKEN, api=platform.address, webhook="https://h/channels/t", secret="long-word"
        )
        desk = ListDesk()
        headers = {"x-telegram-bot-api-secret-token": "long-word"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, desk)
            with anyio.fail_after(10):
                while (await channel.hook(headers, b"{}")).status == 503:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert platform.webhook["secret_token"] == "long-word"
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


async def test_a_group_that_becomes_a_supergroup_stays_the_chat_that_it_was() -> None:
    """Its pairing and its session; messages are counted anew there, and none is taken for one from
    before."""
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        platform._counts[platform.group.id] = 0
        async with scene.program([[Say("One.")], [Say("Two.")]]):
            assert await platform.say(platform.group, platform.alice, "Hi") == "1"
            await scene.sees("One.", platform.group)
            await scene.quiet()
            moved = await platform.migrate(platform.group, "-1007")
            platform._counts[moved.id] = 0
            assert await platform.say(moved, platform.alice, "Hi again") == "1"
            await scene.sees("Two.", moved)
            await platform.redeliver()
            await scene.quiet()
            assert [each.text for each in platform.shown(moved)] == ["Two."]
            assert await scene.sessions() == [scene.session_of(platform.group)]
            assert len(scene.model.requests) == 2
            after = scene.crash()
        async with after.program([Answer([Say("Three. "), Wait("on"), Say("Late.")])]):
            await platform.say(moved, platform.alice, "And again")
            await after.sees("Three.", moved)
            await platform.say(moved, platform.alice, "/stop")
            await after.sees("Stopped in", moved)
            await platform.say(moved, platform.stranger, "Hi")
            await after.quiet()
            assert await after.sessions() == [scene.session_of(platform.group)]
            assert not [each for each in platform.messages() if "Late." in each.text]


async def test_an_answer_reaches_a_group_that_became_a_supergroup_in_the_middle_of_it() -> None:
    """Telegram says so only by a refusal, and an edit of what stands in the old one is refused."""
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        async with scene.program(
            [Answer([Say("One. "), Wait("on"), Say("Two.")]), [Say("Three.")]]
        ):
            await platform.say(platform.group, platform.alice, "Begin")
            await scene.sees("One.", platform.group)
            moved = await platform.migrate(platform.group, "-1007", told=False)
            scene.model.gate("on").open()
            await scene.sees("One. Two.", moved)
            await platform.say(moved, platform.alice, "Hi")
            await scene.sees("Three.", moved)
            await scene.quiet()
            after = scene.crash()
        async with after.program([[Say("Four.")]]):
            await platform.say(moved, platform.alice, "Hi again")
            await after.sees("Four.", moved)


async def test_what_says_nothing_is_no_message() -> None:
    """A pinned message and the like have a sender and no words. A place or a sticker is named."""
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]], repeat=True):
            said = platform._message(platform.private, platform.alice, "")
            del said["text"]
            platform._happened({"message": {**said, "pinned_message": {"message_id": 1}}})
            await scene.quiet()
            assert not scene.model.requests
            others: list[dict[str, Any]] = [
                {"sticker": {"emoji": "👍"}},
                {"location": {"latitude": 1.0}},
            ]
            for number, (what, text) in enumerate(zip(others, ("👍", "(a location)"), strict=True)):
                message = {**said, "message_id": 5000 + number, **what}
                platform._happened({"message": message})
                await scene.sees("Hello.", count=number + 1)
                assert text in str(scene.model.requests[-1].messages[-1])


async def test_a_press_on_a_message_that_telegram_cannot_show_answers_nothing() -> None:
    """It says the number of a button, and nobody knows what the button said."""
    async with FakeTelegram() as platform:
        channel = platform.open_channel()
        lost = {"chat": {"id": 11, "type": "private"}, "message_id": 7, "date": 0}
        who = {"id": 11, "is_bot": False, "first_name": "Alice"}
        query = {"id": "1", "from": who, "chat_instance": "1", "message": lost, "data": "1"}
        press = channel._update_of({"update_id": 1, "callback_query": query})
        assert press is not None
        assert (press.text, press.target) == ("", "")
        await channel.aclose()


class SlowHints(FakeTelegram):
    """No answer to what only makes a button stop waiting."""

    async def _hang(self, given: Mapping[str, str]) -> Any:
        await anyio.sleep_forever()

    _methods: ClassVar[Mapping[str, Callable[..., Awaitable[Any]]]] = {
        **FakeTelegram._methods,
        "answerCallbackQuery": _hang,
    }


async def test_a_hint_that_hangs_keeps_no_stop_from_being_read() -> None:
    async with SlowHints() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        script = [
            Answer([Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})]),
            Answer([Say("One. "), Wait("on"), Say("Late.")]),
        ]
        async with scene.program(script, tools=[ask_tool()]):
            await platform.say(platform.private, platform.alice, "Serve")
            (question,) = await scene.sees("Tea?")
            await scene.until(lambda: question.buttons, "there are buttons")
            await platform.press(platform.private, platform.alice, question.id, "yes")
            await scene.model.gate("on").reached()
            with anyio.fail_after(HINT_S - 1):
                await platform.say(platform.private, platform.alice, "/stop")
                await scene.sees("Stopped in")


async def test_calls_that_hang_keep_no_update_from_being_read() -> None:
    """As many calls as there are connections wait for ever; updates have one of their own."""
    async with FakeTelegram() as platform:
        channel, desk = platform.open_channel(), ListDesk()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, desk)
            with anyio.fail_after(10):
                await desk.is_reached.wait()
                for number in range(150):
                    platform.hang_after_next_send()
                    chat = ChatAddress(str(70_000 + number))
                    tasks.start_soon(channel.send, chat, ChatMessage("x", "k"))
                while len(platform.messages()) < 100:  # noqa: ASYNC110 - it has no event
                    await anyio.sleep(0.01)
                for text in ("/stop", "/status"):
                    await platform.say(platform.private, platform.alice, text)
                    while not desk.updates or desk.updates[-1].text != text:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        await channel.aclose()


async def test_marks_that_are_drawn_longer_than_they_are_written_fit() -> None:
    async with FakeTelegram() as platform:
        channel = platform.open_channel()
        most = channel.traits.text_max
        for mark in ("---\n\n", "- [x] a\n", "# a\n", "> a\n\n", "|a|\n|-|\n|b|\n\n", "* a\n"):
            await channel.send(platform.private, ChatMessage(mark * (most // len(mark)), "k"))
        await channel.aclose()


async def test_a_secret_that_telegram_refuses_is_a_mistake() -> None:
    with pytest.raises(UserError, match="secret of 1 to 256"):
        TelegramChannel("t", TOKEN, webhook="https://h/t", secret="two words")
