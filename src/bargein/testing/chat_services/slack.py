"""Slack's Web API and socket mode, as https://docs.slack.dev describes them."""

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import anyio
from aiohttp import web

from bargein.channels.contract import ChatAddress, ChatKind, ChatRate, Person
from bargein.channels.slack import SlackChannel
from bargein.testing.channel_conformance.platform import BotMessage
from bargein.testing.chat_services.service import RATE, ChatService, place_of

TOKEN, APP_TOKEN = "xoxb-test", "xapp-test"
BOT = "UBOT"
TEXT_MAX = 12_000
LABEL_MAX = 75
SECTION_MAX = 3000
ROOT = "1700000000.000001"
READS = ("users.info",)


class SlackRefusal(Exception):
    """`error` is one of the words that the method's page lists."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class FakeSlack(ChatService):
    """The private chat and the group are threads, where answers are streamed; the chats of `chats`
    are not."""

    name = "slack"
    alice = Person("U11", "Alice")
    bob = Person("U12", "Bob")
    stranger = Person("U666", "Alice")
    private = ChatAddress("D11", ChatKind.PRIVATE, ROOT)
    group = ChatAddress("C1", ChatKind.GROUP, ROOT)
    theirs = ChatAddress("D666")

    def __init__(self, rate: ChatRate = RATE) -> None:
        super().__init__(rate)
        self.streaming: set[str] = set()
        self.streamed: list[str] = []
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        """The methods that the bot has called."""
        self._events: list[dict[str, Any]] = []
        self._unacknowledged: dict[str, dict[str, Any]] = {}
        self._sockets: list[web.WebSocketResponse] = []
        self._unsent: list[dict[str, Any]] = []
        self._more = anyio.Event()
        self._numbers = itertools.count(100)

    def open_channel(self) -> SlackChannel:
        api = f"{self.address}/api/"
        return SlackChannel(self.name, TOKEN, app_token=APP_TOKEN, api=api, rate=self.rate)

    async def chats(self, count: int) -> list[ChatAddress]:
        return [ChatAddress(f"D5{number:04}") for number in range(min(count, self.chats_max))]

    async def is_delivered(self) -> bool:
        return not self._unacknowledged

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
        event = self.said(chat, person, text, addressed=addressed)
        if album is not None:
            name = f"{event['ts']}.jpg"
            self.files[name] = b"a photo"
            url = f"{self.address}/files/{name}"
            file = {"name": name, "mimetype": "image/jpeg", "size": 7, "url_private_download": url}
            event |= {"subtype": "file_share", "files": [file]}
        self._happened("events_api", _event(event))
        return str(event["ts"])

    def said(
        self, chat: ChatAddress, person: Person, text: str, *, addressed: bool = True
    ) -> dict[str, Any]:
        """The event of a message, as Slack sends it."""
        is_group = chat.kind is ChatKind.GROUP
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        event = {
            "type": "message",
            "channel": chat.id,
            "channel_type": "channel" if is_group else "im",
            "user": person.id,
            "text": f"<@{BOT}> {escaped}" if is_group and addressed else escaped,
            "ts": self._ts(),
        }
        return event | ({"thread_ts": chat.thread} if chat.thread else {})

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None:
        said = {**self.said(chat, person, text), "ts": message}
        said["edited"] = {"user": person.id, "ts": self._ts()}
        changed = {"subtype": "message_changed", "message": said, "ts": self._ts()}
        about = {key: said[key] for key in ("type", "channel", "channel_type")}
        self._happened("events_api", _event({**about, **changed}))

    async def press(self, chat: ChatAddress, person: Person, message: str, label: str) -> None:
        payload = {
            "type": "block_actions",
            "user": {"id": person.id},
            "channel": {"id": chat.id},
            "message": {"ts": message} | ({"thread_ts": chat.thread} if chat.thread else {}),
            "actions": [{"action_id": "choice0", "value": label, "action_ts": self._ts()}],
        }
        self._happened("interactive", payload)

    async def redeliver(self) -> None:
        """As after acknowledgements that got lost: new envelopes, the newest first."""
        for envelope in reversed(list(self._events)):
            self._enqueue({**envelope, "envelope_id": f"e{next(self._numbers)}"})

    def _happened(self, kind: str, payload: dict[str, Any]) -> None:
        number = f"e{next(self._numbers)}"
        envelope = {"envelope_id": number, "type": kind, "payload": payload}
        self._events.append(envelope)
        self._enqueue(envelope)

    def _enqueue(self, envelope: dict[str, Any]) -> None:
        self._unacknowledged[envelope["envelope_id"]] = envelope
        self._unsent.append(envelope)
        self._more.set()

    def wake(self) -> None:
        self._more.set()

    def _ts(self) -> str:
        return f"1700000000.{next(self._numbers):06}"

    # What the bot calls

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/{method}", self._call),
            web.get("/api/{method}", self._call),
            web.get("/socket", self._socket),
            web.get("/files/{name}", self._file),
        ]

    async def _file(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403)
        return web.Response(body=self.files[request.match_info["name"]])

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        """What was sent to a socket that closed before it was acknowledged goes to the next."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "hello", "num_connections": 1})
        self._unsent = list(self._unacknowledged.values())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver, socket)
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._unacknowledged.pop(json.loads(message.data)["envelope_id"], None)
            tasks.cancel_scope.cancel()
        return socket

    async def _deliver(self, socket: web.WebSocketResponse) -> None:
        while not socket.closed:
            while self.held or not self._unsent:
                self._more = anyio.Event()
                await self._more.wait()
            unsent, self._unsent = self._unsent, []
            for envelope in unsent:
                await socket.send_json(envelope)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        given: dict[str, Any] = await request.json() if request.can_read_body else {}
        if method in READS:
            given = dict(request.query)  # it takes no JSON
        self.asked.append(method)
        wanted = APP_TOKEN if method == "apps.connections.open" else TOKEN
        if request.headers.get("Authorization") != f"Bearer {wanted}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        place = place_of(given.get("channel", ""), given.get("thread_ts", ""))
        if method.startswith("chat."):
            wait_s = self.wait_s(method, place)
            if wait_s > 0:
                answer = {"ok": False, "error": "ratelimited"}
                after = {"Retry-After": str(math.ceil(wait_s))}
                return web.json_response(answer, status=429, headers=after)
        try:
            result = self._done(method, given, place)
        except SlackRefusal as refusal:
            return web.json_response({"ok": False, "error": refusal.error})
        if method in ("chat.postMessage", "chat.startStream"):
            await self.break_if_asked(request)
        return web.json_response({"ok": True, **result})

    def _done(self, method: str, given: Mapping[str, Any], place: str) -> dict[str, Any]:
        match method:
            case "auth.test":
                return {"user_id": BOT, "user": "bot", "team": "Team", "team_id": "T1"}
            case "apps.connections.open":
                return {"url": f"{self.address.replace('http', 'ws', 1)}/socket"}
            case "users.info":
                people = (self.alice, self.bob, self.stranger)
                names = {person.id: person.name for person in people}
                if given.get("user") not in names:
                    raise SlackRefusal("user_not_found")
                return {"user": {"real_name": names[given["user"]]}}
            case "chat.postMessage":
                text, labels = _content(given)
                return {"ts": self.show(place, self._ts(), text, labels).id}
            case "chat.update":
                return self._update(given)
            case "chat.startStream" | "chat.appendStream" | "chat.stopStream":
                return self._stream(method, given, place)
            case "assistant.threads.setStatus":
                return {}
        raise SlackRefusal("unknown_method")

    def _update(self, given: Mapping[str, Any]) -> dict[str, Any]:
        text, labels = _content(given)
        found = self._found(given)
        if found.id in self.streaming:
            raise SlackRefusal("streaming_state_conflict")
        found.text = text
        found.texts.append(text)
        found.buttons = tuple(each for each in found.buttons if each.label in labels)
        return {"ts": found.id}

    def _stream(self, method: str, given: Mapping[str, Any], place: str) -> dict[str, Any]:
        text = given.get("markdown_text", "")
        if len(text) > TEXT_MAX:
            raise SlackRefusal("msg_too_long")
        if method == "chat.startStream":
            if not given.get("thread_ts") and given["channel"].startswith("D"):
                raise SlackRefusal("invalid_thread_ts")
            wanted = ("recipient_team_id", "recipient_user_id")
            if given["channel"].startswith("C") and not all(given.get(each) for each in wanted):
                raise SlackRefusal("missing_recipient_user_id")
            shown = self.show(place, self._ts(), text, [])
            self.streaming.add(shown.id)
            self.streamed.append(shown.id)
            return {"ts": shown.id}
        found = self._found(given)
        if found.id not in self.streaming:
            raise SlackRefusal("message_not_in_streaming_state")
        found.text += text
        found.texts.append(found.text)
        if method == "chat.stopStream":
            self.streaming.discard(found.id)
        return {"ts": found.id}

    def _found(self, given: Mapping[str, Any]) -> BotMessage:
        found = next((each for each in self.messages() if each.id == given.get("ts")), None)
        if found is None:
            raise SlackRefusal("message_not_found")
        return found


def _event(event: dict[str, Any]) -> dict[str, Any]:
    return {"type": "event_callback", "team_id": "T1", "event": event}


def _content(given: Mapping[str, Any]) -> tuple[str, list[str]]:
    blocks = given.get("blocks", [])
    sections = [each["text"] for each in blocks if each["type"] == "section"]
    if any(each["type"] != "plain_text" or len(each["text"]) > SECTION_MAX for each in sections):
        raise SlackRefusal("invalid_blocks")
    if "<" in given.get("text", ""):
        raise SlackRefusal("invalid_text")  # Slack would call people
    text = "".join(each["text"] for each in blocks if each["type"] == "markdown")
    text += "".join(each["text"] for each in sections)
    if not text:
        raise SlackRefusal("no_text")
    if len(text) > TEXT_MAX:
        raise SlackRefusal("msg_too_long")
    rows = [each["elements"] for each in blocks if each["type"] == "actions"]
    buttons = [button for row in rows for button in row]
    if any(len(button["text"]["text"]) > LABEL_MAX for button in buttons):
        raise SlackRefusal("invalid_blocks")
    return text, [button["value"] for button in buttons]
