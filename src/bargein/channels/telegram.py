"""Telegram: the Bot API over HTTP, by long polling, or by a webhook if there is an address for one.

Telegram keeps the cursor: asking for the next number confirms an update. So Bargein stores none.
After a start Telegram begins with the first update that nobody confirmed, even for another bot, and
even after a week of silence, when its numbers start anew.

A group that becomes a supergroup gets another number, and its messages are counted anew. It stays
the chat that it was, with its pairings and its session: only this adapter knows the new number, and
keeps it as its cursor.

Telegram has no idempotency keys. In private chats the answer that is being written is a draft with
Telegram's own Stop button, whose press names the draft; in groups it is a message that is edited. A
topic is a session of its own.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
from anyio.abc import TaskGroup
from telegramify_markdown import convert

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

API = "https://api.telegram.org"
POLL_S = 30
REQUEST_S = 30
UPDATES = ["message", "edited_message", "callback_query", "stopped_message_generation"]
DRAFTS_MAX = 1000
DRAFT_S = 30.0
"""Telegram shows a draft, and its Stop button, for so long after it was sent last."""
RATE = ChatRate(per_s=1.0, burst=3)
GROUP_RATE = ChatRate(per_s=1 / 3, burst=3)
"""Telegram takes twenty messages a minute in a group, edits among them."""
NUMBERS_LAST_S = 6 * 86_400.0
BAD_TOKEN_S = 60.0
HINT_S = 5.0
PRESS = "press"
MOVED_MAX = 10_000
UNITS_MAX = 4096
"""How long a message may be, counted in UTF-16."""
REFUSED = (400, 403, 404, 413)
NOT_MODIFIED = "message is not modified"
_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
OTHERS = ("location", "venue", "contact", "poll", "dice", "story", "game", "checklist")
"""What a message may have instead of words or files. We name it, and do not read it."""

Json = dict[str, Any]


def open_channel(name: str, options: Mapping[str, str], folder: Path) -> "TelegramChannel":
    return TelegramChannel(
        name,
        options["token"],
        webhook=options.get("webhook", ""),
        secret=options.get("secret", ""),
        api=options.get("api", ""),
    )


class TelegramChannel:
    """`webhook` is the address under which Telegram reaches `/channels/NAME` of the server, and
    `secret` what it shows there. `api` is the address of another Bot API server."""

    def __init__(
        self,
        name: str,
        token: str,
        *,
        webhook: str = "",
        secret: str = "",
        api: str = "",
        rate: ChatRate = RATE,
        group_rate: ChatRate = GROUP_RATE,
    ) -> None:
        if webhook and not secret:
            raise UserError(f"channel {name}: a webhook needs a secret; choose a long random word")
        if secret and _SECRET.fullmatch(secret) is None:
            raise UserError(
                f"channel {name}: Telegram takes a secret of 1 to 256 letters, digits, _ and -"
            )
        if _TOKEN.fullmatch(token) is None:
            raise UserError(f"channel {name}: a token of Telegram's looks like 12345:abcdef")
        self.name = name
        # Telegram counts in UTF-16: any 2000 characters fit into its 4096, marks included.
        self.traits = Traits(
            text_max=2000,
            previews=True,
            preview_lasts_s=DRAFT_S,
            rate=rate,
            group_rate=group_rate,
        )
        self._token = token
        self._api = (api or API).rstrip("/")
        self._http: aiohttp.ClientSession | None = None
        self._reader: aiohttp.ClientSession | None = None
        """Reads updates: calls that hang keep no connection from it."""
        self._hints: TaskGroup | None = None
        self._webhook = webhook
        self._secret = secret
        self._desk: Desk | None = None
        self._me: Json = {}
        self._drafts: dict[int, str] = {}
        self._moved: dict[str, str] = {}
        """The groups that became supergroups: their number now, by the one before."""
        self._before: dict[str, str] = {}
        """The same, by the number now."""
        self._kept = ""

    async def check(self) -> str:
        return f"@{(await self._call('getMe'))['username']}"

    async def aclose(self) -> None:
        for each in (self._http, self._reader):
            if each is not None:
                await each.close()

    # In

    async def run(self, desk: Desk) -> None:
        self._me = await self._call("getMe")
        self._kept = desk.cursor
        for before, now in _moves_in(desk.cursor).items():
            self._keep_move(before, now)
        async with anyio.create_task_group() as tasks:
            self._hints = tasks
            try:
                await (self._wait_for_requests(desk) if self._webhook else self._poll(desk))
            finally:
                self._hints = None

    async def _wait_for_requests(self, desk: Desk) -> None:
        await self._call(
            "setWebhook", url=self._webhook, secret_token=self._secret, allowed_updates=UPDATES
        )
        await desk.reached()
        self._desk = desk
        try:
            await anyio.sleep_forever()
        finally:
            self._desk = None

    async def _poll(self, desk: Desk) -> None:
        await self._call("deleteWebhook")
        await desk.reached()
        after: Json = {}
        heard_at = anyio.current_time()
        while True:
            updates = await self._call(
                "getUpdates", timeout=POLL_S, allowed_updates=UPDATES, **after
            )
            if updates:
                await self._hand_over(desk, updates)
                after = {"offset": updates[-1]["update_id"] + 1}
                heard_at = anyio.current_time()
            elif anyio.current_time() - heard_at > NUMBERS_LAST_S:
                after = {}

    async def hook(self, headers: Mapping[str, str], body: bytes) -> HookAnswer:
        shown = headers.get("x-telegram-bot-api-secret-token", "")
        if not self._secret or not hmac.compare_digest(shown.encode(), self._secret.encode()):
            return HookAnswer(401)
        if self._desk is None:
            return HookAnswer(503)
        try:
            update = json.loads(body)
        except ValueError:
            return HookAnswer(400)
        await self._hand_over(self._desk, [update])
        return HookAnswer()

    async def _hand_over(self, desk: Desk, updates: Sequence[Json]) -> None:
        found = [each for each in map(self._update_of, updates) if each is not None]
        moves = json.dumps(self._moved) if self._moved else ""
        taken = await desk.receive(found, cursor=moves if moves != self._kept else "")
        self._kept = moves
        for update in taken:
            if update.kind is UpdateKind.PRESSED and self._hints is not None:
                # Reading goes on: a stop may come next.
                self._hints.start_soon(self._end_waiting, update.key.removeprefix(PRESS))

    async def _end_waiting(self, query: str) -> None:
        """The button stops showing that it waits. Nothing is lost if it does not."""
        try:
            with anyio.move_on_after(HINT_S):
                await self._call("answerCallbackQuery", callback_query_id=query)
        except WorldError:
            pass

    def _keep_move(self, before: str, now: str) -> None:
        self._moved[before] = now
        self._before[now] = before
        while len(self._moved) > MOVED_MAX:
            self._before.pop(self._moved.pop(next(iter(self._moved))), None)

    def _place_of(self, message: Json) -> tuple[ChatAddress | None, str]:
        """The chat of a message, and the message's id. A group that was moved is the chat that it
        was, and its new numbers are told from those of before."""
        chat, number = _chat_of(message), str(message["message_id"])
        before = self._before.get(chat.id) if chat is not None else None
        if chat is None or before is None:
            return chat, number
        return msgspec.structs.replace(chat, id=before), f"{chat.id}:{number}"

    def _update_of(self, update: Json) -> Update | None:
        try:
            return self._read(update)
        except MALFORMED as error:
            not_understood(self.name, error)
            return None

    def _read(self, update: Json) -> Update | None:
        if "message" in update:
            return self._said(update["message"], UpdateKind.SAID)
        if "edited_message" in update:
            return self._said(update["edited_message"], UpdateKind.EDITED)
        if "callback_query" in update:
            return self._pressed(update["callback_query"])
        stopped = update.get("stopped_message_generation")
        if stopped is None:
            return None
        # Only private chats have drafts, and there the chat's number is the person's.
        chat = ChatAddress(str(stopped["chat"]["id"]), thread=_thread_in(stopped))
        draft = stopped["draft_id"]
        key = self._drafts.get(draft, f"draft{draft}")
        who = Person(chat.id, _name_of(stopped["chat"]))
        return Update(f"stop{draft}", chat, who, UpdateKind.PRESSED_STOP, target=key)

    def _said(self, message: Json, kind: UpdateKind) -> Update | None:
        number = str(message["chat"]["id"])
        if "migrate_to_chat_id" in message:
            self._keep_move(number, str(message["migrate_to_chat_id"]))
        elif "migrate_from_chat_id" in message:
            self._keep_move(str(message["migrate_from_chat_id"]), number)
        sender, (chat, key) = message.get("from"), self._place_of(message)
        if sender is None or sender["is_bot"] or chat is None:
            return None
        text = _text_of(message)
        offers = _offers_of(message)
        if not text and not offers:
            return None  # somebody joined, a message was pinned, and the like
        entities = message.get("entities") or message.get("caption_entities") or []
        replied = message.get("reply_to_message") or {}
        if "forum_topic_created" in replied:
            replied = {}  # Telegram says so of everything in a topic
        to_bot = replied.get("from", {}).get("id") == self._me.get("id")
        addressed = to_bot or self._is_mentioned(text, entities)
        name = self._me.get("username", "")
        if any(each["type"] == "bot_command" and each["offset"] == 0 for each in entities):
            word, _, rest = text.partition(" ")
            word, _, of_bot = word.partition("@")
            text = f"{word} {rest}" if rest else word
            addressed = of_bot in ("", name)
            kind = UpdateKind.COMMAND if kind is UpdateKind.SAID else kind
        else:
            # "@bot stop" is a stop.
            text = text.removeprefix(f"@{name}").lstrip() or text
        return Update(
            key,
            chat,
            Person(str(sender["id"]), _name_of(sender)),
            kind,
            text,
            offers,
            message.get("media_group_id"),
            self._place_of(replied)[1] if "message_id" in replied else "",
            float(message.get("edit_date", 0)),
            addressed,
        )

    def _pressed(self, query: Json) -> Update | None:
        message = query.get("message")
        if message is None:
            return None
        chat, target = self._place_of(message)
        if chat is None:
            return None
        rows = message.get("reply_markup", {}).get("inline_keyboard", [])
        labels = {button.get("callback_data"): button["text"] for row in rows for button in row}
        label = labels.get(query.get("data"))
        return Update(
            f"{PRESS}{query['id']}",
            chat,
            Person(str(query["from"]["id"]), _name_of(query["from"])),
            UpdateKind.PRESSED,
            label or "",
            # Of a message that Telegram cannot show any more nobody knows what the button said.
            target=target if label else "",
        )

    def _is_mentioned(self, text: str, entities: Sequence[Json]) -> bool:
        units = text.encode("utf-16-le")  # in which Telegram counts
        for each in entities:
            begin, end = 2 * each["offset"], 2 * (each["offset"] + each["length"])
            word = units[begin:end].decode("utf-16-le", "replace")
            if each["type"] == "mention" and word == f"@{self._me.get('username')}":
                return True
            if each["type"] == "text_mention" and each["user"]["id"] == self._me.get("id"):
                return True
        return False

    # Out

    async def send(self, chat: ChatAddress, message: ChatMessage) -> str:
        where = self._where(chat)
        sent = await self._with_words("sendMessage", where, message)
        moved = chat.id in self._moved
        return f"{where['chat_id']}:{sent['message_id']}" if moved else str(sent["message_id"])

    async def edit(self, chat: ChatAddress, platform_id: str, message: ChatMessage) -> None:
        of, _, number = platform_id.rpartition(":")
        if chat.id in self._moved and not of:
            raise NotDelivered("Telegram: the message is from before its group was a supergroup")
        where = {"chat_id": of or chat.id, "message_id": int(number)}
        try:
            await self._with_words("editMessageText", where, message)
        except NotDelivered as error:
            if NOT_MODIFIED not in str(error):
                raise

    async def _with_words(self, method: str, where: Json, message: ChatMessage) -> Any:
        """Without its marks, if Telegram refuses those: an answer is not lost for a format."""
        try:
            return await self._call(method, **where, **_content(message))
        except NotDelivered as error:
            if "entit" not in str(error):
                raise
        plain = {**_content(message), "text": message.text, "entities": []}
        return await self._call(method, **where, **plain)

    async def preview(self, chat: ChatAddress, key: str, text: str) -> str | None:
        if chat.kind is not ChatKind.PRIVATE:
            return None
        draft = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1 or 1
        self._drafts[draft] = key
        while len(self._drafts) > DRAFTS_MAX:
            del self._drafts[next(iter(self._drafts))]
        shown = {**self._where(chat), "draft_id": draft, "can_stop": True, **_formatted(text)}
        await self._call("sendMessageDraft", **shown)
        return ""

    async def typing(self, chat: ChatAddress) -> None:
        await self._call("sendChatAction", **self._where(chat), action="typing")

    async def fetch(self, offer: Offer, bytes_max: int) -> bytes:
        file = await self._call("getFile", file_id=offer.id)
        url = f"{self._api}/file/bot{self._token}/{file['file_path']}"
        async with self._opened().get(url) as answer:
            if answer.status != 200:
                raise NotDelivered(f"Telegram answers {answer.status}")
            data = bytearray()
            async for part in answer.content.iter_any():
                data += part
                if len(data) > bytes_max:
                    raise NotDelivered(f"it has more than {bytes_max} bytes")
        return bytes(data)

    def _where(self, chat: ChatAddress) -> Json:
        thread = {"message_thread_id": int(chat.thread)} if chat.thread else {}
        return {"chat_id": self._moved.get(chat.id, chat.id), **thread}

    def _opened(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = _session()
        return self._http

    def _session_for(self, method: str) -> aiohttp.ClientSession:
        if method != "getUpdates":
            return self._opened()
        if self._reader is None:
            self._reader = _session()
        return self._reader

    async def _call(self, method: str, **arguments: Any) -> Any:
        """Says what a refusal means. Anything else that goes wrong leaves the outcome unknown. The
        address has the token in it, so that no error may show it."""
        url = f"{self._api}/bot{self._token}/{method}"
        try:
            async with self._session_for(method).post(url, json=arguments) as answer:
                told = await answer.json()
        except aiohttp.ClientConnectorError:
            raise NotReached("Telegram") from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            why = f"Telegram's {method}: {type(error).__name__}"
            raise WorldError(why, retryable=True) from None
        if told.get("ok"):
            return told["result"]
        code, why = told.get("error_code"), f"Telegram: {told.get('description')}"
        if code == 429:
            raise RetryLater(float(told.get("parameters", {}).get("retry_after", 1)))
        if code == 401 and method.startswith("send"):
            # Nothing was sent. The operator may give the bot a new token.
            raise RetryLater(BAD_TOKEN_S)
        now = str((told.get("parameters") or {}).get("migrate_to_chat_id", ""))
        if now:
            asked = str(arguments.get("chat_id", ""))
            self._keep_move(self._before.get(asked, asked), now)
            raise RetryLater(0.0)
        if code in REFUSED:
            raise NotDelivered(why)
        raise WorldError(why, retryable=True)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=POLL_S + REQUEST_S))


def _moves_in(cursor: str) -> dict[str, str]:
    try:
        return {str(before): str(now) for before, now in json.loads(cursor or "{}").items()}
    except MALFORMED:
        return {}


def _formatted(text: str) -> Json:
    plain, entities = convert(text)
    if not plain.strip() or len(plain.encode("utf-16-le")) > 2 * UNITS_MAX:
        return {"text": text}  # marks alone, such as a rule; or marks that are drawn longer
    return {"text": plain, "entities": [each.to_dict() for each in entities]}


def _content(message: ChatMessage) -> Json:
    """A press brings the keyboard back, so the number of the button is enough."""
    rows = [
        [{"text": button.label, "callback_data": str(number)}]
        for number, button in enumerate(message.buttons)
    ]
    keyboard = {"reply_markup": {"inline_keyboard": rows}} if rows else {}
    content = {"text": message.text} if message.exact else _formatted(message.text)
    return {**content, **keyboard}


def _chat_of(message: Json) -> ChatAddress | None:
    """None for a channel of news, where nobody speaks to a bot."""
    chat = message.get("chat", {})
    thread = _thread_in(message) if message.get("is_topic_message") else ""
    if chat.get("type") == "private":
        return ChatAddress(str(chat["id"]), ChatKind.PRIVATE, thread)
    if chat.get("type") in ("group", "supergroup"):
        return ChatAddress(str(chat["id"]), ChatKind.GROUP, thread)
    return None


def _text_of(message: Json) -> str:
    """What somebody says, or the name of what they sent instead."""
    said = message.get("text") or message.get("caption")
    if said or "sticker" in message:
        return str(said or message["sticker"].get("emoji") or "(a sticker)")
    return next((f"(a {each})" for each in OTHERS if each in message), "")


def _thread_in(message: Json) -> str:
    return str(message.get("message_thread_id", ""))


def _name_of(who: Json) -> str:
    return " ".join(filter(None, (who.get("first_name"), who.get("last_name"))))


def _offers_of(message: Json) -> tuple[Offer, ...]:
    if message.get("photo"):
        largest = message["photo"][-1]
        return (Offer(largest["file_id"], "photo.jpg", "image/jpeg", largest.get("file_size")),)
    names = {"voice": "voice.ogg", "audio": "audio.mp3", "video": "video.mp4"}
    for kind, name in {**names, "video_note": "note.mp4", "document": "file"}.items():
        if kind in message:
            file = message[kind]
            media_type = file.get("mime_type") or "application/octet-stream"
            named = file.get("file_name") or name
            return (Offer(file["file_id"], named, media_type, file.get("file_size")),)
    return ()
