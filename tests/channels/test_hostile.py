"""What strangers send to an adapter: forged requests, events like no documentation, files that are
somewhere else. None of it ends a channel, shows a token, or gets an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bargein.channels import words
from bargein.channels.contract import ChatAddress, NotDelivered, Offer, Update, UpdateKind
from bargein.channels.discord import DiscordChannel
from bargein.channels.slack import SlackChannel
from bargein.errors import UserError, WorldError
from bargein.models.script import Answer, Call, Expect, Say, Wait
from bargein.testing.channel_conformance import ChannelScene
from bargein.testing.chat_services import discord, slack
from bargein.testing.chat_services.discord import FakeDiscord
from bargein.testing.chat_services.slack import FakeSlack
from bargein.testing.chat_services.telegram import FakeTelegram
from bargein.tools.ask import ask_tool

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


class ListDesk:
    """Takes everything but what a stranger says."""

    cursor = ""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.is_reached = anyio.Event()

    async def reached(self) -> None:
        self.is_reached.set()

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        taken = [each for each in updates if each.sender.id != "666"]
        self.updates += taken
        return taken


MALFORMED: list[Any] = [
    {"message": 5},
    {"message": {"message_id": 1, "chat": "x", "from": {}}},
    {"message": {"from": {"id": 1}, "chat": {"type": "private"}}},
    {"edited_message": None},
    {"callback_query": {"message": {"chat": {"type": "private", "id": 1}}}},
    {"stopped_message_generation": {}},
]


async def test_malformed_updates_end_nothing_on_telegram() -> None:
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            for each in MALFORMED:
                platform._happened(each)
            await platform.say(platform.private, platform.alice, "Hi")
            await scene.sees("Hello.")
            await scene.quiet()


async def test_malformed_events_end_nothing_on_slack_and_discord() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            for event in (None, 5, {"type": "message"}, {"type": "message", "user": "U1"}):
                platform._happened("events_api", {"event": event})
            platform._happened("interactive", {"type": "block_actions", "actions": [{}]})
            await platform.say(platform.private, platform.alice, "Hi")
            await scene.sees("Hello.")
    async with FakeDiscord() as service:
        scene = ChannelScene(service)
        await scene.pair()
        async with scene.program([[Say("Hello.")]]):
            await service._connected.wait()
            service._happened("MESSAGE_CREATE", {"author": {"id": "1"}})
            service._happened("INTERACTION_CREATE", {"id": "1", "type": 3})
            service._happened("GUILD_CREATE", {"channels": [None]})
            await service.say(service.private, service.alice, "Hi")
            await scene.sees("Hello.")


async def test_malformed_events_end_nothing_on_matrix(tmp_path: Path) -> None:
    nio = pytest.importorskip("nio")
    from bargein.channels.matrix import MatrixChannel

    channel = MatrixChannel(
        "m", homeserver="http://127.0.0.1:1", user="@bot:h", token="t", folder=tmp_path
    )
    channel._client.rooms["!r:h"] = nio.MatrixRoom("!r:h", "@bot:h")
    hostile: list[Any] = ["x", 5, ["y"], {"rel_type": "m.replace", "event_id": {}}]
    for relation in hostile:
        content = {"msgtype": "m.text", "body": "Hi", "m.relates_to": relation, "m.mentions": 5}
        event = nio.RoomMessageText.from_dict(
            {
                "type": "m.room.message",
                "event_id": "$1",
                "sender": "@eve:h",
                "origin_server_ts": 1,
                "content": content,
            }
        )
        with anyio.fail_after(10):
            try:
                await channel._updates_of("!r:h", event)
            except (WorldError, aiohttp.ClientError):
                pass  # it asked the homeserver, which is not there
    for media in ("../../v3/account/whoami", "..", "a/b", "a?b", ""):
        offer = Offer(json.dumps({"url": f"mxc://h/{media}"}), "f", "text/plain")
        with pytest.raises(NotDelivered, match="not that of a file"):
            await channel.fetch(offer, 100)
    await channel.aclose()


async def test_a_request_that_slack_cannot_have_signed_is_refused_whatever_it_says() -> None:
    channel = SlackChannel("s", slack.TOKEN, signing_secret="secret", api="http://127.0.0.1:1/")
    for at in ("abc", "", "-1", str(int(time.time())), "9" * 400):
        for body in (b"{", b"\xff\xfe", b""):
            headers = {"x-slack-request-timestamp": at, "x-slack-signature": "v0=00"}
            assert (await channel.hook(headers, body)).status == 401, (at, body)
    await channel.aclose()


async def test_our_token_is_shown_to_slack_alone() -> None:
    shown: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization", ""))
        return web.Response(body=b"x")

    app = web.Application()
    app.router.add_get("/f", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with FakeSlack() as platform:
        channel = platform.open_channel()
        near = f"http://127.0.0.1:{runner.addresses[0][1]}/f"
        for address in (near, "https://slack.com.evil.example/f", "http://files.slack.com/f"):
            with pytest.raises(NotDelivered, match="token is not shown"):
                await channel.fetch(Offer(address, "f", "text/plain"), 100)
        await channel.aclose()
    await runner.cleanup()
    assert not shown


async def test_an_answer_in_a_channel_of_slack_is_streamed_to_who_asked() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair(platform.group)
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Two.")])]):
            await platform.say(platform.group, platform.alice, "Begin")
            await scene.until(lambda: platform.streaming, "a stream is open")
            scene.model.gate("on").open()
            await scene.sees("One. Two.", platform.group)
            await scene.quiet()
        (message,) = platform.shown(platform.group)
        assert words.SENT_AGAIN not in message.text


async def test_where_nobody_can_reply_the_next_words_answer_a_free_question() -> None:
    async with FakeSlack() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        script = [
            Answer([Call("ask", {"question": "Which?"})]),
            Answer([Expect(result="Oolong"), Say("Ok.")]),
        ]
        async with scene.program(script, tools=[ask_tool()]):
            await platform.say(platform.private, platform.alice, "Serve")
            (question,) = await scene.sees(words.NEXT_ANSWERS)
            await scene.quiet_out()
            await platform.say(platform.private, platform.alice, "Oolong")
            await scene.sees("Ok.")
            assert question.text.startswith("Which?")


async def test_discord_shows_a_stranger_nothing() -> None:
    async with FakeDiscord() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([]):
            await platform._connected.wait()
            await platform.command(platform.theirs, platform.stranger, "status")
            await platform.command(platform.private, platform.alice, "status")
            await scene.sees("Idle.")
            await scene.quiet()
        assert len(platform.acknowledged) == 1
        assert not platform.shown(platform.theirs)


async def test_a_request_of_discord_is_checked_before_it_is_read() -> None:
    key, now = Ed25519PrivateKey.generate(), 1_800_000_000.0
    async with FakeDiscord() as platform:
        channel = DiscordChannel(
            "d",
            discord.TOKEN,
            public_key=key.public_key().public_bytes_raw().hex(),
            api=f"{platform.address}/api",
            now=lambda: now,
        )

        def signed(body: bytes, at: float = now) -> dict[str, str]:
            signature = key.sign(str(int(at)).encode() + body).hex()
            return {"x-signature-ed25519": signature, "x-signature-timestamp": str(int(at))}

        ping = json.dumps({"type": 1}).encode()
        assert (await channel.hook({}, ping)).status == 401
        forged = signed(ping) | {"x-signature-ed25519": "zz"}
        assert (await channel.hook(forged, b"{")).status == 401
        assert (await channel.hook(signed(ping), ping + b" ")).status == 401
        assert (await channel.hook(signed(ping, now - 600), ping)).status == 401, "too old"
        assert (await channel.hook(signed(b"5"), b"5")).status == 400
        assert json.loads((await channel.hook(signed(ping), ping)).body) == {"type": 1}
        desk = ListDesk()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run, desk)
            with anyio.fail_after(10):
                await desk.is_reached.wait()
            for sender, status in (("11", 200), ("666", 202)):
                stop = {"id": "7", "type": 2, "channel_id": "101", "data": {"name": "stop"}}
                body = json.dumps({**stop, "user": {"id": sender}}).encode()
                assert (await channel.hook(signed(body), body)).status == status
            tasks.cancel_scope.cancel()
        assert [(each.kind, each.text) for each in desk.updates] == [(UpdateKind.COMMAND, "/stop")]
        await channel.aclose()
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        DiscordChannel("d", discord.TOKEN, public_key="abc")


async def test_why_discord_closes_a_connection_is_said() -> None:
    async with FakeDiscord() as platform:
        platform.closes_with = 4014
        channel = platform.open_channel()
        with anyio.fail_after(10), pytest.raises(WorldError, match="Message Content Intent"):
            await channel.run(ListDesk())
        await channel.aclose()


async def test_a_flood_of_strangers_starves_nobody() -> None:
    """Two thousand messages at once from a stranger: a stop among them acts, and costs them
    nothing but silence."""
    async with FakeTelegram() as platform:
        scene = ChannelScene(platform)
        await scene.pair()
        async with scene.program([Answer([Say("One. "), Wait("on"), Say("Late.")])]):
            await platform.say(platform.private, platform.alice, "Begin")
            await scene.model.gate("on").reached()
            platform.hold()
            for number in range(2000):
                chat = ChatAddress(str(700_000 + number))
                await platform.say(chat, platform.stranger, f"spam {number}")
            await platform.say(platform.private, platform.alice, "/stop")
            platform.release()
            with anyio.fail_after(10):
                await scene.sees("Stopped in")
            await scene.quiet()
        assert len(await scene.sessions()) == 1
        assert not [each for each in platform.messages() if "spam" in each.text]
