"""Slack, through slack-sdk: socket mode, or the Events API if there is a signing secret.

A direct message is a private chat; in a channel each thread is a session, and a mention outside of
one begins a thread. An answer in a thread is streamed by Slack's means (`chat.startStream`): the
streamed message becomes the answer. Elsewhere it is a message that is edited. Slack has no
idempotency keys.

Slack keeps what was not acknowledged and delivers it again; an envelope is acknowledged after its
updates are durable. Its programs keep slash commands for themselves, so `!stop` is `/stop`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import anyio
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient

from bargein.channels import words
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

API = "https://slack.com/api/"
RATE = ChatRate(per_s=1.0, burst=3)
REQUEST_S = 30
LABEL_MAX = 75
SECTION_MAX = 3000
NAMES_MAX = 10_000
BAD_TOKEN_S = 60.0
NAME_S = 1.0
"""Slack delivers again what is not acknowledged within three seconds."""
CLOSE_S = 1.0
VALUE_MAX = 2000
BATCH_MAX = 100
UNKNOWN = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")
BAD_TOKEN = ("invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive")
READS = ("users.info",)
"""Methods that take no JSON."""
SAID = (None, "file_share", "thread_broadcast", "me_message")


def open_channel(name: str, options: Mapping[str, str], folder: Path) -> "SlackChannel":
    return SlackChannel(
        name,
        options["token"],
        app_token=options.get("app_token", ""),
        signing_secret=options.get("signing_secret", ""),
        api=options.get("api", ""),
    )


class SlackChannel:
    """`app_token` opens a socket to Slack; without it Slack sends requests to `/channels/NAME` of
    the server, signed with `signing_secret`."""

    def __init__(
        self,
        name: str,
        token: str,
        *,
        app_token: str = "",
        signing_secret: str = "",
        api: str = "",
        rate: ChatRate = RATE,
    ) -> None:
        if not app_token and not signing_secret:
            raise UserError(
                f"channel {name}: Slack needs an app_token (socket mode) or a signing_secret"
            )
        self.name = name
        self.traits = Traits(
            text_max=4000, previews=True, previews_stay=True, replies=False, rate=rate
        )
        self._token = token
        self._app_token = app_token
        self._verifier = SignatureVerifier(signing_secret) if signing_secret else None
        self._api = api or API
        self._http: aiohttp.ClientSession | None = None
        self._client: AsyncWebClient | None = None
        self._me = ""
        self._team = ""
        self._names: dict[str, str] = {}
        self._asked: dict[tuple[str, str], str] = {}
        """Who spoke last in a thread: Slack wants to know whom a stream is for."""
        self._streams: dict[str, tuple[str, str]] = {}
        """The streams that are open, by key: the message's ts, and what it says."""
        self._desk: Desk | None = None

    async def check(self) -> str:
        told = await self._call("auth.test")
        return f"{told['user']} in {told['team']}"

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()

    # In

    async def run(self, desk: Desk) -> None:
        told = await self._call("auth.test")
        self._me, self._team = told["user_id"], told["team_id"]
        if self._app_token:
            await self._read_socket(desk)
            raise WorldError("Slack closed the socket", retryable=True)
        await desk.reached()
        self._desk = desk
        try:
            await anyio.sleep_forever()
        finally:
            self._desk = None

    async def _read_socket(self, desk: Desk) -> None:
        """Hands over all that is there at once, so that a stop need not wait; then acknowledges.
        Slack closes a socket now and then, and another one takes over at once."""
        while True:
            address = (await self._call("apps.connections.open", token=self._app_token))["url"]
            assert self._http is not None
            closes = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
            async with self._http.ws_connect(
                address, heartbeat=REQUEST_S, timeout=closes
            ) as socket:
                await desk.reached()
                while (envelopes := await _read_all(socket)) is not None:
                    updates: list[Update] = []
                    for envelope in envelopes:
                        payload = envelope.get("payload")
                        updates += await self._updates_of(envelope.get("type", ""), payload)
                    await desk.receive(updates)
                    for envelope in envelopes:
                        await socket.send_json({"envelope_id": envelope["envelope_id"]})

    async def hook(self, headers: Mapping[str, str], body: bytes) -> HookAnswer:
        """The signature covers the time, and an old one is refused."""
        if not self._is_signed(headers, body):
            return HookAnswer(401)
        try:
            if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
                payload = json.loads(parse_qs(body.decode())["payload"][0])
            else:
                payload = json.loads(body)
        except (ValueError, KeyError):
            return HookAnswer(400)
        if not isinstance(payload, dict):
            return HookAnswer(400)
        if payload.get("type") == "url_verification":
            return HookAnswer(body=str(payload.get("challenge", "")).encode())
        if self._desk is None:
            return HookAnswer(503)
        kind = "events_api" if payload.get("type") == "event_callback" else "interactive"
        await self._desk.receive(await self._updates_of(kind, payload))
        return HookAnswer()

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        try:
            return self._verifier is not None and self._verifier.is_valid_request(
                body, dict(headers)
            )
        except (ValueError, OverflowError):  # a time that is no number, a body that is no text
            return False

    async def _updates_of(self, kind: str, payload: Any) -> Sequence[Update]:
        try:
            return await self._read(kind, payload)
        except MALFORMED as error:
            not_understood(self.name, error)
            return []

    async def _read(self, kind: str, payload: Any) -> Sequence[Update]:
        if kind == "interactive":
            pressed = payload.get("type") == "block_actions"
            return [await self._pressed(payload, each) for each in payload["actions"] if pressed]
        event = payload.get("event", {}) if kind == "events_api" else {}
        if event.get("type") not in ("message", "app_mention"):
            return []
        subtype = event.get("subtype")
        if subtype == "message_changed":
            message = {**event["message"], "channel": event["channel"]}
            message["channel_type"] = event.get("channel_type")
            return await self._said(message, UpdateKind.EDITED)
        return await self._said(event, UpdateKind.SAID) if subtype in SAID else []

    async def _said(self, event: Any, kind: UpdateKind) -> Sequence[Update]:
        sender = event.get("user")
        if not sender or sender == self._me or event.get("bot_id"):
            return []
        raw = event.get("text", "")
        mention = f"<@{self._me}>"
        text = words.with_slash(_plain(raw.strip().removeprefix(mention).strip() or raw))
        chat = _chat_of(event)
        in_thread = event.get("thread_ts") not in (None, event["ts"])
        if in_thread and chat.kind is ChatKind.PRIVATE and event.get("parent_user_id") == self._me:
            # A thread below a message of ours: it belongs to the conversation that is in.
            chat = ChatAddress(chat.id)
        self._asked[chat.id, chat.thread] = sender
        while len(self._asked) > NAMES_MAX:
            del self._asked[next(iter(self._asked))]
        edited = event.get("edited") or {}
        addressed = mention in raw or event.get("type") == "app_mention"
        # Nobody asks for the names of all who speak in a channel: reading would wait for each.
        is_for_us = addressed or chat.kind is ChatKind.PRIVATE
        return [
            Update(
                event["ts"],
                chat,
                Person(sender, await self._name_of(sender) if is_for_us else sender),
                kind,
                text,
                tuple(_offer_of(file) for file in event.get("files", ())),
                target=event["thread_ts"] if in_thread else "",
                version=float(edited.get("ts", 0)),
                addressed=addressed,
            )
        ]

    async def _pressed(self, payload: Any, action: Any) -> Update:
        who, message = payload["user"]["id"], payload["message"]
        event = {**message, "channel": payload["channel"]["id"]}
        key = f"press{message['ts']}:{action['action_ts']}"
        person = Person(who, await self._name_of(who))
        pressed = UpdateKind.PRESSED
        return Update(key, _chat_of(event), person, pressed, action["value"], target=message["ts"])

    async def _name_of(self, user: str) -> str:
        if user not in self._names:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            try:
                with anyio.fail_after(NAME_S):
                    profile = (await self._call("users.info", user=user))["user"]
            except (WorldError, SlackApiError, aiohttp.ClientError, TimeoutError):
                return user
            self._names[user] = profile.get("real_name") or profile.get("name") or user
        return self._names[user]

    # Out

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        sent = await self._call("chat.postMessage", **_where(chat), **_content(message))
        return str(sent["ts"])

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        await self._end_stream(chat, platform_id, message)
        await self._call("chat.update", channel=chat.id, ts=platform_id, **_content(message))

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        if not chat.thread:
            return None
        stream = self._streams.get(key)
        if not text:
            if stream is not None:
                await self._call("chat.stopStream", channel=chat.id, ts=stream[0])
                del self._streams[key]
            return ""
        if stream is None:
            started = await self._call(
                "chat.startStream", **_where(chat), **self._recipient(chat), markdown_text=text
            )
            self._streams[key] = str(started["ts"]), text
            return str(started["ts"])
        ts, said = stream
        more = text.removeprefix(said)
        if text.startswith(said) and more:
            await self._call("chat.appendStream", channel=chat.id, ts=ts, markdown_text=more)
            self._streams[key] = ts, text
        return ts

    def _recipient(self, chat: ChatAddress) -> dict[str, str]:
        """Whom a stream in a channel is for. After a restart nobody knows, and the answer is a
        message that is edited."""
        if chat.kind is ChatKind.PRIVATE:
            return {}
        user = self._asked.get((chat.id, chat.thread))
        if user is None:
            raise NotDelivered("nobody has spoken in this thread since the start")
        return {"recipient_team_id": self._team, "recipient_user_id": user}

    async def _end_stream(self, chat: ChatAddress, ts: str, message: ChatMessage) -> None:
        """A message that is still streamed cannot be changed. After a restart nobody knows whether
        it is, so Slack is asked to end it."""
        is_open = self._streams.pop(message.key, None) is not None
        if not is_open and not (chat.thread and message.key.endswith(".0")):
            return
        try:
            await self._call("chat.stopStream", channel=chat.id, ts=ts)
        except NotDelivered:
            pass  # it was no stream, or has ended

    async def typing(self, chat: ChatAddress) -> None:
        if chat.thread:
            await self._call(
                "assistant.threads.setStatus",
                channel_id=chat.id,
                thread_ts=chat.thread,
                status="is writing…",
            )

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        if not self._is_of_slack(offer.id):
            raise NotDelivered("it is not kept at Slack, and our token is not shown elsewhere")
        headers = {"Authorization": f"Bearer {self._token}"}
        self._opened()
        assert self._http is not None
        async with self._http.get(offer.id, headers=headers) as answer:
            if answer.status != 200:
                raise NotDelivered(f"Slack answers {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > bytes_max:
                    raise NotDelivered(f"it has more than {bytes_max} bytes")
        return bytes(data)

    def _is_of_slack(self, address: str) -> bool:
        """A file may be a link to anywhere. The token is Slack's alone."""
        url, ours = urlsplit(address), urlsplit(self._api)
        if (url.scheme, url.netloc) == (ours.scheme, ours.netloc):
            return True
        return url.scheme == "https" and (url.hostname or "").endswith(".slack.com")

    def _opened(self) -> AsyncWebClient:
        if self._client is None:
            self._http = aiohttp.ClientSession()
            self._client = AsyncWebClient(
                self._token,
                base_url=self._api,
                session=self._http,
                timeout=REQUEST_S,
                retry_handlers=[],
            )
        return self._client

    async def _call(self, method: str, *, token: str = "", **arguments: Any) -> Any:
        """Says what a refusal means. Anything else that goes wrong leaves the outcome unknown."""
        client = self._opened()
        headers = {"Authorization": f"Bearer {token or self._token}"}
        given: Any = {"json": arguments}
        if method in READS:
            given = {"params": arguments, "http_verb": "GET"}
        try:
            answer = await client.api_call(method, headers=headers, **given)
        except SlackApiError as refusal:
            response: Any = refusal.response
            error = str(response.get("error", "")) if isinstance(response.data, dict) else ""
            if response.status_code == 429:
                after_s = float(response.headers.get("Retry-After", 1))
                raise RetryLater(after_s) from refusal
            if response.status_code >= 500 or error in UNKNOWN or not error:
                raise
            if error in BAD_TOKEN and method.startswith("chat."):
                raise RetryLater(BAD_TOKEN_S) from refusal
            raise NotDelivered(f"Slack: {error}") from refusal
        except aiohttp.ClientConnectorError:
            raise NotReached("Slack") from None
        except TimeoutError:
            raise WorldError("Slack did not answer in time", retryable=True) from None
        return answer.data


async def _read_all(socket: aiohttp.ClientWebSocketResponse) -> list[Any] | None:
    """The envelopes that are there, at least one. None when Slack wants to close the socket."""
    envelopes: list[Any] = []
    while len(envelopes) < BATCH_MAX:
        try:
            # The first is waited for; others only if they are there already.
            with anyio.fail_after(0.001 if envelopes else None):
                message = await socket.receive()
        except TimeoutError:
            return envelopes
        if message.type is not aiohttp.WSMsgType.TEXT:
            return envelopes or None
        envelope = json.loads(message.data)
        if envelope.get("type") == "disconnect":
            return envelopes or None
        if "envelope_id" in envelope:
            envelopes.append(envelope)
    return envelopes


def _chat_of(event: Any) -> ChatAddress:
    """A direct message is a private chat. In a channel the thread is the chat."""
    channel, thread = event["channel"], event.get("thread_ts") or ""
    if event.get("channel_type") == "im" or channel.startswith("D"):
        return ChatAddress(channel, ChatKind.PRIVATE, thread)
    return ChatAddress(channel, ChatKind.GROUP, thread or event["ts"])


def _where(chat: ChatAddress) -> dict[str, str]:
    return {"channel": chat.id} | ({"thread_ts": chat.thread} if chat.thread else {})


def _content(message: ChatMessage) -> dict[str, Any]:
    """Slack reads Markdown in a block of that kind; the text is for notifications."""
    text = message.text
    blocks: list[Any] = [{"type": "markdown", "text": text}]
    if message.exact:
        parts = [text[at : at + SECTION_MAX] for at in range(0, len(text), SECTION_MAX)]
        exact = [{"type": "plain_text", "text": part, "emoji": False} for part in parts]
        blocks = [{"type": "section", "text": part} for part in exact]
    buttons = [
        {
            "type": "button",
            "action_id": f"choice{number}",
            "value": button.label[:VALUE_MAX],
            "text": {"type": "plain_text", "text": button.label[:LABEL_MAX]},
        }
        for number, button in enumerate(message.buttons)
    ]
    if buttons:
        blocks.append({"type": "actions", "elements": buttons})
    return {"text": _escaped(message.text), "blocks": blocks}


def _escaped(text: str) -> str:
    """Without what calls people, such as <!channel>. It is read out and stands in notifications."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    """Slack writes three characters as HTML does."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _offer_of(file: Any) -> Offer:
    where = file.get("url_private_download") or file.get("url_private", "")
    kind = file.get("mimetype") or "application/octet-stream"
    return Offer(where, file.get("name") or "file", kind, file.get("size"))
