"""What is Slack's own: streams, signed requests, refusals."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from urllib.parse import urlencode

import anyio
import pytest
from aiohttp import web

from bargein.channels.contract import ChatMessage, NotDelivered, RetryLater, Update
from bargein.channels.slack import SlackChannel
from bargein.models.script import Answer, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services.slack import TOKEN, FakeSlack

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]
SECRET = "a signing secret"


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


def signed(body: bytes, at: float, secret: str = SECRET) -> dict[str, str]:
    base = b"v0:%d:%s" % (int(at), body)
    signature = hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()
    return {
        "x-slack-request-timestamp": str(int(at)),
        "x-slack-signature": f"v0={signature}",
        "content-type": "application/json",
    }


async def test_an_answer_is_streamed_and_the_stream_becomes_the_answer() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.until(lambda: platform.streaming, "a stream is open")
            scene.model.gate("on").open()
            await scene.sees("One. Two.")
            await scene.quiet()
        (message,) = platform.shown(platform.private)
        assert message.id in platform.streamed
        assert not platform.streaming


async def test_a_stop_ends_the_stream_and_adds_no_word() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.until(lambda: platform.streaming, "a stream is open")
            await platform.say(platform.private, platform.alice, "!stop")
            await scene.sees("Stopped in")
            await scene.until(lambda: not platform.streaming, "the stream has ended")
            await scene.quiet()
        streamed = platform.shown(platform.private)[0]
        assert streamed.text.strip() == "One."


async def test_requests_are_checked_before_they_are_read() -> None:
    async with FakeSlack() as platform:
        api = f"{platform.address}/api/"
        channel = SlackChannel("s", TOKEN, signing_secret=SECRET, api=api)
        desk, now = ListDesk(), time.time()
        challenge = json.dumps({"type": "url_verification", "challenge": "c"}).encode()
        event = platform.said(platform.private, platform.alice, "a < b")
        body = json.dumps({"type": "event_callback", "event": event}).encode()
        assert (await channel.hook({}, b"{")).status == 401
        assert (await channel.hook(signed(b"{", now, "another"), b"{")).status == 401
        assert (await channel.hook(signed(body, now - 600), body)).status == 401, "too old"
        assert (await channel.hook(signed(b"{", now), b"{")).status == 400
        assert (await channel.hook(signed(challenge, now), challenge)).body == b"c"
        assert (await channel.hook(signed(body, now), body)).status == 503, "it does not run yet"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, desk)
            with anyio.fail_after(10):
                while (await channel.hook(signed(body, now), body)).status == 503:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            assert [each.text for each in desk.updates] == ["a < b"]
            press = {
                "type": "block_actions",
                "user": {"id": "U11"},
                "channel": {"id": "D11"},
                "message": {"ts": "1.2"},
                "actions": [{"value": "yes", "action_ts": "3.4"}],
            }
            form = urlencode({"payload": json.dumps(press)}).encode()
            kind = {"content-type": "application/x-www-form-urlencoded"}
            assert (await channel.hook(signed(form, now) | kind, form)).status == 200
            assert (desk.updates[-1].text, desk.updates[-1].target) == ("yes", "1.2")
            tasks.cancel_scope.cancel()
        await channel.aclose()


async def test_refusals_are_told_from_unknown_outcomes() -> None:
    async with FakeSlack() as platform:
        channel = platform.open_channel()
        chat = platform.theirs
        sent = await channel.send(chat, ChatMessage("Hello.", "k"))
        await channel.edit(chat, sent, ChatMessage("Hello!", "k"))
        with pytest.raises(NotDelivered, match="msg_too_long"):
            await channel.send(chat, ChatMessage("x" * 12_001, "k2"))
        with pytest.raises(NotDelivered, match="message_not_found"):
            await channel.edit(chat, "0.0", ChatMessage("x", "k"))
        platform.limit(1.5)
        with pytest.raises(RetryLater) as limited:
            await channel.send(chat, ChatMessage("x", "k3"))
        assert limited.value.after_s == 2
        platform.limit(0)
        platform.break_after_next_send()
        with pytest.raises(Exception, match=r".") as broken:
            await channel.send(chat, ChatMessage("x", "k4"))
        assert not isinstance(broken.value, NotDelivered | RetryLater)
        assert len(platform.shown(chat)) == 2, "the library does not try again by itself"
        await channel.aclose()


async def test_names_are_asked_for_those_who_speak_to_the_bot_and_for_nobody_else() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        async with scene.program([[Say("Hello <!channel> & all.")]]):
            for _ in range(5):
                await platform.say(platform.group, platform.bob, "among us", addressed=False)
            await scene.quiet()
            assert "users.info" not in platform.asked
            await platform.say(platform.group, platform.alice, "Hi")
            await scene.sees("Hello <!channel> & all.", platform.group)
            assert "Alice: Hi" in str(scene.model.requests[0].messages)
            assert platform.asked.count("users.info") == 1


class SlowNames(FakeSlack):
    """Nobody learns a name."""

    async def _call(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["method"] == "users.info":
            await anyio.sleep_forever()
        return await super()._call(request)


async def test_an_event_is_acknowledged_in_time_though_no_name_comes() -> None:
    async with SlowNames() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await scene.until(lambda: "auth.test" in platform.asked, "the bot is there")
            with anyio.fail_after(3):
                await platform.say(platform.private, platform.alice, "Hi")
                while not await platform.is_delivered():  # noqa: ASYNC110 - it has no event
                    await anyio.sleep(0.01)
            await scene.sees("Hello.")
