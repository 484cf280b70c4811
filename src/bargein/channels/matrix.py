"""Matrix, through matrix-nio. A room is a chat, a thread in it a session of its own.

The sync token is the cursor. It is stored after the events that came with it are durable, so after
a restart the homeserver sends the others again. If there are more than one answer holds, the bot
reads the rest backwards from there. Transaction ids are the idempotency keys.

Matrix has no buttons. The bot puts each choice as a reaction on its question, and a person's
reaction with the same words is a press. Clients keep slash commands for themselves, so `!stop` is
`/stop`. With the device of the access token the bot reads and writes in encrypted rooms; its keys
are in the data directory.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import msgspec
import nio  # type: ignore[import-untyped]
from markdown_it import MarkdownIt
from nio.crypto import decrypt_attachment  # type: ignore[import-untyped]

from bargein.channels import words
from bargein.channels.contract import (
    MALFORMED,
    ChatAddress,
    ChatKind,
    ChatMessage,
    ChatRate,
    Desk,
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
from bargein.contracts.value import Value
from bargein.errors import UserError, WorldError

SYNC_MS = 30_000
SYNCED_S = 30.0
REQUEST_S = 30.0
TYPING_MS = 6_000
OWN_MAX = 2_000
PAGE = 100
FALLBACK_CHARACTERS = 200
FILTER = {"room": {"timeline": {"limit": PAGE}}, "presence": {"types": []}}
REFUSED = ("M_FORBIDDEN", "M_TOO_LARGE", "M_NOT_FOUND", "M_BAD_JSON", "M_NOT_JSON")
_MEDIA = re.compile(r"[A-Za-z0-9_-]{1,255}")
UNREADABLE = "(An encrypted message whose key this bot does not have.)"
MESSAGES = (nio.RoomMessageText, nio.RoomMessageMedia, nio.RoomEncryptedMedia, nio.MegolmEvent)


def open_channel(name: str, options: Mapping[str, str], folder: Path) -> "MatrixChannel":
    return MatrixChannel(
        name,
        homeserver=options["homeserver"],
        user=options["user"],
        token=options["token"],
        device=options.get("device", ""),
        invites=options.get("invites", ""),
        per_s=options.get("per_s", ""),
        folder=folder,
    )


class MatrixFile(Value, frozen=True):
    """Where a file is, and how it is decrypted if its room is encrypted."""

    url: str
    key: str = ""
    hash: str = ""
    iv: str = ""


class MatrixChannel:
    """`invites` names the people and servers whose invitations the bot accepts; the bot's own
    server if it is empty. `per_s` is how many calls a second the homeserver allows the bot."""

    def __init__(
        self,
        name: str,
        *,
        homeserver: str,
        user: str,
        token: str,
        folder: Path,
        device: str = "",
        invites: str = "",
        per_s: str = "",
    ) -> None:
        self.name = name
        try:
            rate = ChatRate(per_s=float(per_s or 0.2), burst=10)
        except ValueError:
            raise UserError(f"channel {name}: per_s is a number, not {per_s!r}") from None
        self.traits = Traits(text_max=4000, keyed=True, rate=rate)
        self._invites = set(invites.replace(",", " ").split()) or {user.partition(":")[2]}
        self._own: dict[str, None] = {}
        self._threads: dict[str, str] = {}
        """The threads of the last messages: reading waits for no answer about them."""
        self._html = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        self._synced = anyio.Event()
        if device:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = nio.AsyncClientConfig(
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_S,
            encryption_enabled=bool(device),
            store_sync_tokens=False,
        )
        where = str(folder) if device else None
        self._client = nio.AsyncClient(homeserver.rstrip("/"), user, device, where, config)
        if device:
            self._client.restore_login(user, device, token)
        else:
            self._client.user_id = user
            self._client.access_token = token

    async def check(self) -> str:
        return str((await self._done(self._client.whoami())).user_id)

    async def aclose(self) -> None:
        await self._client.close()

    # In

    async def run(self, desk: Desk) -> None:
        whole = True
        while True:
            # The library moves on with each answer, and we when it is durable.
            since = self._client.next_batch = desk.cursor
            wait_ms = 0 if whole else SYNC_MS
            response = await self._done(
                self._client.sync(wait_ms, FILTER, since=since or None, full_state=whole)
            )
            await self._look_after_keys()
            await self._join(response.rooms.invite)
            updates: list[Update] = []
            for room_id, joined in response.rooms.join.items():
                if joined.timeline.limited and since:
                    missed = self._missed(room_id, joined.timeline.prev_batch, since)
                    updates += [each async for each in missed]
                for event in joined.timeline.events:
                    updates += await self._updates_of(room_id, event)
            self._synced.set()
            await desk.reached()
            await desk.receive(updates, cursor=response.next_batch)
            whole = False

    async def _missed(self, room_id: str, start: str, end: str) -> AsyncIterator[Update]:
        """What was said between two answers of the homeserver, in order."""
        pages: list[list[Any]] = []
        at: str | None = start
        while at:
            page = await self._done(
                self._client.room_messages(room_id, at, end, limit=PAGE, message_filter=None)
            )
            pages.append(page.chunk)
            at = page.end if page.chunk else None
        for event in (event for page in reversed(pages) for event in reversed(page)):
            for update in await self._updates_of(room_id, event):
                yield update

    async def _join(self, invited: Mapping[str, Any]) -> None:
        for room_id, invite in invited.items():
            senders = {
                event.sender
                for event in invite.invite_state
                if isinstance(event, nio.InviteMemberEvent) and event.membership == "invite"
            }
            servers = {sender.partition(":")[2] for sender in senders}
            if (senders | servers) & self._invites:
                await self._client.join(room_id)

    async def _look_after_keys(self) -> None:
        client = self._client
        if client.olm is None:
            return
        await client.send_to_device_messages()
        if client.should_upload_keys:
            await client.keys_upload()
        if client.should_query_keys:
            await client.keys_query()
        if client.should_claim_keys:
            await client.keys_claim(client.get_users_for_key_claiming())

    async def _updates_of(self, room_id: str, event: Any) -> list[Update]:
        try:
            return await self._read(room_id, event)
        except MALFORMED as error:
            # Anybody in a room may send anything.
            not_understood(self.name, error)
            return []

    async def _read(self, room_id: str, event: Any) -> list[Update]:
        room = self._client.rooms.get(room_id)
        if room is None or event.sender == self._client.user_id:
            return []
        kind = ChatKind.PRIVATE if room.member_count <= 2 else ChatKind.GROUP
        who = Person(event.sender, room.user_name(event.sender) or event.sender)
        content = event.source.get("content", {})
        relation = content.get("m.relates_to") or {}
        if isinstance(event, nio.ReactionEvent):
            chat = ChatAddress(room_id, kind, await self._thread_of(room_id, event.reacts_to))
            pressed = UpdateKind.PRESSED
            return [Update(event.event_id, chat, who, pressed, event.key, target=event.reacts_to)]
        if not isinstance(event, MESSAGES):
            return []
        if relation.get("rel_type") == "m.replace":
            edited = relation.get("event_id", "")
            chat = ChatAddress(room_id, kind, await self._thread_of(room_id, edited))
            now = content.get("m.new_content", {})
            text, version = str(now.get("body", "")), float(event.server_timestamp)
            is_meant = kind is ChatKind.PRIVATE or await self._is_meant(room, now, "")
            kind_of = UpdateKind.EDITED
            return [Update(edited, chat, who, kind_of, text, version=version, addressed=is_meant)]
        in_thread = relation.get("rel_type") == "m.thread"
        chat = ChatAddress(room_id, kind, relation.get("event_id", "") if in_thread else "")
        is_reply = not in_thread or not relation.get("is_falling_back", True)
        target = relation.get("m.in_reply_to", {}).get("event_id", "") if is_reply else ""
        text = self._without_name(room, _text_of(event, has_quote=bool(target)))
        self._keep_thread(event.event_id, chat.thread)
        return [
            Update(
                event.event_id,
                chat,
                who,
                text=text,
                attachments=_offers_of(event),
                target=target,
                addressed=kind is ChatKind.PRIVATE or await self._is_meant(room, content, target),
            )
        ]

    def _without_name(self, room: nio.MatrixRoom, text: str) -> str:
        """What follows a mention of the bot at the beginning, so that "bot: stop" is a stop."""
        me = self._client.user_id
        for name in (me, room.user_name(me)):
            if name and text.startswith(name):
                return words.with_slash(text[len(name) :].lstrip(":, "))
        return text

    async def _is_meant(self, room: nio.MatrixRoom, content: Any, target: str) -> bool:
        """Whether words in a group mention the bot or reply to it."""
        me = self._client.user_id
        if me in content.get("m.mentions", {}).get("user_ids", ()):
            return True
        body = str(content.get("body", ""))
        if me in body or str(room.user_name(me)) in body.split():
            return True
        if not target or target in self._own:
            return bool(target)
        found = await self._client.room_get_event(room.room_id, target)
        return isinstance(found, nio.RoomGetEventResponse) and found.event.sender == me

    def _keep_thread(self, event_id: str, thread: str) -> None:
        self._threads[event_id] = thread
        while len(self._threads) > OWN_MAX:
            del self._threads[next(iter(self._threads))]

    async def _thread_of(self, room_id: str, event_id: str) -> str:
        known = self._threads.get(event_id)
        if known is not None:
            return known
        found = await self._client.room_get_event(room_id, event_id)
        if not isinstance(found, nio.RoomGetEventResponse):
            return ""
        relation = found.event.source.get("content", {}).get("m.relates_to") or {}
        is_thread = relation.get("rel_type") == "m.thread"
        thread = str(relation.get("event_id", "")) if is_thread else ""
        self._keep_thread(event_id, thread)
        return thread

    # Out

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        content = self._content(message)
        if chat.thread:
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": chat.thread,
                "is_falling_back": True,
                "m.in_reply_to": {"event_id": chat.thread},
            }
        event_id = await self._put(chat, "m.room.message", content, message.key)
        self._keep_thread(event_id, chat.thread)
        for number, button in enumerate(message.buttons):
            relation = {"rel_type": "m.annotation", "event_id": event_id, "key": button.label}
            reaction = {"m.relates_to": relation}
            await self._put(chat, "m.reaction", reaction, f"{message.key}.button{number}")
        return event_id

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        content = {
            "msgtype": "m.text",
            "body": f"* {message.text[:FALLBACK_CHARACTERS]}",
            "m.new_content": self._content(message),
            "m.relates_to": {"rel_type": "m.replace", "event_id": platform_id},
        }
        digest = hashlib.sha256(message.text.encode()).hexdigest()
        await self._put(chat, "m.room.message", content, f"{message.key}.edit.{digest}")

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        return None

    async def typing(self, chat: ChatAddress) -> None:
        await self._done(self._client.room_typing(chat.id, timeout=TYPING_MS))

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        file = msgspec.json.decode(offer.id, type=MatrixFile)
        server, _, media = file.url.removeprefix("mxc://").partition("/")
        if _MEDIA.fullmatch(media) is None or server.startswith("."):
            raise NotDelivered("its address is not that of a file")
        path = f"/_matrix/client/v1/media/download/{quote(server, safe=':')}/{media}"
        session = self._client.client_session
        assert session is not None, "it is open since the file was offered"
        headers = {"Authorization": f"Bearer {self._client.access_token}"}
        async with session.get(self._client.homeserver + path, headers=headers) as answer:
            if answer.status != 200:
                raise NotDelivered(f"the homeserver answers {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > bytes_max:
                    raise NotDelivered(f"it has more than {bytes_max} bytes")
        if file.key:
            return bytes(decrypt_attachment(bytes(data), file.key, file.hash, file.iv))
        return bytes(data)

    async def _put(self, chat: ChatAddress, type_: str, content: Any, key: str) -> str:
        if self._client.olm is not None:
            # Which rooms are encrypted is known after the first sync.
            with anyio.fail_after(SYNCED_S):
                await self._synced.wait()
        number = hashlib.sha256(key.encode()).hexdigest()
        sent = await self._done(
            self._client.room_send(chat.id, type_, content, number, ignore_unverified_devices=True)
        )
        self._own[sent.event_id] = None
        while len(self._own) > OWN_MAX:
            del self._own[next(iter(self._own))]
        return str(sent.event_id)

    def _content(self, message: ChatMessage) -> dict[str, Any]:
        text = message.text
        content = {"msgtype": "m.text", "body": text}
        html = "" if message.exact else self._html.render(text).strip()
        if html and html != f"<p>{text}</p>":
            content |= {"format": "org.matrix.custom.html", "formatted_body": html}
        return content

    async def _done(self, call: Any) -> Any:
        """The answer of the homeserver. Raises what it says if it refuses."""
        try:
            answer = await call
        except aiohttp.ClientConnectorError:
            raise NotReached("the homeserver") from None
        if not isinstance(answer, nio.ErrorResponse):
            return answer
        if answer.status_code == "M_LIMIT_EXCEEDED":
            raise RetryLater((answer.retry_after_ms or 1000) / 1000)
        if answer.status_code in REFUSED:
            raise NotDelivered(f"{answer.status_code}: {answer.message}")
        raise WorldError(f"{answer.status_code}: {answer.message}", retryable=True)


def _text_of(event: Any, *, has_quote: bool) -> str:
    """What a person said. A reply may begin with a quotation of what it replies to."""
    if isinstance(event, nio.MegolmEvent):
        return UNREADABLE
    if not isinstance(event, nio.RoomMessageText):
        return ""
    text = str(event.body)
    if has_quote and text.startswith("> "):
        _, _, text = text.partition("\n\n")
    return words.with_slash(text)


def _offers_of(event: Any) -> tuple[Offer, ...]:
    content = event.source.get("content", {})
    info = content.get("info") or {}
    size = info.get("size")
    if isinstance(event, nio.RoomEncryptedMedia):
        key = event.key.get("k", "")
        file = MatrixFile(event.url, key, event.hashes.get("sha256", ""), event.iv)
    elif isinstance(event, nio.RoomMessageMedia):
        file = MatrixFile(event.url)
    else:
        return ()
    media_type = str(info.get("mimetype") or "application/octet-stream")
    bound = size if isinstance(size, int) else None
    return (Offer(msgspec.json.encode(file).decode(), str(event.body), media_type, bound),)
