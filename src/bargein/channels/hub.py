"""Joins channels with an engine: takes their updates, and keeps each of them running.

`ChannelHub.run` runs one channel until it is cancelled. A channel whose platform cannot be reached
is tried again after a while. Meanwhile its answers wait, and the platform keeps new messages.
"""

import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence

import anyio
from anyio.abc import TaskGroup

from bargein.channels import words
from bargein.channels.access import ChannelAccess
from bargein.channels.contract import Channel, ChatAddress, ChatKind, Person, Update, UpdateKind
from bargein.channels.conversation import ChatConversation, Posted, stops
from bargein.channels.rows import ChannelHealth, Ledger, Rows
from bargein.contracts.chat_commands import CommandLine, command_line_of
from bargein.contracts.value import Value
from bargein.session.engine import SessionEngine

_log = logging.getLogger("bargein.channels")

RETRY_FIRST_S = 1.0
DAY_S = 86_400.0
RETRY_MAX_S = 60.0
CLOSE_S = 5.0
HEARD_S = 30 * DAY_S
"""How long a message can be edited, and a command be recognised that is delivered again."""


class ChannelStatus(Value, frozen=True):
    """`chats` are those in which something goes on, `unsent` the messages that wait to be sent,
    `unhandled` what has come in and waits to be handled."""

    health: ChannelHealth
    chats: int
    unsent: int
    unhandled: int


class ChannelHub:
    def __init__(
        self, engine: SessionEngine, rows: Rows, *, now: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._now = now
        self._runs: dict[str, ChannelRun] = {}

    async def run(self, channel: Channel) -> None:
        """Until cancelled. One of this name at a time: the owner of the data directory runs it."""
        try:
            async with anyio.create_task_group() as tasks:
                run = ChannelRun(self._engine, self._rows, channel, self._now, tasks)
                self._runs[channel.name] = run
                await run.keep_running()
        finally:
            del self._runs[channel.name]
            with anyio.move_on_after(CLOSE_S, shield=True):
                await channel.aclose()

    def statuses(self) -> dict[str, ChannelStatus]:
        """How each channel is now, by its name."""
        return {name: run.status() for name, run in self._runs.items()}


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
        self.now = now
        self._tasks = tasks
        self._conversations: dict[ChatAddress, ChatConversation] = {}
        self._health = ChannelHealth()
        self._resumed = False
        self._numbers = itertools.count(time.time_ns())
        self._handled: list[str] = []
        self._forgot_at = float("-inf")

    async def _resume(self) -> None:
        """Go on with what was to be sent and handled when the program ended."""
        health = await self.ledger.health()
        self._health = ChannelHealth(False, health.error, health.at)
        self.cursor = await self.ledger.cursor()
        for known in await self.ledger.open_chats():
            self._conversations.setdefault(known.chat, ChatConversation(self, known))
        for conversation in list(self._conversations.values()):
            self.spawn(conversation.resume)
        for number, update in await self.ledger.noted():
            await self._post(number, update, _line_of(update))

    async def keep_running(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            began = anyio.current_time()
            try:
                if not self._resumed:
                    await self._resume()
                    self._resumed = True
                await self.channel.run(self)
                return
            except Exception as error:  # boundary: a platform that is down does not end the others
                why = _why(error)
                _log.warning("channel %s: %s", self.channel.name, why)
                self._tell(ChannelHealth(False, why, self.now()))
            if anyio.current_time() - began > RETRY_MAX_S:
                retry_s = RETRY_FIRST_S
            await anyio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)

    def status(self) -> ChannelStatus:
        conversations = self._conversations.values()
        unsent = sum(each.unsent for each in conversations)
        unhandled = sum(each.unhandled for each in conversations)
        return ChannelStatus(self._health, len(conversations), unsent, unhandled)

    def _tell(self, health: ChannelHealth) -> None:
        """The last error stays, with its time, until there is another one."""
        if health != self._health:
            self._health = health
            self.spawn(lambda: self.ledger.keep_health(health))

    # A desk

    async def reached(self) -> None:
        self._tell(ChannelHealth(True, self._health.error, self._health.at))

    async def receive(self, updates: Sequence[Update], *, cursor: str = "") -> Sequence[Update]:
        """Stops first: they act beside the commit. Handling goes on behind it, in the lane of each
        chat, so that no file and no slow chat keeps the platform from being read."""
        await self.reached()
        admitted: list[tuple[str, Update, CommandLine | None]] = []
        for update in updates:
            if await self._admits(update):
                line = _line_of(update)
                if await self._stop_at_once(update, line):
                    admitted.append((f"{next(self._numbers):020}", update, line))
        done = self.take_handled()
        try:
            await self.ledger.note([each[:2] for each in admitted], done, cursor=cursor)
        except BaseException:
            self._handled += done
            raise
        self.cursor = cursor or self.cursor
        for number, update, line in admitted:
            await self._post(number, update, line)
        self._forget_sometimes()
        return [update for _, update, _ in admitted]

    async def _stop_at_once(self, update: Update, line: CommandLine | None) -> bool:
        """False if it is a stop that was delivered before: what runs now is something else."""
        if not stops(update, line):
            return True
        if await self.ledger.heard(update.chat, update.key) is not None:
            return False
        (await self._conversation(update.chat)).stop_at_once(update)
        return True

    def _forget_sometimes(self) -> None:
        now = self.now()
        if now - self._forgot_at > DAY_S:
            self._forgot_at = now
            self.spawn(lambda: self.ledger.rows.forget("heard", now - HEARD_S))

    async def _admits(self, update: Update) -> bool:
        """Strangers get silence, unless they send a code that the operator made."""
        if not await self.access.admits(update.chat, update.sender):
            is_said = update.kind in (UpdateKind.SAID, UpdateKind.COMMAND)
            if is_said and await self.access.try_code(
                update.text, update.chat, update.sender, key=update.key
            ):
                await (await self._conversation(update.chat)).reply(update.key, words.PAIRED)
            return False
        if update.chat.kind is ChatKind.PRIVATE or update.addressed:
            return True
        # Words among people, and commands for other bots. An edit changes only what was said to us.
        return update.kind not in (UpdateKind.SAID, UpdateKind.COMMAND)

    async def _post(self, number: str, update: Update, line: CommandLine | None) -> None:
        (await self._conversation(update.chat)).post(Posted(number, update, line))

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
        self._tasks.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            await work()
        except Exception as error:  # boundary: a fault in one chat does not end the others
            _log.exception("channel %s", self.channel.name)
            self._health = ChannelHealth(
                self._health.running, f"a fault: {_why(error)}", self.now()
            )

    def handled(self, number: str) -> None:
        """An update needs no row any more. The row goes with the next commit."""
        self._handled.append(number)

    def take_handled(self) -> list[str]:
        done, self._handled = self._handled, []
        return done

    def failed(self, why: str) -> None:
        """Note what a platform said of one message: the channel itself goes on."""
        if why != self._health.error:
            self._tell(ChannelHealth(self._health.running, why, self.now()))

    def name_of(self, person: Person) -> str:
        return f"{self.channel.name}:{person.id}"

    def client_id(self, chat: ChatAddress, key: str) -> str:
        return f"{self.channel.name}:{chat.id}:{key}"


def _line_of(update: Update) -> CommandLine | None:
    if update.kind not in (UpdateKind.SAID, UpdateKind.COMMAND) or update.attachments:
        return None
    return command_line_of(update.text)


def _why(error: BaseException) -> str:
    """In a few words. Of several faults the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
