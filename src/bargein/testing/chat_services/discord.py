"""Discord's gateway and HTTP API, as https://docs.discord.com/developers describes them."""

import asyncio
import itertools
import json
from typing import Any

import aiohttp
import anyio
from aiohttp import web

from bargein.channels.contract import ChatAddress, ChatKind, ChatRate, Person
from bargein.channels.discord import DiscordChannel
from bargein.testing.chat_services.service import RATE, ChatService, place_of

TOKEN = "discord-test-token"
BOT = "999"
TEXT_MAX = 2000
NONCE_MAX = 25
LABEL_MAX = 80
ID_MAX = 100
EPOCH = "2026-11-18T12:{:02}:{:02}+00:00"

Json = dict[str, Any]


class DiscordRefusal(Exception):
    def __init__(self, status: int, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.answer = web.json_response({"code": code, "message": message, **more}, status=status)


class FakeDiscord(ChatService):
    """The gateway delivers to the connected bot. It keeps what it has delivered in a session, for a
    bot that resumes it. It asks for a heartbeat to learn how far the bot has come."""

    name = "discord"
    alice = Person("11", "Alice")
    bob = Person("12", "Bob")
    stranger = Person("666", "Alice")
    private = ChatAddress("101")
    group = ChatAddress("201", ChatKind.GROUP)
    theirs = ChatAddress("166")
    thread = ChatAddress("201", ChatKind.GROUP, "202")

    def __init__(self, rate: ChatRate = RATE) -> None:
        super().__init__(rate)
        self.commands: list[Json] = []
        self.acknowledged: list[Json] = []
        self.closes_with = 0
        self._log: dict[str, list[Json]] = {}
        self._dispatched: list[tuple[str, Json]] = []
        self.calls_per_s = 10_000.0
        self.identified = 0
        self.connections = 0
        self.refused = 0
        self.limit_is_global = False
        self.starts_left = 1000
        self._socket: web.WebSocketResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._session = ""
        self._sent: list[Json] = []
        self._unsent: list[tuple[str, Json]] = []
        self._more = anyio.Event()
        self._connected = anyio.Event()
        self._numbers = itertools.count(1000)
        self._seq = 0
        self._reached = -1
        self._nonces: dict[str, str] = {}

    def open_channel(self) -> DiscordChannel:
        return DiscordChannel(
            self.name,
            TOKEN,
            api=f"{self.address}/api",
            rate=self.rate,
            calls_per_s=self.calls_per_s,
        )

    async def chats(self, count: int) -> list[ChatAddress]:
        return [ChatAddress(str(50_000 + number)) for number in range(min(count, self.chats_max))]

    async def is_delivered(self) -> bool:
        if self._socket is None or self._unsent:
            return False
        if self._reached >= self._seq:
            return True
        await self._socket.send_json({"op": 1, "d": None})
        return False

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
        message = self._message(chat, person, text, addressed=addressed)
        if album is not None:
            url = f"{self.address}/files/{message['id']}.jpg"
            file = {"url": url, "filename": "a.jpg", "size": 7, "content_type": "image/jpeg"}
            message["attachments"] = [file]
        if reply_to:
            message["referenced_message"] = {"id": reply_to, "author": {"id": BOT}}
        if message["channel_id"] not in self._log:
            # A bot that was never there cannot know of this channel: Discord would keep nothing.
            await self._connected.wait()
        self._log.setdefault(message["channel_id"], []).append(message)
        self._happened("MESSAGE_CREATE", message)
        return str(message["id"])

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None:
        number = next(self._numbers)
        edited = EPOCH.format(number // 60 % 60, number % 60)
        said = self._message(chat, person, text)
        self._happened("MESSAGE_UPDATE", {**said, "id": message, "edited_timestamp": edited})

    async def press(self, chat: ChatAddress, person: Person, message: str, label: str) -> None:
        data = {"custom_id": f"0:{label}", "component_type": 2}
        self._interact(chat, person, {"type": 3, "data": data, "message": {"id": message}})

    async def command(self, chat: ChatAddress, person: Person, name: str, words: str = "") -> None:
        options = [{"name": "words", "type": 3, "value": words}] if words else []
        self._interact(chat, person, {"type": 2, "data": {"name": name, "options": options}})

    def _interact(self, chat: ChatAddress, person: Person, what: Json) -> None:
        event = {"id": str(next(self._numbers)), "token": "t", **_where(chat), **what}
        self._happened("INTERACTION_CREATE", {**event, "user": _user(person)})

    async def redeliver(self) -> None:
        """As after a session that was resumed: the same again; here the newest first."""
        for kind, event in reversed(list(self._dispatched)):
            self._enqueue(kind, event)

    def _message(
        self, chat: ChatAddress, person: Person, text: str, *, addressed: bool = True
    ) -> Json:
        is_meant = chat.kind is ChatKind.GROUP and addressed
        return {
            "id": str(next(self._numbers)),
            **_where(chat),
            "author": _user(person),
            "content": f"<@{BOT}> {text}" if is_meant else text,
            "mentions": [{"id": BOT}] if is_meant else [],
            "attachments": [],
            "edited_timestamp": None,
        }

    def _happened(self, kind: str, event: Json) -> None:
        self._dispatched.append((kind, event))
        self._enqueue(kind, event)

    def _enqueue(self, kind: str, event: Json) -> None:
        self._unsent.append((kind, event))
        self._more.set()

    def wake(self) -> None:
        self._more.set()

    # The gateway

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/gateway/", self._gateway),
            web.get("/files/{name}", self._file),
            web.route("*", "/api/{path:.*}", self._call),
        ]

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(body=b"a photo")

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"op": 10, "d": {"heartbeat_interval": 41250}})
        told = await socket.receive_json()
        if told["d"]["token"] != TOKEN:
            await socket.close(code=4004, message=b"Authentication failed.")
            return socket
        if self.closes_with:
            await socket.close(code=self.closes_with)
            return socket
        if told["op"] == 6 and told["d"]["session_id"] != self._session:
            await socket.send_json({"op": 9, "d": False})
            await socket.close()
            return socket
        self.connections += 1
        self._socket, self._transport = socket, request.transport
        if told["op"] == 6:
            self._reached = told["d"]["seq"]
            for payload in [each for each in self._sent if each["s"] > self._reached]:
                await socket.send_json(payload)
            await self._dispatch(socket, "RESUMED", {})
        else:
            await self._begin(socket)
        self._connected.set()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._deliver, socket)
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        self._reached = json.loads(message.data)["d"] or 0
                        await socket.send_json({"op": 11})
                tasks.cancel_scope.cancel()
        finally:
            if self._socket is socket:
                self._socket = None
                self._connected = anyio.Event()
        return socket

    async def _begin(self, socket: web.WebSocketResponse) -> None:
        self.identified += 1
        self._session = f"session{self.identified}"
        self._seq, self._reached = 0, -1
        # Nobody was there, and nothing is kept.
        self._unsent, self._sent = [], []
        ready = {"v": 10, "user": {"id": BOT}, "session_id": self._session}
        address = f"{self.address.replace('http', 'ws', 1)}/gateway"
        await self._dispatch(socket, "READY", {**ready, "resume_gateway_url": address})

    async def ask_to_reconnect(self) -> None:
        """As Discord does now and then."""
        assert self._socket is not None
        await self._socket.send_json({"op": 7, "d": None})

    def drop(self) -> None:
        """The connection breaks. What was sent on it may not have arrived."""
        assert self._transport is not None
        self._transport.abort()

    def forget_session(self) -> None:
        """Nothing can be resumed any more."""
        self._session = ""

    async def _deliver(self, socket: web.WebSocketResponse) -> None:
        while True:
            while self.held or not self._unsent:
                self._more = anyio.Event()
                await self._more.wait()
            kind, event = self._unsent.pop(0)
            await self._dispatch(socket, kind, event)

    async def _dispatch(self, socket: web.WebSocketResponse, kind: str, event: Json) -> None:
        self._seq += 1
        payload = {"op": 0, "t": kind, "s": self._seq, "d": event}
        self._sent.append(payload)
        await socket.send_json(payload)

    # The HTTP API

    async def _call(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bot {TOKEN}":
            return web.json_response({"code": 0, "message": "401: Unauthorized"}, status=401)
        body = await request.json() if request.can_read_body else {}
        path = request.match_info["path"].split("/")
        try:
            result = self._done(request, path, body)
        except DiscordRefusal as refusal:
            return refusal.answer
        if request.method == "POST" and path[-1] == "messages":
            await self.break_if_asked(request)
        if result is None:
            return web.Response(status=204)
        return web.json_response(result)

    def _done(self, request: web.Request, path: list[str], body: Any) -> Any:
        match request.method, path:
            case "GET", ["users", "@me"] | ["applications", "@me"]:
                return {"id": BOT, "username": "bot"}
            case "PUT", ["applications", _, "commands"]:
                self.commands = body
                return body
            case "GET", ["gateway", "bot"]:
                starts = {"total": 1000, "remaining": self.starts_left, "reset_after": 1000}
                address = f"{self.address.replace('http', 'ws', 1)}/gateway"
                return {"url": address, "session_start_limit": starts}
            case "GET", ["channels", "404"]:
                raise DiscordRefusal(404, 10003, "Unknown Channel")
            case "GET", ["channels", channel]:
                is_thread = channel == self.thread.thread
                about = {"type": 11, "parent_id": self.thread.id} if is_thread else {"type": 0}
                return {"id": channel, **(about if channel.startswith("2") else {"type": 1})}
            case "GET", ["channels", channel, "messages"]:
                after, limit = int(request.query["after"]), int(request.query["limit"])
                later = [m for m in self._log.get(channel, []) if int(m["id"]) > after]
                # A message that was asked for does not name its server.
                found = [{k: v for k, v in m.items() if k != "guild_id"} for m in later[:limit]]
                return list(reversed(found))
            case "POST", ["channels", channel, "messages"]:
                return self._create(channel, body)
            case "PATCH", ["channels", channel, "messages", message]:
                return self._change(channel, message, body)
            case "POST", ["channels", channel, "typing"]:
                self._admit("typing", channel)
                return None
            case "POST", ["interactions", _, _, "callback"]:
                self.acknowledged.append(body)
                return None
        raise DiscordRefusal(404, 0, "404: Not Found")

    def _create(self, channel: str, body: Json) -> Json:
        place = self._admit("create", channel)
        text, labels = _checked(body)
        nonce = body.get("nonce", "")
        if len(nonce) > NONCE_MAX:
            raise DiscordRefusal(400, 50035, "Invalid Form Body")
        known = self._nonces.get(nonce) if body.get("enforce_nonce") else None
        if known is None:
            known = str(next(self._numbers))
            self._nonces[nonce] = known
            self.show(place, known, text, labels)
        return {"id": known}

    def _change(self, channel: str, message: str, body: Json) -> Json:
        place = self._admit("change", channel)
        text, labels = _checked(body)
        found = self.message(place, message)
        if found is None:
            raise DiscordRefusal(404, 10008, "Unknown Message")
        found.text = text
        found.texts.append(text)
        found.buttons = tuple(each for each in found.buttons if each.label in labels)
        return {"id": message}

    def _admit(self, what: str, channel: str) -> str:
        is_thread = channel == self.thread.thread
        place = place_of(self.thread.id, channel) if is_thread else place_of(channel)
        wait_s = self.wait_s(what, place)
        if wait_s > 0:
            self.refused += 1
            told: Json = {"retry_after": wait_s, "global": self.limit_is_global}
            raise DiscordRefusal(429, 0, "You are being rate limited.", **told)
        return place


def _checked(body: Json) -> tuple[str, list[str]]:
    text = body.get("content", "")
    if not text:
        raise DiscordRefusal(400, 50006, "Cannot send an empty message")
    buttons = [each for row in body.get("components", []) for each in row["components"]]
    too_long = any(len(b["label"]) > LABEL_MAX or len(b["custom_id"]) > ID_MAX for b in buttons)
    if len(text) > TEXT_MAX or too_long:
        raise DiscordRefusal(400, 50035, "Invalid Form Body")
    return text, [button["custom_id"].partition(":")[2] for button in buttons]


def _where(chat: ChatAddress) -> Json:
    guild = {"guild_id": "1"} if chat.kind is ChatKind.GROUP else {}
    return {"channel_id": chat.thread or chat.id, **guild}


def _user(person: Person) -> Json:
    return {"id": person.id, "username": person.name.lower(), "global_name": person.name}
