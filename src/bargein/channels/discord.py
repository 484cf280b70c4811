"""Discord: its gateway for what people do, its HTTP API for what the bot says.

A direct message is a private chat, a channel of a server a group; a thread is a session of its own.
`enforce_nonce` makes the nonce an idempotency key for the few minutes that Discord remembers it.

A connection that broke is resumed: the gateway delivers again what was not durable here. It keeps
that for a short while only. So the cursor has the last message handed over from each channel, and
when the gateway begins a new session the bot first asks each channel for later messages. It does
not see edits made meanwhile. While the bot is away, Discord shows people that presses and slash
commands fail.

Discord counts the calls of a bot in all chats together, and shuts out an address that makes too
many: calls above `CALLS_PER_S` are refused here.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from anyio.abc import TaskGroup

from bargein.channels.bucket import Pace
from bargein.channels.contract import (
    MALFORMED,
    ChatAddress,
    ChatKind,
    ChatMessage,
    ChatRate,
    Desk,
    HookAnswer,
    NotDelivered,
    NotReached,
    Offer,
    Person,
    RetryLater,
    Traits,
    Update,
    UpdateKind,
    not_understood,
)
from bargein.errors import UserError, WorldError

API = "https://discord.com/api/v10"
AGENT = "DiscordBot (bargein, 0.1)"
INTENTS = 1 << 0 | 1 << 9 | 1 << 12 | 1 << 15
"""Servers, messages in them, direct messages, and what the messages say."""
RATE = ChatRate(per_s=1.0, burst=5)
NONCE_LASTS_S = 120.0
"""Discord says that it remembers a nonce for "a few minutes"."""
AGE_MAX_S = 300.0
CALLS_PER_S = 45.0
"""Discord takes 50 of a bot, and closes its doors for a while after 10,000 refusals."""
RESUMES_MAX = 3
STARTS_LEFT = 10
"""Discord lets a bot begin 1,000 sessions a day, and takes its token away if it begins more."""
EVENT_BYTES_MAX = 1 << 26
"""A large server is one event."""
CLOSE_S = 1.0
GOES_ON = 4000
"""How a connection is closed whose session goes on. An ordinary close would end it."""
MESSAGE_TYPES = (0, 19)
"""What people say, and replies. The others say that somebody joined, pinned, and the like."""
REQUEST_S = 30
BAD_TOKEN_S = 60.0
PAGE = 100
CHANNELS_MAX = 10_000
LABEL_MAX = 80
ID_MAX = 100
ROW_MAX = 5
BUTTONS_MAX = 25
REFUSED = (400, 403, 404, 405, 413)
DIRECT = 1
HINT_S = 5.0
INTERACTION = "i"
CLOSED = {
    4004: ": it does not know this token",
    4013: ": it does not know what the bot asks for (intents)",
    4014: ": turn on Message Content Intent for the bot at discord.com/developers",
}
THREADS = (10, 11, 12)
WORDS = [{"type": 3, "name": "words", "description": "what to say", "required": False}]
COMMANDS: list[dict[str, Any]] = [
    {"name": "stop", "description": "stop the answer and hold the waiting messages"},
    {"name": "queue", "description": "answer this after the running turn", "options": WORDS},
    {"name": "redirect", "description": "stop what runs and answer this", "options": WORDS},
    {"name": "continue", "description": "release the held messages"},
    {"name": "undo", "description": "take back the last turn"},
    {"name": "status", "description": "what is going on"},
    {"name": "new", "description": "begin a new conversation"},
    {"name": "help", "description": "what the bot understands"},
]

_MARK = re.compile(r"[\\`*_~|<>#@:()\[\]+.-]")

Json = dict[str, Any]


def open_channel(name: str, options: Mapping[str, str], folder: Path) -> "DiscordChannel":
    return DiscordChannel(
        name,
        options["token"],
        public_key=options.get("public_key", ""),
        api=options.get("api", ""),
    )


class DiscordChannel:
    """`public_key` is the application's: with it Discord may deliver presses and slash commands to
    `/channels/NAME` instead of the gateway. Messages always come through the gateway."""

    def __init__(
        self,
        name: str,
        token: str,
        *,
        public_key: str = "",
        api: str = "",
        rate: ChatRate = RATE,
        calls_per_s: float = CALLS_PER_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._calls_per_s = calls_per_s
        self._pace: Pace | None = None
        self._session: GatewaySession | None = None
        self._hints: TaskGroup | None = None
        # Discord takes 2000: there is room for the mark of a message that is sent again.
        self.traits = Traits(text_max=1800, keyed=True, key_lasts_s=NONCE_LASTS_S, rate=rate)
        self._is_signed = _signatures_of(name, public_key) if public_key else None
        self._now = now
        self._desk: Desk | None = None
        self._token = token
        self._api = (api or API).rstrip("/")
        self._http: aiohttp.ClientSession | None = None
        self._me = ""
        self._parents: dict[str, str] = {}
        """The channel that each thread is in; empty for what is no thread."""

    async def check(self) -> str:
        me = await self._call("GET", "/users/@me")
        return str(me["username"])

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()

    # In

    async def run(self, desk: Desk) -> None:
        if not self._me:
            application = (await self._call("GET", "/applications/@me"))["id"]
            await self._call("PUT", f"/applications/{application}/commands", COMMANDS)
            self._me = (await self._call("GET", "/users/@me"))["id"]
        while True:
            asked, code = await self._connect(desk)
            if not asked:
                why = CLOSED.get(code, "")
                raise WorldError(f"Discord closed the connection{why}", retryable=True)

    async def _connect(self, desk: Desk) -> tuple[bool, int]:
        """Read one connection to its end. Returns whether Discord asks for another one at once, as
        it does now and then, and how the connection was closed."""
        session = self._session
        if session is not None and session.tries >= RESUMES_MAX:
            session = self._session = None
        if session is not None:
            session.tries += 1
        address = await self._new_gateway() if session is None else session.address
        async with self._opened().ws_connect(
            f"{address}/?v=10&encoding=json",
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            max_msg_size=EVENT_BYTES_MAX,
        ) as socket:
            hello = await socket.receive_json()
            beat_s = hello["d"]["heartbeat_interval"] / 1000
            heart = Heart(socket, beat_s, session.seq if session is not None else None)
            await socket.send_json(self._introduction())
            self._desk = desk
            try:
                async with anyio.create_task_group() as tasks:
                    self._hints = tasks
                    tasks.start_soon(heart.beat)
                    asked = await self._read(desk, socket, heart)
                    tasks.cancel_scope.cancel()
            except Exception:
                await socket.close(code=GOES_ON)
                raise
            finally:
                self._desk = self._hints = None
                if self._session is not None:
                    self._session.seq = heart.seq
            await socket.close(code=GOES_ON)
            return asked, socket.close_code or 0

    async def _new_gateway(self) -> str:
        told = await self._call("GET", "/gateway/bot")
        left = told.get("session_start_limit", {}).get("remaining")
        if left is not None and left <= STARTS_LEFT:
            why = f"this bot may begin only {left} more sessions today; later it is tried again"
            raise WorldError(f"Discord: {why}", retryable=True)
        return str(told["url"])

    def _introduction(self) -> Json:
        session = self._session
        if session is not None:
            again = {"token": self._token, "session_id": session.id, "seq": session.seq}
            return {"op": 6, "d": again}
        properties = {"os": "linux", "browser": "bargein", "device": "bargein"}
        return {"op": 2, "d": {"token": self._token, "intents": INTENTS, "properties": properties}}

    async def hook(self, headers: Mapping[str, str], body: bytes) -> HookAnswer:
        """The signature covers the time, and an old one is refused. Nobody sees an answer for a
        stranger: Discord tells them that the application did not respond."""
        signature = headers.get("x-signature-ed25519", "")
        at = headers.get("x-signature-timestamp", "")
        if self._is_signed is None or not self._is_signed(signature, at.encode() + body):
            return HookAnswer(401)
        if not at.isdecimal() or abs(self._now() - int(at)) > AGE_MAX_S:
            return HookAnswer(401)
        try:
            interaction = json.loads(body)
            if interaction["type"] == 1:
                return _json_answer({"type": 1})
        except MALFORMED:
            return HookAnswer(400)
        if self._desk is None:
            return HookAnswer(503)
        taken = await self._desk.receive(await self._updates_of("INTERACTION_CREATE", interaction))
        return _json_answer(_acknowledgement(interaction)) if taken else HookAnswer(202)

    async def _read(
        self, desk: Desk, socket: aiohttp.ClientWebSocketResponse, heart: "Heart"
    ) -> bool:
        """Hands over all that is there at once, so that a stop need not wait. Returns when the
        connection is over: True if Discord asks for another one."""
        while (payloads := await _read_all(socket)) is not None:
            told = [each for each in payloads if each["op"] == 0]
            events = [(each["t"], each["d"]) for each in told]
            for each in told:
                if each["t"] == "READY":
                    self._session = None
                    await desk.reached()
                    await self._catch_up(desk)
                    # From here on nothing is missing, and the session may be resumed.
                    self._session = _session_of(each["d"])
                    heart.seq = each["s"]
                elif each["t"] == "RESUMED" and self._session is not None:
                    self._session.tries = 0
                    await desk.reached()
            await self._hand_over(desk, events)
            for payload in payloads:
                if payload["op"] == 7:
                    return True
                if payload["op"] == 9:
                    if not payload.get("d"):
                        self._session = None
                    return False
                await heart.heard(payload)
        return False

    async def _catch_up(self, desk: Desk) -> None:
        """A message that is asked for does not say whether it is in a server; its channel does."""
        for channel, last in (json.loads(desk.cursor) if desk.cursor else {}).items():
            after = last
            while after:
                path = f"/channels/{channel}/messages?after={after}&limit={PAGE}"
                try:
                    page = await self._call("GET", path)
                    about = await self._call("GET", f"/channels/{channel}") if page else {}
                except NotDelivered:
                    break  # the channel is gone, or the bot was removed
                page.sort(key=lambda message: int(message["id"]))
                guild = {} if about.get("type") == DIRECT else {"guild_id": "0"}
                await self._hand_over(
                    desk, [("MESSAGE_CREATE", {**message, **guild}) for message in page]
                )
                after = page[-1]["id"] if len(page) == PAGE else ""

    async def _hand_over(self, desk: Desk, events: Sequence[tuple[str, Json]]) -> None:
        last: dict[str, str] = json.loads(desk.cursor) if desk.cursor else {}
        updates: list[Update] = []
        for kind, event in events:
            found = await self._updates_of(kind, event)
            updates += found
            if kind == "MESSAGE_CREATE" and found:
                channel = event["channel_id"]
                newest = max(last.pop(channel, "0"), event["id"], key=int)
                last[channel] = newest
        while len(last) > CHANNELS_MAX:
            del last[next(iter(last))]
        if not updates:
            return
        taken = {each.key for each in await desk.receive(updates, cursor=json.dumps(last))}
        for kind, event in events:
            is_taken = kind == "INTERACTION_CREATE" and f"{INTERACTION}{event.get('id')}" in taken
            if is_taken and self._hints is not None:
                # Reading goes on: a stop may come next.
                self._hints.start_soon(self._acknowledge, event)

    async def _acknowledge(self, interaction: Json) -> None:
        """Discord shows a failure for what is not acknowledged. Nothing else is lost."""
        path = f"/interactions/{interaction['id']}/{interaction['token']}/callback"
        try:
            with anyio.move_on_after(HINT_S):
                await self._call("POST", path, _acknowledgement(interaction))
        except (WorldError, aiohttp.ClientError, TimeoutError):
            pass

    async def _updates_of(self, kind: str, event: Json) -> list[Update]:
        try:
            self._learn(kind, event)
            return await self._read_event(kind, event)
        except (*MALFORMED, NotDelivered) as error:
            # Like no documentation, or in a thread that is gone already.
            not_understood(self.name, error)
            return []

    def _learn(self, kind: str, event: Json) -> None:
        """Where the channels and threads of a server are: so nobody has to be asked for each."""
        if kind == "GUILD_CREATE":
            found = [*event.get("channels", ()), *event.get("threads", ())]
        else:
            found = [event] if kind in ("CHANNEL_CREATE", "THREAD_CREATE") else []
        for about in found[:CHANNELS_MAX]:
            self._keep_parent(about["id"], about)

    def _keep_parent(self, channel: str, about: Json) -> None:
        if len(self._parents) >= CHANNELS_MAX:
            self._parents.clear()
        is_thread = about.get("type") in THREADS
        self._parents[channel] = str(about.get("parent_id") or "") if is_thread else ""

    async def _read_event(self, kind: str, event: Json) -> list[Update]:
        if kind in ("MESSAGE_CREATE", "MESSAGE_UPDATE"):
            return await self._said(kind, event)
        if kind != "INTERACTION_CREATE":
            return []
        user = event.get("user") or event["member"]["user"]
        chat, who, data = await self._chat_of(event), _person(user), event["data"]
        if event["type"] == 2:
            said = [f"/{data['name']}", *(each["value"] for each in data.get("options", []))]
            key = f"{INTERACTION}{event['id']}"
            return [Update(key, chat, who, UpdateKind.COMMAND, " ".join(said))]
        if event["type"] != 3:
            return []
        text, key = data["custom_id"].partition(":")[2], f"{INTERACTION}{event['id']}"
        target = event["message"]["id"]
        return [Update(key, chat, who, UpdateKind.PRESSED, text, target=target)]

    async def _said(self, kind: str, message: Json) -> list[Update]:
        author = message.get("author")
        if author is None or author.get("bot") or author["id"] == self._me:
            return []
        if message.get("type", 0) not in MESSAGE_TYPES:
            return []
        edited = message.get("edited_timestamp")
        if kind == "MESSAGE_UPDATE" and not edited:
            return []  # Discord added a picture of a link
        content = message.get("content", "")
        referenced = message.get("referenced_message") or {}
        mentioned = any(each["id"] == self._me for each in message.get("mentions", []))
        return [
            Update(
                message["id"],
                await self._chat_of(message),
                _person(author),
                UpdateKind.EDITED if kind == "MESSAGE_UPDATE" else UpdateKind.SAID,
                self._without_name(content),
                tuple(_offer_of(each) for each in message.get("attachments", [])),
                target=referenced.get("id", ""),
                version=datetime.fromisoformat(edited).timestamp() if edited else 0.0,
                addressed=mentioned or referenced.get("author", {}).get("id") == self._me,
            )
        ]

    def _without_name(self, content: str) -> str:
        """What follows a mention of the bot at the beginning, so that "@bot stop" is a stop."""
        for mention in (f"<@{self._me}>", f"<@!{self._me}>"):
            content = content.removeprefix(mention).strip() or content
        return content

    async def _chat_of(self, event: Json) -> ChatAddress:
        channel = event["channel_id"]
        if "guild_id" not in event:
            return ChatAddress(channel)
        if channel not in self._parents:
            self._keep_parent(channel, await self._call("GET", f"/channels/{channel}"))
        parent = self._parents[channel]
        if parent:
            return ChatAddress(parent, ChatKind.GROUP, channel)
        return ChatAddress(channel, ChatKind.GROUP)

    # Out

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        nonce = hashlib.sha256(message.key.encode()).hexdigest()[:25]
        body = {**_content(message), "nonce": nonce, "enforce_nonce": True}
        self._admit(hint=message.preview)
        sent = await self._call("POST", f"/channels/{_place(chat)}/messages", body)
        return str(sent["id"])

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        path = f"/channels/{_place(chat)}/messages/{platform_id}"
        self._admit(hint=message.preview)
        await self._call("PATCH", path, _content(message))

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        return None

    async def typing(self, chat: ChatAddress) -> None:
        self._admit(hint=True)
        await self._call("POST", f"/channels/{_place(chat)}/typing", {})

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        async with self._opened().get(offer.id) as answer:
            if answer.status != 200:
                raise NotDelivered(f"Discord answers {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > bytes_max:
                    raise NotDelivered(f"it has more than {bytes_max} bytes")
        return bytes(data)

    def _admit(self, *, hint: bool) -> None:
        if self._pace is None:
            self._pace = Pace(self._calls_per_s)
        self._pace.admit(hint=hint)

    def _opened(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=REQUEST_S)
            self._http = aiohttp.ClientSession(timeout=timeout, headers={"User-Agent": AGENT})
        return self._http

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Says what a refusal means. Anything else that goes wrong leaves the outcome unknown."""
        headers = {"Authorization": f"Bot {self._token}"}
        url = self._api + path
        try:
            async with self._opened().request(method, url, json=body, headers=headers) as answer:
                if answer.status == 204:
                    return {}
                told = await answer.json() if answer.status < 500 else {}
        except aiohttp.ClientConnectorError:
            raise NotReached("Discord") from None
        if answer.status < 300:
            return told
        why = f"Discord: {answer.status} {told.get('message', '')}"
        if answer.status == 429:
            after_s = float(told.get("retry_after", 1.0))
            if told.get("global") and self._pace is not None:
                self._pace.hold(after_s)
            raise RetryLater(after_s)
        if answer.status == 401 and path.endswith("/messages"):
            # Nothing was sent. The operator may give the bot a new token.
            raise RetryLater(BAD_TOKEN_S)
        if answer.status in REFUSED:
            raise NotDelivered(why)
        raise WorldError(why, retryable=True)


