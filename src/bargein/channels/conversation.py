"""Joins one chat, thread or topic with its session: passes updates in, in order, and answers out.

The lane. The updates of a chat are handled one after the other, to keep their order; other chats do
not wait. A stop skips the lane: it cancels the running work at the moment it arrives, and ends the
wait for files. The session still accepts the messages before it in the lane and then stops, so all
of them are held, as after any stop.

The rows. An update gets a row before it is confirmed to the platform, and keeps it until it was
handled. An update that cannot be handled is tried again for a while, and then refused. A message
has been heard when the session has accepted it. Its client id consists of the channel, the chat and
the message's id, so the session recognises a second delivery as a duplicate. A command gets its row
before it runs, so a second delivery does not run it again.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import msgspec

from bargein.channels import words
from bargein.channels.contract import ChatAddress, ChatKind, Update, UpdateKind
from bargein.channels.fetching import Fetches
from bargein.channels.outbox import AllSent, Outbox
from bargein.channels.rows import Heard, KnownChat, Piece, PieceState
from bargein.channels.showing import Showing
from bargein.contracts.chat_commands import (
    CHAT_PROGRAM_HELP,
    ChatCommand,
    CommandLine,
)
from bargein.contracts.message import Mode
from bargein.contracts.permission import PermissionMode, tightest
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.errors import BargeinError, UserError
from bargein.session.abort import Interrupt
from bargein.session.broadcast import TooSlow
from bargein.session.session import Forbidden, IdReused, InboxFull, Session, TooLate

if TYPE_CHECKING:
    from bargein.channels.hub import ChannelRun

_log = logging.getLogger("bargein.channels")
_replace = msgspec.structs.replace

BURST_S = 0.25
FIRED_MAX = 256
LANE_MAX = 1000
TRIES_MAX = 8
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
FAULT_S = 5.0
STOPS = (ChatCommand.STOP, ChatCommand.NEW)


class Posted:
    """An update in the lane; `number` is that of its row."""

    def __init__(self, number: str, update: Update, line: CommandLine | None) -> None:
        self.number = number
        self.update = update
        self.line = line


class ChatConversation:
    def __init__(self, run: "ChannelRun", known: KnownChat) -> None:
        self._run = run
        self._ledger = run.ledger
        self._known = known
        self.chat = known.chat
        self._session: Session[object] | None = None
        self._lane: deque[Posted] = deque()
        self._in_lane = False
        self._opening = anyio.Lock()
        self._outbox: Outbox | None = None
        self._showing: Showing | None = None
        self._serving: anyio.CancelScope | None = None
        self._burst = ("", "", float("-inf"))
        self._fired: dict[str, Interrupt | None] = {}
        """The stops that were delivered, by the keys of their updates."""
        self._files = Fetches(run.channel, run.spawn, self._is_heard)
        self._drained = anyio.Event()
        self._replying = 0

    @property
    def session_id(self) -> str:
        return session_id_of(self._run.channel.name, self.chat, self._known.number)

    @property
    def unsent(self) -> int:
        """How many messages wait to be sent."""
        return self._outbox.unsent if self._outbox is not None else 0

    @property
    def unhandled(self) -> int:
        """How many updates and events wait to be handled."""
        actor = self._run.engine.actor_in_memory(self.session_id)
        if actor is None or self._showing is None:
            return len(self._lane) + self._replying
        behind = max(0, actor.durable_seq - self._seen_seq)
        return len(self._lane) + self._replying + behind

    @property
    def _seen_seq(self) -> int:
        """How far the session's log was read, by this conversation or an earlier one."""
        seen = self._showing.picture.seq if self._showing is not None else 0
        return max(self._known.seq, seen)

    # In: the lane

    def stop_at_once(self, update: Update) -> None:
        """What runs is cancelled when this returns. `post` follows, and brings the reply."""
        if update.key in self._fired:
            return
        self._fired[update.key] = self._stop_now(update)
        while len(self._fired) > FIRED_MAX:
            del self._fired[next(iter(self._fired))]
        self._files.stop()

    def post(self, posted: Posted) -> None:
        """Take an update. Nothing is waited for."""
        if len(self._lane) >= LANE_MAX and not stops(posted.update, posted.line):
            self._later(partial(self._refuse, posted, "too much waits here already"))
            return
        self._lane.append(posted)
        self._files.begin(posted.update)
        if stops(posted.update, posted.line):
            self._files.stop()
        if not self._in_lane:
            self._in_lane = True
            self._run.spawn(self._work)

    async def _work(self) -> None:
        tries = 0
        while self._lane:
            posted = self._lane[0]
            try:
                await self._open()
                if tries < TRIES_MAX:
                    await self._handle(posted)
                else:
                    await self._refuse(posted, "it could not be handled")
            except Exception as error:  # boundary: it is tried again, and then refused
                _log.warning("%s: an update of %s: %s", self._run.channel.name, self.chat.id, error)
                self._run.failed(str(error) or type(error).__name__)
                await anyio.sleep(min(RETRY_FIRST_S * 2**tries, RETRY_MAX_S))
                tries += 1
                continue
            self._lane.popleft()
            self._files.forget(posted.update)
            self._run.handled(posted.number)
            tries = 0
        self._in_lane = False
        self._rest_soon()

    async def _refuse(self, posted: Posted, why: str) -> None:
        """Nothing that was confirmed to the platform disappears without a word."""
        await self._open()
        await self._reply(posted.update.key, f"Not taken: {why}.")
        if posted not in self._lane:
            self._run.handled(posted.number)

    async def _handle(self, posted: Posted) -> None:
        update = posted.update
        if posted.line is not None or update.kind is UpdateKind.PRESSED_STOP:
            await self._command(posted)
        elif update.kind is UpdateKind.PRESSED:
            await self._pressed(update)
        elif update.kind is UpdateKind.EDITED:
            await self._edited(update)
        elif update.kind is UpdateKind.COMMAND:
            await self._unknown_command(update)
        else:
            await self._said(update)

    # Messages

    async def _said(self, update: Update) -> None:
        heard = await self._ledger.heard(self.chat, update.key)
        if heard is not None and (heard.message or heard.command):
            return
        if heard is not None and heard.sender in ("", update.sender.id):
            # An edit of it came first.
            update = _replace(update, text=heard.text)
        question = self._question_of(update.target) or self._asked_freely()
        if question:
            await self._ledger.hear(self.chat, update.key, Heard(text=update.text, command=True))
            await self._answer(question, update.text, update)
            return
        await self._send(update, update.text, Mode.STEER, self._burst_of(update))

    def _burst_of(self, update: Update) -> str:
        """What somebody says in one breath is one message: an album, or words one after another."""
        now = anyio.current_time()
        group, sender, last = self._burst
        if update.group is not None:
            group = f"album {update.group}"
        elif sender != update.sender.id or now - last > BURST_S:
            group = f"burst {update.key}"
        self._burst = group, update.sender.id, now
        return group

    async def _send(self, update: Update, text: str, mode: Mode, group: str | None) -> None:
        session = await self._opened()
        attachments, unfetched = await self._files.files_of(update)
        said = "\n".join(filter(None, [text, *unfetched])) or "(a file)"
        if self.chat.kind is ChatKind.GROUP:
            said = words.spoken_by(update.sender.name, said)
        try:
            sent = await session.send(
                said,
                mode=mode,
                sender=self._run.name_of(update.sender),
                client_id=self._run.client_id(self.chat, update.key),
                attachments=attachments,
                group=group,
            )
        except IdReused:
            # Delivered again after it was edited, or under another name of its sender.
            await self._edited(update)
            return
        except (InboxFull, UserError) as error:
            await self._reply(update.key, f"Not taken: {error}.")
            return
        heard = Heard(session.id, sent.message, update.text, sender=update.sender.id)
        await self._ledger.hear(self.chat, update.key, heard)

    async def _is_heard(self, update: Update) -> bool:
        heard = await self._ledger.heard(self.chat, update.key)
        return heard is not None and bool(heard.message or heard.command)

    # Edits

    async def _edited(self, update: Update) -> None:
        heard = await self._ledger.heard(self.chat, update.key)
        if heard is None:
            # Words from before the pairing, or an edit that overtook its message.
            early = Heard(text=update.text, version=update.version, sender=update.sender.id)
            if update.addressed or self.chat.kind is ChatKind.PRIVATE:
                await self._ledger.hear(self.chat, update.key, early)
            return
        if heard.sender not in ("", update.sender.id):
            return
        if heard.command or heard.text == update.text or update.version < heard.version:
            return
        now = _replace(heard, text=update.text, version=update.version)
        if not heard.message:
            await self._ledger.hear(self.chat, update.key, now)
            return
        session = await self._run.engine.session(heard.session)
        said, by = update.text, self._run.name_of(update.sender)
        if self.chat.kind is ChatKind.GROUP:
            said = words.spoken_by(update.sender.name, said)
        try:
            await session.edit(heard.message, said or "(deleted)", by=by)
        except TooLate:
            told = words.edited_in_words(heard.text, update.text)
            digest = hashlib.sha256(update.text.encode()).hexdigest()[:16]
            edit_id = f"{self._run.client_id(self.chat, update.key)}:edit:{digest}"
            current = await self._opened()
            await current.send(told, sender=by, client_id=edit_id)
        await self._ledger.hear(self.chat, update.key, now)

    # Stops and other commands

    def _stop_now(self, update: Update) -> Interrupt | None:
        """Cancel what runs. None if the session is not here yet: then nothing of it runs."""
        if self._session is None:
            return None
        aim = self._aim(update)
        self._mute(aim)
        by = self._run.name_of(update.sender)
        return self._session.interrupt_now(by=by, expected_turn=aim)

    def _aim(self, update: Update) -> str | None:
        """The turn of the preview that a Stop was pressed on; None is whatever runs."""
        if update.kind is not UpdateKind.PRESSED_STOP or not update.target:
            return None
        return update.target.removeprefix(f"{self.session_id}.").partition(".")[0]

    def _mute(self, aim: str | None = None) -> None:
        actor = self._run.engine.actor_in_memory(self.session_id)
        turn = actor.state.turn if actor is not None else None
        if turn is not None and aim in (None, turn) and self._outbox is not None:
            self._outbox.stop(turn)

    async def _command(self, posted: Posted) -> None:
        update, line = posted.update, posted.line
        heard = await self._ledger.heard(self.chat, update.key)
        if heard is not None:
            assert self._outbox is not None
            replied = f"reply.{update.key}" in self._outbox.rows
            if not replied and update.key not in self._fired and heard.text == "begun":
                await self._reply(update.key, words.UNFINISHED)
            return
        mode = {ChatCommand.QUEUE: Mode.QUEUE, ChatCommand.REDIRECT: Mode.INTERRUPT}.get(
            line.command if line is not None else ChatCommand.STOP
        )
        if mode is not None and line is not None and line.words:
            if mode is Mode.INTERRUPT:
                self._mute()
            await self._send(_replace(update, text=line.words), line.words, mode, None)
            return
        await self._ledger.hear(self.chat, update.key, Heard(text="begun", command=True))
        await self._obey(posted, line.command if line is not None else ChatCommand.STOP)

    async def _obey(self, posted: Posted, command: ChatCommand) -> None:
        key = posted.update.key
        session = await self._opened()
        if command in STOPS:
            aim = self._aim(posted.update)
            self._mute(aim)
            first = self._fired.get(key)
            last = session.interrupt_now(by=self._by(posted), expected_turn=aim)
            if command is ChatCommand.NEW:
                await last.receipt()
                await self._until_drained()
                await self._begin_new(key)
            else:
                self._later(partial(self._tell_receipt, key, first, last))
        elif command is ChatCommand.UNDO:
            self._mute()
            self._later(partial(self._undo, key, self._by(posted)))
        elif command is ChatCommand.STATUS:
            await self._reply(key, words.status_in_short(await session.state()))
        elif command is ChatCommand.QUEUE:
            await self._reply(key, words.inbox_in_short(await session.state()))
        elif command is ChatCommand.CONTINUE:
            await self._continue(key, session)
        elif command is ChatCommand.REDIRECT:
            await self._reply(key, "Say what to do instead: /redirect WORDS")
        else:
            await self._reply(key, CHAT_PROGRAM_HELP)

    async def _continue(self, key: str, session: Session[object]) -> None:
        try:
            await session.continue_()
        except TooLate:
            await self._reply(key, words.NOTHING_HELD)
        else:
            await self._reply(key, words.GOES_ON)

    def _later(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """What takes a while does not hold up the lane; the conversation does not rest before."""

        async def run() -> None:
            try:
                await work()
            finally:
                self._replying -= 1
            self._rest_soon()

        self._replying += 1
        self._run.spawn(run)

    def _by(self, posted: Posted) -> str:
        return self._run.name_of(posted.update.sender)

    async def _tell_receipt(self, key: str, first: Interrupt | None, last: Interrupt) -> None:
        """A stop always gets a visible reply."""
        receipts: list[Receipt] = []
        for stop in filter(None, (first, last)):
            try:
                receipts.append(await stop.receipt())
            except BargeinError as error:
                await self._reply(
                    key, f"The stop was asked for, but its receipt is missing: {error}"
                )
                return
        stopped = [each for each in receipts if each.status is ReceiptStatus.STOPPED]
        # The first stop says what was stopped; the last what is held, for more was accepted then.
        stored = all(each.stored for each in receipts)
        told = _replace((stopped or receipts[-1:])[0], held=receipts[-1].held, stored=stored)
        await self._reply(key, words.receipt_in_short(told))

    async def _undo(self, key: str, by: str) -> None:
        session = await self._opened()
        try:
            undone = await session.undo(by=by)
        except BargeinError as error:
            await self._reply(key, f"Not undone: {error}.")
            return
        effects = "".join(f"\nNot undone: {each}" for each in undone.effects)
        await self._reply(key, f"Taken back: {' '.join(undone.text.split())[:200]}{effects}")

    async def _until_drained(self) -> None:
        """Until everything that the session has said before was sent: none of it is lost."""
        while not self._is_drained:
            self._drained = anyio.Event()
            await self._drained.wait()

    @property
    def _is_drained(self) -> bool:
        actor = self._run.engine.actor_in_memory(self.session_id)
        is_read = actor is None or (actor.turn is None and self._seen_seq >= actor.durable_seq)
        return self._outbox is None or (is_read and self._outbox.is_empty)

    async def _begin_new(self, key: str) -> None:
        """The next session of this chat; the one before is stopped and settled."""
        async with self._opening:
            self._close()
            old = self.session_id
            rows = await self._ledger.pieces(old)
            self._known = KnownChat(self.chat, self._known.number + 1, 0, open=True)
            await self._ledger.settle(self._known, old, list(rows), heard=key)
            self._session = None
        await self._open()
        await self._reply(key, words.NEW)

    # Answers to questions

    def _question_of(self, platform_id: str) -> str:
        if not platform_id or self._outbox is None:
            return ""
        found = (p.question for p in self._outbox.rows.values() if p.platform_id == platform_id)
        return next(found, "")

    def _asked_freely(self) -> str:
        """The question that the next words answer, where nobody can reply to one message: the
        oldest open one without choices, once it can be read. An approval has choices."""
        if self._run.channel.traits.replies or self._outbox is None or self._showing is None:
            return ""
        read = {p.question for p in self._outbox.rows.values() if p.platform_id}
        questions = self._showing.picture.questions.values()
        free = (q.id for q in questions if q.open and not q.question.choices and q.id in read)
        return next(free, "")

    async def _unknown_command(self, update: Update) -> None:
        """Names the commands, once. A code that has paired its sender is heard already."""
        if await self._ledger.heard(self.chat, update.key) is None:
            await self._ledger.hear(self.chat, update.key, Heard(text=update.text, command=True))
            await self._reply(update.key, CHAT_PROGRAM_HELP)

    async def _pressed(self, update: Update) -> None:
        if await self._ledger.heard(self.chat, update.key) is not None:
            return
        await self._ledger.hear(self.chat, update.key, Heard(text=update.text, command=True))
        question = self._question_of(update.target)
        if question:
            await self._answer(question, update.text, update)
        else:
            await self._reply(update.key, words.NOT_OPEN)

    async def _answer(self, question: str, text: str, update: Update) -> None:
        session = await self._opened()
        standing = await self._run.access.standing_of(self.chat, update.sender)
        by = self._run.name_of(update.sender)
        try:
            await session.answer(question, text, by=by, standing=standing)
        except TooLate:
            await self._reply(update.key, words.NOT_OPEN)
        except Forbidden:
            await self._reply(update.key, words.NOT_YOURS)

    # Out

    async def reply(self, key: str, text: str) -> None:
        """Say something that no turn said."""
        await self._open()
        await self._reply(key, text)

    async def _reply(self, key: str, text: str) -> None:
        outbox = self._outbox
        assert outbox is not None
        piece = Piece(f"reply.{key}", "", text[: self._run.channel.traits.text_max])
        if piece.key in outbox.rows:
            return
        self._replying += 1
        try:
            await self._ledger.keep_reply(self.session_id, piece, self.chat, key)
        finally:
            self._replying -= 1
        if outbox.rows.setdefault(piece.key, piece) is piece:
            outbox.put_reply(piece)

    async def resume(self) -> None:
        await self._open()

    async def _opened(self) -> Session[object]:
        if self._session is None:
            session = await self._run.engine.session(self.session_id)
            if self.chat.kind is ChatKind.GROUP:
                # A group does not inherit what a private chat may do.
                mode = await session.mode()
                if tightest(mode, PermissionMode.ASK) is not mode:
                    await session.set_mode(PermissionMode.ASK, by=self._run.channel.name)
            self._session = session
        return self._session

    async def _open(self) -> None:
        """Begin to follow the session and to send, if that is not done already."""
        async with self._opening:
            if self._outbox is not None:
                return
            if not self._known.open:
                self._known = _replace(self._known, open=True)
                await self._ledger.keep_chat(self._known)
            await self._opened()
            rows = await self._ledger.pieces(self.session_id)
            outbox = Outbox(
                self._run.channel,
                self.chat,
                self._ledger,
                self.session_id,
                rows,
                self._run.failed,
                self._run.now,
            )
            for piece in rows.values():
                if piece.key.startswith("reply.") and piece.state is not PieceState.SENT:
                    outbox.put_reply(piece)
            self._outbox = outbox
            self._showing = Showing(
                self.session_id, self._run.channel.name, self._run.channel.traits, outbox
            )
            self._serving = anyio.CancelScope()
            self._run.spawn(partial(self._serve, self._serving, outbox, self._showing))

    async def _serve(self, scope: anyio.CancelScope, outbox: Outbox, showing: Showing) -> None:
        with scope:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(outbox.run, self._settled, self._rest_soon)
                    await self._follow(showing)
                    # The session is not ours any more, or the engine closes: send what there is.
            except Exception as error:  # boundary: a fault of this chat's, such as a full disk
                _log.exception("%s: %s", self._run.channel.name, self.chat.id)
                self._run.failed(f"a fault: {error}")
                await anyio.sleep(FAULT_S)
                if self._outbox is outbox:
                    self._close()
                    self._run.spawn(self._reopen)

    async def _reopen(self) -> None:
        """Begin anew from what is durable."""
        while self._outbox is None:
            try:
                await self._open()
            except Exception as error:  # boundary: the fault lasts
                self._run.failed(f"a fault: {error}")
                await anyio.sleep(RETRY_MAX_S)

    async def _follow(self, showing: Showing) -> None:
        session, after = await self._opened(), self._known.seq
        while True:
            try:
                async with aclosing(session.watch_many(after=after)) as batches:
                    async for batch in batches:
                        showing.apply(batch)
                        self._rest_soon()
                return
            except TooSlow:
                showing.picture.rejoin()
                after = showing.picture.seq

    async def _settled(self, done: AllSent) -> None:
        """What the log says up to there was sent."""
        assert self._outbox is not None
        over = [
            key
            for key, piece in self._outbox.rows.items()
            if key.startswith(f"{done.turn}.") and piece.state is not PieceState.WAITING
        ]
        self._known = _replace(self._known, seq=done.seq)
        await self._ledger.settle(self._known, self.session_id, over)
        for key in over:
            del self._outbox.rows[key]

    # Rest

    def _rest_soon(self) -> None:
        self._drained.set()
        if self._is_at_rest:
            self._run.spawn(self._rest)

    @property
    def _is_at_rest(self) -> bool:
        if self._outbox is None or self._showing is None or self._lane:
            return False
        if self._in_lane or self._replying:
            return False
        actor = self._run.engine.actor_in_memory(self.session_id)
        if actor is not None and (
            actor.state.unfinished
            or actor.turn is not None
            or actor.state.questions
            or self._seen_seq < actor.durable_seq
        ):
            return False
        return self._outbox.is_empty and self._showing.picture.is_at_rest

    async def _rest(self) -> None:
        """Nothing runs, waits or is to be sent: forget what can be read again."""
        async with self._opening:
            if not self._is_at_rest:
                return
            assert self._outbox is not None
            assert self._showing is not None
            self._known = _replace(self._known, seq=self._seen_seq, open=False)
            over = [key for key, piece in self._outbox.rows.items() if not piece.question]
            handled = self._run.take_handled()
            await self._ledger.settle(self._known, self.session_id, over, handled=handled)
            for key in over:
                self._outbox.rows.pop(key, None)
            if not self._is_at_rest:
                self._known = _replace(self._known, open=True)
                await self._ledger.keep_chat(self._known)
                return
            self._close()
            self._run.let_go(self)

    def _close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._outbox = self._showing = self._serving = None


def session_id_of(channel: str, chat: ChatAddress, number: int = 1) -> str:
    """The name of the session of a chat; `number` counts its sessions."""
    parts = [channel, chat.id, *filter(None, [chat.thread])]
    named = ":".join(quote(part, safe="!@$-_.+") for part in parts)
    if len(named) > 150:
        named = f"{named[:100]}~{hashlib.sha256(named.encode()).hexdigest()[:32]}"
    return named if number == 1 else f"{named}~{number}"


def stops(update: Update, line: CommandLine | None) -> bool:
    """Whether an update stops what runs."""
    is_stop = line is not None and line.command in STOPS
    return is_stop or update.kind is UpdateKind.PRESSED_STOP
