"""Matrix for the conformance suite: people at a real homeserver, and a network that fails.

People speak the client-server API themselves, without the library that the adapter uses. The bot
goes through a proxy, which can refuse its calls or drop an answer.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
from aiohttp import web
from anyio.abc import TaskGroup

from bargein.channels.contract import (
    Button,
    ChatAddress,
    ChatKind,
    ChatMessage,
    Desk,
    Offer,
    Person,
    Update,
    UpdateKind,
)
from bargein.channels.matrix import MatrixChannel
from bargein.testing.channel_conformance import BotMessage

_numbers = itertools.count(1)
CHATS_MAX = 20


class MatrixPerson:
    """Somebody with an account. `seen` has the ids of all events that they have been shown."""

    def __init__(self, http: aiohttp.ClientSession, address: str, id_: str, token: str) -> None:
        self.http = http
        self.address = address
        self.id = id_
        self.token = token
        self.seen: set[str] = set()

    @classmethod
    async def registered(cls, http: aiohttp.ClientSession, address: str, name: str) -> MatrixPerson:
        body = {"username": name, "password": "secret", "auth": {"type": "m.login.dummy"}}
        async with http.post(f"{address}/_matrix/client/v3/register", json=body) as answer:
            given = await answer.json()
            assert answer.status == 200, given
        return cls(http, address, given["user_id"], given["access_token"])

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.address}/_matrix/client/v3/{path}"
        async with self.http.request(
            method, url, json=body, headers=headers, params=query
        ) as answer:
            given = await answer.json()
            assert answer.status == 200, (path, given)
            return given

    async def put(self, room: str, type_: str, content: Any) -> str:
        path = f"rooms/{quote(room)}/send/{type_}/{next(_numbers)}"
        return str((await self.call("PUT", path, content))["event_id"])

    async def make_room(self, name: str, *invited: MatrixPerson) -> str:
        body = {"invite": [each.id for each in invited], "name": name, "preset": "private_chat"}
        room = str((await self.call("POST", "createRoom", body))["room_id"])
        for each in invited:
            await each.call("POST", f"join/{quote(room)}", {})
        return room


class MatrixPlatform:
    """Made by `matrix_platform`."""

    name = "matrix"
    limit_s = 1.0

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.proxy_address = ""
        self.folder = folder
        self.bot: MatrixPerson
        self.people: dict[str, MatrixPerson] = {}
        self.messages: dict[tuple[str, str], list[BotMessage]] = {}
        self._by_id: dict[str, BotMessage] = {}
        self.asked: list[str] = []
        """The paths of what the bot asked its homeserver."""
        self._sent: set[str] = set()
        self._done: set[str] = set()
        self._received: set[str] = set()
        self._limited_until = 0.0
        self._breaks = 0
        self._running: anyio.CancelScope | None = None
        self._rewound = False
        self._before = ""
        """Where the bot's timeline was before anybody said anything."""
        self._released = anyio.Event()
        self._released.set()

    # The proxy between the bot and its homeserver

    async def forward(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        is_send = request.method == "PUT" and "/send/" in request.path
        wait_s = self._limited_until - anyio.current_time()
        if request.method == "PUT" and wait_s > 0:
            after_ms = int(1000 * wait_s) + 1
            body = {"errcode": "M_LIMIT_EXCEEDED", "error": "Wait", "retry_after_ms": after_ms}
            return web.json_response(body, status=429)
        if request.path.endswith("/sync"):
            return await self._synced(request)
        return await self._answered(request, is_send=is_send)

    async def _synced(self, request: web.Request) -> web.StreamResponse:
        """An answer that came while nothing is to be delivered is thrown away and asked for anew:
        it would have a part of what is to come at once."""
        while True:
            await self._released.wait()
            answer = await self._answered(request, is_send=False)
            if self._released.is_set():
                return answer

    async def _answered(self, request: web.Request, *, is_send: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() in FORWARDED}
        async with self.bot.http.request(
            request.method,
            self.address + request.raw_path,
            headers=headers,
            data=await request.read(),
        ) as answer:
            content = await answer.read()
            if is_send and answer.status == 200:
                self._sent.add((await answer.json())["event_id"])
                if self._breaks:
                    self._breaks -= 1
                    assert request.transport is not None
                    request.transport.abort()
            kind = answer.headers.get("Content-Type", "application/json")
            return web.Response(body=content, status=answer.status, headers={"Content-Type": kind})

    def hold(self) -> None:
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    def limit(self, seconds: float) -> None:
        self._limited_until = anyio.current_time() + seconds

    def break_after_next_send(self) -> None:
        self._breaks += 1

    # What people do

    async def say(
        self,
        chat: ChatAddress,
        person: Person,
        text: str,
        *,
        album: str | None = None,
        reply_to: str = "",
        addressed: bool = True,
    ) -> str:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text}
        if addressed and chat.kind is ChatKind.GROUP:
            content["m.mentions"] = {"user_ids": [self.bot.id]}
        relation: dict[str, Any] = {}
        if chat.thread:
            relation = {"rel_type": "m.thread", "event_id": chat.thread}
        if reply_to:
            relation["m.in_reply_to"] = {"event_id": reply_to}
        if relation:
            content["m.relates_to"] = relation
        said = await self.people[person.id].put(chat.id, "m.room.message", content)
        self._done.add(said)
        return said

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None:
        content = {
            "msgtype": "m.text",
            "body": f"* {text}",
            "m.new_content": {"msgtype": "m.text", "body": text},
            "m.relates_to": {"rel_type": "m.replace", "event_id": message},
        }
        await self.people[person.id].put(chat.id, "m.room.message", content)
        self._done.add(f"{message} {text}")

    async def press(self, chat: ChatAddress, person: Person, message: str, data: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message, "key": data}
        reaction = {"m.relates_to": relation}
        self._done.add(await self.people[person.id].put(chat.id, "m.reaction", reaction))

    async def redeliver(self) -> None:
        """As after a crash before any token was kept: what one answer does not hold is read
        backwards."""
        self._received.clear()
        self._rewound = True
        if self._running is not None:
            self._running.cancel()

    async def chats(self, count: int) -> Sequence[ChatAddress]:
        """Threads of one room: a session each."""
        roots = []
        for number in range(min(count, CHATS_MAX)):
            content = {"msgtype": "m.notice", "body": f"thread {number}"}
            roots.append(
                await self.people[self.alice.id].put(self.private.id, "m.room.message", content)
            )
        return [ChatAddress(self.private.id, thread=root) for root in roots]

    # What people see

    def shown(self, chat: ChatAddress) -> Sequence[BotMessage]:
        return self.messages.get((chat.id, chat.thread), [])

    async def is_delivered(self) -> bool:
        seen = set().union(*(each.seen for each in self.people.values()))
        return not self._rewound and self._done <= self._received and self._sent <= seen

    async def watch(self, person: MatrixPerson) -> None:
        since: dict[str, str] = {}
        while True:
            synced = await person.call("GET", "sync", timeout="30000", **since)
            since = {"since": synced["next_batch"]}
            for room, joined in synced.get("rooms", {}).get("join", {}).items():
                for event in joined["timeline"]["events"]:
                    if event["event_id"] not in person.seen and event["sender"] == self.bot.id:
                        self._show(room, event)
                    person.seen.add(event["event_id"])

    def _show(self, room: str, event: Any) -> None:
        content = event["content"]
        relation = content.get("m.relates_to") or {}
        of = self._by_id.get(relation.get("event_id", ""))
        if event["type"] == "m.reaction" and of is not None:
            of.buttons = (*of.buttons, Button(relation["key"]))
        elif relation.get("rel_type") == "m.replace" and of is not None:
            of.text = content["m.new_content"]["body"]
            of.texts.append(of.text)
        elif event["type"] == "m.room.message" and event["event_id"] not in self._by_id:
            text = content["body"]
            shown = BotMessage(event["event_id"], text, texts=[text], at=anyio.current_time())
            self._by_id[shown.id] = shown
            thread = relation["event_id"] if relation.get("rel_type") == "m.thread" else ""
            self.messages.setdefault((room, thread), []).append(shown)

    # The bot

    def open_channel(self) -> MatrixUnderTest:
        channel = MatrixChannel(
            self.name,
            homeserver=self.proxy_address,
            user=self.bot.id,
            token=self.bot.token,
            folder=self.folder,
            per_s="200",
        )
        return MatrixUnderTest(self, channel)

    async def begin(self, http: aiohttp.ClientSession, tasks: TaskGroup) -> None:
        number = next(_numbers)
        made: dict[str, MatrixPerson] = {}

        async def register(name: str) -> None:
            made[name] = await MatrixPerson.registered(http, self.address, f"{name}{number}")

        async with anyio.create_task_group() as registering:
            for name in ("bot", "alice", "bob", "mallory"):
                registering.start_soon(register, name)
        self.bot = made["bot"]
        alice, bob, mallory = made["alice"], made["bob"], made["mallory"]
        self.people = {each.id: each for each in (alice, bob, mallory)}
        self.alice, self.bob = Person(alice.id, f"alice{number}"), Person(bob.id, f"bob{number}")
        self.stranger = Person(mallory.id, f"alice{number}")
        self.private = ChatAddress(await alice.make_room("private", self.bot))
        self.theirs = ChatAddress(await mallory.make_room("theirs", self.bot))
        group = await alice.make_room("group", bob, self.bot)
        self.group = ChatAddress(group, ChatKind.GROUP)
        self._before = (await self.bot.call("GET", "sync", timeout="0"))["next_batch"]
        for each in (alice, mallory):
            tasks.start_soon(self.watch, each)

    async def run(self, channel: MatrixChannel, desk: Desk) -> None:
        """Runs the channel; a redelivery runs it again from before everything."""
        while True:
            again_from = self._before if self._rewound else None
            recording = RecordingDesk(desk, self._received, again_from=again_from)
            self._rewound = False
            with anyio.CancelScope() as self._running:
                await channel.run(recording)
            assert self._rewound, "a channel runs until it is cancelled"