class GatewaySession:
    """A session that can be resumed. `seq` is that of the last event that is durable here; `tries`
    counts the connections that were to resume it and did not."""

    def __init__(self, session: str, address: str) -> None:
        self.id = session
        self.address = address
        self.seq: int | None = None
        self.tries = 0


def _session_of(ready: Json) -> GatewaySession | None:
    address = ready.get("resume_gateway_url")
    return GatewaySession(ready["session_id"], address) if address else None


class Heart:
    """The heartbeat of a connection. It tells Discord how far the bot has come, and notices a
    connection that is dead. `seq` is the number of the last event that is durable here."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, beat_s: float, seq: int | None
    ) -> None:
        self._socket = socket
        self._beat_s = beat_s
        self.seq = seq
        self._answered = True

    async def beat(self) -> None:
        while True:
            await anyio.sleep(self._beat_s)
            if not self._answered:
                await self._socket.close(code=GOES_ON)
                return
            self._answered = False
            await self._send()

    async def heard(self, payload: Json) -> None:
        """Called when what the payload says is durable."""
        if payload.get("s") is not None:
            self.seq = payload["s"]
        if payload["op"] == 11:
            self._answered = True
        elif payload["op"] == 1:
            await self._send()

    async def _send(self) -> None:
        await self._socket.send_json({"op": 1, "d": self.seq})


async def _read_all(socket: aiohttp.ClientWebSocketResponse) -> list[Json] | None:
    """What is there, at least one payload. None when the connection is over."""
    payloads: list[Json] = []
    while len(payloads) < PAGE:
        try:
            # The first is waited for; others only if they are there already.
            with anyio.fail_after(0.001 if payloads else None):
                message = await socket.receive()
        except TimeoutError:
            return payloads
        if message.type is not aiohttp.WSMsgType.TEXT:
            return payloads or None
        payloads.append(json.loads(message.data))
    return payloads


def _acknowledgement(interaction: Json) -> Json:
    if interaction["type"] != 2:
        return {"type": 6}
    return {"type": 4, "data": {"content": f"/{interaction['data']['name']}", "flags": 64}}


def _json_answer(answer: Json) -> HookAnswer:
    return HookAnswer(200, json.dumps(answer).encode(), "application/json")


def _signatures_of(name: str, public_key: str) -> Callable[[str, bytes], bool]:
    """Returns what checks a signature of this key."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise UserError(
            f"channel {name}: public_key needs the library cryptography; run  "
            "pip install 'bargein[discord]'"
        ) from None
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
    except ValueError:
        raise UserError(f"channel {name}: public_key is 64 hexadecimal digits") from None

    def is_signed(signature: str, words: bytes) -> bool:
        try:
            key.verify(bytes.fromhex(signature), words)
        except (InvalidSignature, ValueError):
            return False
        return True

    return is_signed


def _escaped(text: str) -> str:
    """Without any mark that formats, hides or mentions. At most twice as long."""
    return _MARK.sub(r"\\\g<0>", text)


def _content(message: ChatMessage) -> Json:
    """Nobody is called by what a model writes. The id of a button has its whole label: the label
    that people see may be cut."""
    buttons = [
        {
            "type": 2,
            "style": 1,
            "label": each.label[:LABEL_MAX],
            "custom_id": f"{number}:{each.label}"[:ID_MAX],
        }
        for number, each in enumerate(message.buttons[:BUTTONS_MAX])
    ]
    rows = [buttons[at : at + ROW_MAX] for at in range(0, len(buttons), ROW_MAX)]
    return {
        "content": _escaped(message.text) if message.exact else message.text,
        "allowed_mentions": {"parse": []},
        "components": [{"type": 1, "components": row} for row in rows],
    }


def _place(chat: ChatAddress) -> str:
    return chat.thread or chat.id


def _person(user: Json) -> Person:
    return Person(user["id"], user.get("global_name") or user.get("username", ""))


def _offer_of(file: Json) -> Offer:
    kind = file.get("content_type") or "application/octet-stream"
    return Offer(file["url"], file.get("filename", "file"), kind, file.get("size"))
