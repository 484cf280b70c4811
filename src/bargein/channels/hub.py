"""Joins channels with an engine: takes their updates, and keeps each of them running.

`ChannelHub.run` runs one channel until it is cancelled. A channel whose platform cannot be reached
is tried again after a while; meanwhile its answers wait, and the platform keeps what people say.
"""

import logging
import time
from collections.abc import Callable, Coroutine, Sequence

import anyio
from anyio.abc import TaskGroup

from bargein.channels import words
from bargein.channels.access import ChannelAccess
from bargein.channels.contract import Channel, ChatAddress, ChatKind, Person, Update, UpdateKind
from bargein.channels.conversation import ChatConversation, Posted
from bargein.channels.rows import ChannelHealth, Ledger, Rows
from bargein.contracts.chat_commands import ChatCommand, CommandLine, command_line_of
from bargein.session.engine import SessionEngine

_log = logging.getLogger("bargein.channels")

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
HEARD_S = 30 * 86_400.0
"""How long a message can be edited, and a command be recognised that is delivered again."""


class ChannelHub:
    def __init__(
        self, engine: SessionEngine, rows: Rows, *, now: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._now = now

    async def run(self, channel: Channel) -> None:
        """Until cancelled. One of this name at a time: the owner of the data directory runs it."""
        await self._rows.forget("heard", self._now() - HEARD_S)
        async with anyio.create_task_group() as tasks:
            run = ChannelRun(self._engine, self._rows, channel, self._now, tasks)
            await run.resume()
            await run.keep_running()


class ChannelRun:
    """One channel that runs. It is the channel's `Desk`."""

    def __init__(
        self,
        engine: SessionEngine,
        rows: Rows,
        channel: Channel,
        now: Callable[[], float],
        tasks: TaskGroup,
    ) -> None:
        self.engine = engine
        self.channel = channel
        self.ledger = Ledger(rows, channel.name)
        self.access = ChannelAccess(self.ledger, now)
        self.cursor = ""
        self._now = now
        self._tasks = tasks
        self._conversations: dict[ChatAddress, ChatConversation] = {}
        self._health = ChannelHealth()

    async def resume(self) -> None:
        """Go on with what was to be sent when the program ended."""
        self.cursor = await self.ledger.cursor()
        for known in await self.ledger.open_chats():
            self._conversations[known.chat] = ChatConversation(self, known)
        for conversation in list(self._conversations.values()):
            self.spawn(conversation.resume)

    async def keep_running(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            began = anyio.current_time()
            try:
                await self._tell(ChannelHealth(running=True))
                await self.channel.run(self)
                return
            except Exception as error:  # boundary: a platform that is down does not end the others
                why = str(error) or type(error).__name__
                _log.warning("channel %s: %s", self.channel.name, why)
                await self._tell(ChannelHealth(False, why, self._now()))
            if anyio.current_time() - began > RETRY_MAX_S:
                retry_s = RETRY_FIRST_S
            await anyio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _tell(self, health: ChannelHealth) -> None:
        self._health = health
        await self.ledger.keep_health(health)

    # A desk

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> None:
        posted: list[Posted] = []
        for update in updates:
            if await self._admits(update):
                posted += await self._post(update)
        for each in posted:
            await each.wait()
        if cursor:
            await self.ledger.keep_cursor(cursor)
            self.cursor = cursor

    async def _admits(self, update: Update) -> bool:
        """Strangers get silence, unless they send a code that the operator made."""
        if not await self.access.admits(update.chat, update.sender):
            is_said = update.kind in (UpdateKind.SAID, UpdateKind.COMMAND)
            if is_said and await self.access.try_code(update.text, update.chat, update.sender):
                await (await self._conversation(update.chat)).reply(update.key, words.PAIRED)
            return False
        if update.chat.kind is ChatKind.PRIVATE or update.addressed:
            return True
        # Words among people. An edit changes only what was said to the bot.
        return update.kind is not UpdateKind.SAID

    async def _post(self, update: Update) -> list[Posted]:
        line = _line_of(update)
        if _stops(update, line) and await self.ledger.heard(update.chat, update.key) is not None:
            # Delivered again: what runs now is something else.
            return []
        conversation = await self._conversation(update.chat)
        return [conversation.post(update, line)]

    async def _conversation(self, chat: ChatAddress) -> ChatConversation:
        found = self._conversations.get(chat)
        if found is None:
            known = await self.ledger.chat(chat)
            found = self._conversations.setdefault(chat, ChatConversation(self, known))
        return found

    # For conversations

    def let_go(self, conversation: ChatConversation) -> None:
        self._conversations.pop(conversation.chat, None)

    def spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks.start_soon(work)

    def failed(self, why: str) -> None:
        """Note what a platform said of one message: the channel itself goes on."""
        health = ChannelHealth(self._health.running, why, self._now())
        if health.error != self._health.error:
            self._health = health
            self.spawn(lambda: self.ledger.keep_health(health))

    def name_of(self, person: Person) -> str:
        return f"{self.channel.name}:{person.id}"

    def client_id(self, chat: ChatAddress, key: str) -> str:
        return f"{self.channel.name}:{chat.id}:{key}"


def _line_of(update: Update) -> CommandLine | None:
    if update.kind not in (UpdateKind.SAID, UpdateKind.COMMAND) or update.attachments:
        return None
    return command_line_of(update.text)


def _stops(update: Update, line: CommandLine | None) -> bool:
    is_stop = line is not None and line.command in (ChatCommand.STOP, ChatCommand.NEW)
    return is_stop or update.kind is UpdateKind.PRESSED_STOP