FORWARDED = ("authorization", "content-type")


class RecordingDesk:
    """`again_from` is the cursor until something was received; that of the desk if it is None."""

    def __init__(self, desk: Desk, received: set[str], *, again_from: str | None) -> None:
        self._desk = desk
        self._received = received
        self._again_from = again_from

    @property
    def cursor(self) -> str:
        return self._desk.cursor if self._again_from is None else self._again_from

    async def reached(self) -> None:
        await self._desk.reached()

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        taken = await self._desk.receive(updates, cursor=cursor)
        self._again_from = None
        self._received |= {update.key for update in updates}
        edited = (each for each in updates if each.kind is UpdateKind.EDITED)
        self._received |= {f"{each.key} {each.text}" for each in edited}
        return taken


class MatrixUnderTest:
    """The channel, with a record of what it received."""

    def __init__(self, platform: MatrixPlatform, channel: MatrixChannel) -> None:
        self._platform = platform
        self._channel = channel
        self.name = channel.name
        self.traits = channel.traits

    async def check(self) -> str:
        return await self._channel.check()

    async def run(self, desk: Desk) -> None:
        await self._platform.run(self._channel, desk)

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        return await self._channel.send(chat, message)

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        await self._channel.edit(chat, platform_id, message)

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        return await self._channel.preview(chat, key, text)

    async def typing(self, chat: ChatAddress) -> None:
        await self._channel.typing(chat)

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        return await self._channel.fetch(offer, bytes_max)

    async def aclose(self) -> None:
        await self._channel.aclose()


@asynccontextmanager
async def matrix_platform(address: str, folder: Path) -> AsyncIterator[MatrixPlatform]:
    platform = MatrixPlatform(address, folder)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", platform.forward)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    platform.proxy_address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as http, anyio.create_task_group() as tasks:
        await platform.begin(http, tasks)
        yield platform
        tasks.cancel_scope.cancel()
    await runner.cleanup()
