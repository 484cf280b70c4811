"""A Bot API server, as https://core.telegram.org/bots/api describes it."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
import anyio
from aiohttp import web

from bargein.channels.contract import Button, ChatAddress, ChatKind, ChatRate, Person
from bargein.channels.telegram import TelegramChannel
from bargein.testing.chat_services.service import RATE, ChatService, place_of

TOKEN = "123456:test-token"
BOT = {"id": 123456, "is_bot": True, "first_name": "Bot", "username": "test_bot"}
TEXT_MAX = 4096
CALLBACK_BYTES_MAX = 64


class Refusal(Exception):
    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
        if parameters:
            body["parameters"] = parameters
        self.answer = web.json_response(body, status=code)


class FakeTelegram(ChatService):
    """`webhook` is what the bot asked for with `setWebhook`; `deliver` delivers there."""

    name = "telegram"
    alice = Person("11", "Alice")
    bob = Person("12", "Bob")
    stranger = Person("666", "Alice")
    private = ChatAddress("11")
    group = ChatAddress("-100200", ChatKind.GROUP)
    theirs = ChatAddress("666")

    def __init__(self, rate: ChatRate = RATE) -> None:
        super().__init__(rate)
        self.files: dict[str, bytes] = {}
        self.drafts: list[tuple[str, int, str, bool]] = []
        self.webhook: dict[str, str] = {}
        self.answered: list[str] = []
        self.edited_at = 1_700_000_000
        self._updates: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        """The updates that are not confirmed yet."""
        self._more = anyio.Event()
        self._poll = 0
        self._number = 1000
        self._buttons: dict[str, tuple[Button, ...]] = {}
        self._moved: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def open_channel(self) -> TelegramChannel:
        return TelegramChannel(
            self.name, TOKEN, api=self.address, rate=self.rate, group_rate=self.rate
        )

    async def chats(self, count: int) -> list[ChatAddress]:
        return [ChatAddress(str(50_000 + number)) for number in range(min(count, self.chats_max))]

    async def is_delivered(self) -> bool:
        return not self.waiting

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
        message = self._message(chat, person, text)
        if album is not None:
            file = f"photo{message['message_id']}"
            self.files[file] = b"a photo"
            message["media_group_id"] = album
            message["caption"] = message.pop("text")
            sizes = {"file_unique_id": file, "width": 1, "height": 1, "file_size": 7}
            message["photo"] = [{"file_id": file, **sizes}]
        if reply_to:
            message["reply_to_message"] = self._bot_message(chat, reply_to)
        if chat.kind is ChatKind.GROUP and addressed:
            mention = f"@{BOT['username']} "
            message["text"] = mention + text if not text.startswith("/") else text
            entity = {"type": "mention", "offset": 0, "length": len(mention) - 1}
            if not text.startswith("/"):
                message["entities"] = [entity]
        self._happened({"message": message})
        return str(message["message_id"])

    async def edit(self, chat: ChatAddress, person: Person, message: str, text: str) -> None:
        self.edited_at += 1
        edited = self._message(chat, person, text, int(message))
        self._happened({"edited_message": {**edited, "edit_date": self.edited_at}})

    async def press(self, chat: ChatAddress, person: Person, message: str, label: str) -> None:
        of = self._bot_message(chat, message)
        data = next(
            button["callback_data"]
            for row in of["reply_markup"]["inline_keyboard"]
            for button in row
            if button["text"] == label
        )
        query = {"id": str(self._next()), "from": _user(person), "chat_instance": "1"}
        self._happened({"callback_query": {**query, "message": of, "data": data}})

    async def press_stop(self, chat: ChatAddress, draft: int) -> None:
        """Telegram's own button on a draft."""
        self._happened({"stopped_message_generation": {"chat": _chat(chat), "draft_id": draft}})

    async def redeliver(self) -> None:
        """As after a webhook that failed: the same things under new numbers, the newest first."""
        for update in reversed(list(self._updates)):
            self._enqueue({**update, "update_id": self._next()})

    def _happened(self, what: dict[str, Any]) -> None:
        update = {"update_id": self._next(), **what}
        self._updates.append(update)
        self._enqueue(update)

    def _enqueue(self, update: dict[str, Any]) -> None:
        self.waiting.append(update)
        self._more.set()

    def wake(self) -> None:
        self._more.set()

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def migrate(self, chat: ChatAddress, new: str, *, told: bool = True) -> ChatAddress:
        """A group becomes a supergroup: another number, and its messages are counted anew. With
        `told` both chats have a message that says so."""
        supergroup = ChatAddress(new, ChatKind.GROUP, chat.thread)
        self._moved[chat.id] = new
        self._counts[new] = 0
        if told:
            before = self._message(chat, self.alice, "")
            self._happened({"message": {**before, "migrate_to_chat_id": int(new)}})
            after = self._message(supergroup, self.alice, "")
            self._happened({"message": {**after, "migrate_from_chat_id": int(chat.id)}})
        return supergroup

    def _number_in(self, chat: str) -> int:
        if chat not in self._counts:
            return self._next()
        self._counts[chat] += 1
        return self._counts[chat]

    def _message(
        self, chat: ChatAddress, person: Person, text: str, id_: int | None = None
    ) -> dict[str, Any]:
        message: dict[str, Any] = {
            "message_id": id_ or self._number_in(chat.id),
            "date": 1_700_000_000,
            "chat": _chat(chat),
            "from": _user(person),
            "text": text,
        }
        if chat.thread:
            message |= {"message_thread_id": int(chat.thread), "is_topic_message": True}
        if text.startswith("/"):
            length = len(text.split(maxsplit=1)[0])
            message["entities"] = [{"type": "bot_command", "offset": 0, "length": length}]
        return message

    def _bot_message(self, chat: ChatAddress, id_: str) -> dict[str, Any]:
        shown = self.message(place_of(chat.id, chat.thread), id_)
        assert shown is not None, id_
        rows = [
            [{"text": button.label, "callback_data": str(number)}]
            for number, button in enumerate(self._buttons[id_])
        ]
        return {
            "message_id": int(id_),
            "date": 1_700_000_000,
            "chat": _chat(chat),
            "from": BOT,
            "text": shown.text,
            "reply_markup": {"inline_keyboard": rows},
        }

    # What the bot calls

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/bot{token}/{method}", self._call),
            web.get("/file/bot{token}/{path:.*}", self._file),
        ]

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["path"]])

    async def _call(self, request: web.Request) -> web.StreamResponse:
        given = await request.json() if request.can_read_body else {}
        given = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in given.items()
        }
        method = request.match_info["method"]
        try:
            if request.match_info["token"] != TOKEN:
                raise Refusal(401, "Unauthorized")
            result = await self._methods[method](self, given)
        except Refusal as refusal:
            return refusal.answer
        if method == "sendMessage":
            await self.break_if_asked(request)
        return web.json_response({"ok": True, "result": result})

    async def _get_me(self, given: Mapping[str, str]) -> Any:
        return BOT

    async def _set_webhook(self, given: Mapping[str, str]) -> Any:
        self.webhook = dict(given)
        return True

    async def _delete_webhook(self, given: Mapping[str, str]) -> Any:
        self.webhook = {}
        return True

    async def deliver(self, address: str) -> None:
        """What Telegram does with a webhook: one request for each update until it is answered
        well; the others wait."""
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.webhook["secret_token"]}
        async with aiohttp.ClientSession() as http:
            while self.waiting:
                async with http.post(address, json=self.waiting[0], headers=headers) as answer:
                    if answer.status == 200:
                        self.waiting.pop(0)
                    else:
                        await anyio.sleep(0.05)

    async def _get_updates(self, given: Mapping[str, str]) -> Any:
        if self.webhook:
            raise Refusal(
                409,
                "Conflict: can't use getUpdates method while webhook is active; use "
                "deleteWebhook to delete the webhook first",
            )
        self._poll += 1
        mine = self._poll
        self._more.set()
        offset = int(given.get("offset", 0))
        self.waiting = [each for each in self.waiting if each["update_id"] >= offset]
        with anyio.move_on_after(float(given.get("timeout", 0))):
            while self.held or not self.waiting:
                self._more = anyio.Event()
                await self._more.wait()
                if self._poll != mine:
                    raise Refusal(
                        409,
                        "Conflict: terminated by other getUpdates request; make sure that "
                        "only one bot instance is running",
                    )
            return self.waiting[: int(given.get("limit", 100))]
        return []

    async def _send_message(self, given: Mapping[str, str]) -> Any:
        place = self._admitted("sendMessage", given)
        text = _checked_text(given)
        labels = _checked_labels(given)
        id_ = str(self._number_in(given["chat_id"]))
        self.show(place, id_, text, labels)
        self._buttons[id_] = self._messages[place][-1].buttons
        return self._as_message(given, id_, text)

    async def _edit_message_text(self, given: Mapping[str, str]) -> Any:
        self._admitted("editMessageText", given)
        text = _checked_text(given)
        labels = _checked_labels(given)
        places = [each for each in self._messages if each.startswith(f"{given['chat_id']}/")]
        tried = (self.message(place, str(given["message_id"])) for place in places)
        found = next(filter(None, tried), None)
        if found is None:
            raise Refusal(400, "Bad Request: message to edit not found")
        if (found.text, [each.label for each in found.buttons]) == (text, labels):
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and "
                "reply markup are exactly the same as a current content and reply markup of the "
                "message",
            )
        found.text = text
        found.texts.append(text)
        found.buttons = tuple(each for each in found.buttons if each.label in labels)
        return self._as_message(given, found.id, text)

    async def _send_message_draft(self, given: Mapping[str, str]) -> Any:
        self._admitted("sendMessageDraft", given)
        if int(given["chat_id"]) < 0:
            raise Refusal(400, "Bad Request: drafts can be sent only to private chats")
        if not int(given.get("draft_id", 0)):
            raise Refusal(400, "Bad Request: draft_id must be non-zero")
        text = _checked_text(given)
        can_stop = given.get("can_stop") == "true"
        self.drafts.append((given["chat_id"], int(given["draft_id"]), text, can_stop))
        return True

    async def _send_chat_action(self, given: Mapping[str, str]) -> Any:
        self._admitted("sendChatAction", given)
        return True

    async def _answer_callback_query(self, given: Mapping[str, str]) -> Any:
        self.answered.append(given["callback_query_id"])
        return True

    async def _get_file(self, given: Mapping[str, str]) -> Any:
        file = given["file_id"]
        if file not in self.files:
            raise Refusal(400, "Bad Request: invalid file_id")
        size = len(self.files[file])
        return {"file_id": file, "file_unique_id": file, "file_size": size, "file_path": file}

    def _admitted(self, what: str, given: Mapping[str, str]) -> str:
        if given["chat_id"] in self._moved:
            raise Refusal(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                migrate_to_chat_id=int(self._moved[given["chat_id"]]),
            )
        place = place_of(given["chat_id"], given.get("message_thread_id", ""))
        wait_s = self.wait_s(what, place)
        if wait_s > 0:
            seconds = math.ceil(wait_s)
            raise Refusal(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)
        return place

    def _as_message(self, given: Mapping[str, str], id_: str, text: str) -> dict[str, Any]:
        kind = ChatKind.GROUP if int(given["chat_id"]) < 0 else ChatKind.PRIVATE
        chat = ChatAddress(given["chat_id"], kind)
        return {
            "message_id": int(id_),
            "date": 1_700_000_000,
            "chat": _chat(chat),
            "from": BOT,
            "text": text,
        }

    _methods: ClassVar[Mapping[str, Callable[..., Awaitable[Any]]]] = {
        "getMe": _get_me,
        "setWebhook": _set_webhook,
        "deleteWebhook": _delete_webhook,
        "getUpdates": _get_updates,
        "sendMessage": _send_message,
        "editMessageText": _edit_message_text,
        "sendMessageDraft": _send_message_draft,
        "sendChatAction": _send_chat_action,
        "answerCallbackQuery": _answer_callback_query,
        "getFile": _get_file,
    }


def _checked_text(given: Mapping[str, str]) -> str:
    text = given.get("text", "")
    if not text.strip():
        raise Refusal(400, "Bad Request: message text is empty")
    if len(text.encode("utf-16-le")) // 2 > TEXT_MAX:
        raise Refusal(400, "Bad Request: message is too long")
    return text


def _checked_labels(given: Mapping[str, str]) -> list[str]:
    markup = json.loads(given.get("reply_markup") or "{}")
    buttons: Sequence[Any] = [each for row in markup.get("inline_keyboard", []) for each in row]
    for button in buttons:
        if len(button["callback_data"].encode()) > CALLBACK_BYTES_MAX:
            raise Refusal(400, "Bad Request: BUTTON_DATA_INVALID")
    return [button["text"] for button in buttons]


def _user(person: Person) -> dict[str, Any]:
    return {"id": int(person.id), "is_bot": False, "first_name": person.name}


def _chat(chat: ChatAddress) -> dict[str, Any]:
    if chat.kind is ChatKind.PRIVATE:
        return {"id": int(chat.id), "type": "private", "first_name": "Somebody"}
    return {"id": int(chat.id), "type": "supergroup", "title": "A group"}
