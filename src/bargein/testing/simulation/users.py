"""The users of a simulated world. Each does the steps of its plan at its own pace, and remembers
what it was told."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio

from bargein.contracts.event import MessageEdited, Recorded, SessionTitled
from bargein.contracts.message import Attachment, Disposition
from bargein.contracts.store import OwnedElsewhere, StaleEpoch, StoreFailed
from bargein.contracts.tool import Approval
from bargein.errors import BargeinError, UserError
from bargein.session.journal import JournalBroken
from bargein.session.reply import SessionGone
from bargein.session.results import MessageGone
from bargein.session.session import Busy, IdReused, Sent, Session, TooLate, TurnFailed
from bargein.testing.simulation import plan as plans
from bargein.testing.simulation.record import Fate, Sending
from bargein.testing.simulation.stops import Stops, choose

if TYPE_CHECKING:
    from bargein.testing.simulation.world import World

OF_THE_STORE = (JournalBroken, StoreFailed, StaleEpoch, OwnedElsewhere)


class User:
    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._record = world.record
        self.name = f"user{number}"
        self._sent: list[tuple[plans.SendMessage, Sending]] = []

    async def live(self, steps: tuple[plans.Step, ...]) -> None:
        async with anyio.create_task_group() as group:
            for number, step in enumerate(steps):
                if step.moment is None:
                    await anyio.sleep(step.after_s)
                else:
                    await self._world.wait_for(step.moment, f"s{step.session}", step.after_s)
                perform = partial(self._perform, f"{self.name}.{number}", step)
                if step.alone:
                    await perform()
                else:
                    group.start_soon(perform)

    async def _perform(self, name: str, step: plans.Step) -> None:
        life = await self._world.usable_life()
        assert life.engine is not None
        with life.calling(), life.asking(*self._asks_for(step)):
            with anyio.move_on_after(
                step.gives_up_s if step.gives_up_s is not None else float("inf")
            ):
                await Deed(self, life, name, f"s{step.session}").do(step.action)

    def _asks_for(self, step: plans.Step) -> tuple[str, ...]:
        match step.action:
            case plans.WatchEvents():
                return ()
            case plans.SendAgain():
                before = self.sent_before(step.action.which)
                return (before[1].session,) if before is not None else ()
        return (f"s{step.session}",)

    # What a deed needs

    def remember(self, action: plans.SendMessage, sending: Sending) -> None:
        self._sent.append((action, sending))

    def sent_before(self, which: float) -> tuple[plans.SendMessage, Sending] | None:
        known = [each for each in self._sent if each[1].client_id is not None]
        return choose(known, which)


class Deed(Stops):
    """One step of one user in one life."""

    async def do(self, action: plans.Action) -> None:
        self._life.note(self._name, "does", action, "in", self._session)
        try:
            await _DEEDS[type(action)](self, action)
        except TooLate:
            self._life.note(self._name, "is too late")
        except (*OF_THE_STORE, SessionGone) as error:
            self._life.note(self._name, "is told", error)
            self._check_disturbed(error)
        except UserError as error:
            self._life.note(self._name, "is told", error)
            if not (self._life.dead or self._life.closing or self._laws.ended):
                self._record.blame(8, f"{self._name}: {error!r}")
        self._life.note(self._name, "is done")

    def _check_disturbed(self, error: BargeinError) -> None:
        if self._life.dead or self._life.closing or self._laws.ended:
            return
        if self._session not in self._record.disturbed:
            self._record.blame(8, f"{self._name}: {error!r}, and nothing had gone wrong")

    # Sending

    async def send(self, action: plans.SendMessage) -> None:
        sending = Sending(
            self._session,
            self._user.name,
            f"<{self._name}>",
            action.client_id,
            group=action.group,
        )
        self._user.remember(action, sending)
        await self._send(action, sending)

    async def send_again(self, again: plans.SendAgain) -> None:
        before = self._user.sent_before(again.which)
        if before is None:
            return
        action, first = before
        words = first.words if again.same_words else f"<{self._name} not {first.words}>"
        sending = Sending(first.session, first.sender, words, first.client_id)
        self._session, self._laws = first.session, self._record.laws_of(first.session)
        await self._send(action, sending)

    async def _send(self, action: plans.SendMessage, sending: Sending) -> None:
        self._record.sendings.append(sending)
        try:
            sent = await self._hand_over(action, sending)
        except (Busy, IdReused) as error:
            self._life.note(self._name, "is refused", error)
            sending.fate = Fate.REFUSED
            return
        finally:
            if sending.fate is Fate.PENDING:
                sending.fate = Fate.UNKNOWN
        if self._life.dead:
            return
        self._acknowledged(sending, sent)
        if action.waits_for_result:
            self._world.wait_beside(
                self._life,
                name=self._name,
                session=self._session,
                message=sent.message,
                wait=partial(self._result, sent),
            )

    async def _hand_over(self, action: plans.SendMessage, sending: Sending) -> Sent:
        session = await self._open()
        cat = (Attachment("cat.png", "image/png", b"cat"),) if action.attachment else ()
        return await session.send(
            sending.words,
            mode=action.mode,
            sender=sending.sender,
            client_id=sending.client_id,
            expected_turn=self._aim(action.aim),
            attachments=cat,
            group=action.group,
        )

    def _acknowledged(self, sending: Sending, sent: Sent) -> None:
        """Law 3: durable before acknowledged."""
        sending.fate, sending.message = Fate.ACKNOWLEDGED, sent.message
        self._life.note(self._name, "is told", sent.message, sent.disposition, sent.turn)
        accepted = self._laws.dispositions.get(sent.message)
        if accepted is None:
            self._record.blame(3, f"{self._session}: {sent.message} acknowledged, not durable")
        elif accepted.message.text != sending.words:
            self._record.blame(3, f"{self._session}: {sent.message} is not {sending.words}")
        elif sent.disposition not in (accepted.disposition, Disposition.DUPLICATE):
            self._record.blame(10, f"{sent.message} {sent.disposition}, log: {accepted}")

    async def _result(self, sent: Sent) -> None:
        """Law 3: a caller that waits gets the result of the turn that took the message."""
        try:
            result = await sent.result()
        except TurnFailed:
            return
        except MessageGone:
            if sent.message not in self._laws.withdrawn:
                self._record.blame(3, f"{sent.message} is reported as gone, and is not")
            return
        except (*OF_THE_STORE, SessionGone) as error:
            self._check_disturbed(error)
            return
        self._life.note(self._name, "has the result of", sent.message, result.turn, result.outcome)
        turn = self._laws.turns.get(result.turn)
        settled = turn.settled if turn is not None else None
        if settled is None or settled.outcome is not result.outcome:
            self._record.blame(10, f"{sent.message} ended as {result}, durable is {settled}")
        if self._laws.taken.get(sent.message) != result.turn:
            self._record.blame(3, f"{sent.message} was not taken by {result.turn}")

    # The turn and the inbox

    async def pause(self, action: plans.PauseTurn) -> None:
        await (await self._open()).pause()

    async def resume(self, action: plans.ResumeTurn) -> None:
        await (await self._open()).resume()

    async def continue_queue(self, action: plans.ContinueQueue) -> None:
        await (await self._open()).continue_()

    async def detach(self, action: plans.DetachCall) -> None:
        session = await self._open()
        call = self._choose_call(action.which)
        if call is None:
            return
        await session.detach(call)
        if call not in self._laws.detached and not self._life.dead:
            self._record.blame(3, f"{call} was detached, and it is not durable")

    async def edit(self, action: plans.EditMessage) -> None:
        session = await self._open()
        message = await self._choose_message(session, action.which)
        if message is None:
            return
        words = f"<{self._name}, edited>"
        await session.edit(message, words, by=self._user.name)
        if not any(_is_edit(each, message, words) for each in self._laws.log):
            self._record.blame(3, f"{message} was edited, and it is not durable")

    async def move(self, action: plans.MoveMessage) -> None:
        session = await self._open()
        message = await self._choose_message(session, action.which)
        before = None
        if action.before is not None:
            before = await self._choose_message(session, action.before)
        if message is not None and before != message:
            await session.move(message, before=before, by=self._user.name)

    async def withdraw(self, action: plans.WithdrawMessage) -> None:
        session = await self._open()
        message = await self._choose_message(session, action.which)
        if message is None:
            return
        await session.withdraw(message, by=self._user.name)
        if message not in self._laws.withdrawn:
            self._record.blame(3, f"{message} was withdrawn, and it is not durable")

    async def answer(self, action: plans.ReplyToQuestion) -> None:
        session = await self._open()
        asked = list(self._laws.asked if action.late else self._laws.questions)
        question = choose(asked, action.which)
        if question is not None:
            text = Approval.ALLOW if action.allow else Approval.DENY
            await session.answer(question, text, by=self._user.name)

    async def compact(self, action: plans.CompactSession) -> None:
        """Law 3: the caller gets the result of the turn that did nothing but compact."""
        session = await self._open()
        try:
            result = await session.compact(by=self._user.name)
        except (Busy, TurnFailed) as error:
            self._life.note(self._name, "is told", error)
            return
        turn = self._laws.turns.get(result.turn)
        settled = turn.settled if turn is not None else None
        if self._life.dead:
            return
        if turn is None or not turn.compacts or settled is None:
            self._record.blame(3, f"{self._name} compacted in {result.turn}, durable is {turn}")
        if settled.outcome is not result.outcome:
            self._record.blame(10, f"{result.turn} {result.outcome}, durable is {settled}")

    async def rename(self, action: plans.RenameSession) -> None:
        session = await self._open()
        title = f"the title of {self._name}"
        await session.rename(title, by=self._user.name)
        given = SessionTitled(title, self._user.name)
        if given not in self._laws.titles and not self._life.dead:
            self._record.blame(3, f"{self._session} was renamed, and it is not durable: {given}")

    async def watch(self, action: plans.WatchEvents) -> None:
        with self._life.asking(self._session):
            session = await self._open()
        seen = 0
        with anyio.move_on_after(action.seconds):
            async for event in session.watch(after=0):
                if self._life.dead or not isinstance(event, Recorded):
                    continue
                seen += 1
                durable = self._laws.log[seen - 1] if seen <= len(self._laws.log) else None
                if durable is None or event.seq != seen or event.event != durable.event:
                    self._record.blame(3, f"{self._name} is shown {event}, durable is {durable}")

    async def end(self, action: plans.EndSession) -> None:
        await (await self._open()).end(by=self._user.name)
        if not self._laws.ended and not self._life.dead:
            self._check_disturbed(SessionGone("ended, and it is not durable"))

    # Choices

    async def _choose_message(self, session: Session, which: float) -> str | None:
        waiting = [item.message.id for item in await session.inbox()]
        known = [*waiting, *self._laws.taken]
        return choose(known, which)


Doing = Callable[[Deed, plans.Action], Awaitable[None]]

_DEEDS: dict[type[plans.Action], Doing] = cast(
    dict[type[plans.Action], Doing],
    {
        plans.SendMessage: Deed.send,
        plans.SendAgain: Deed.send_again,
        plans.StopTurn: Deed.stop_turn,
        plans.StopFromAThread: Deed.stop_from_a_thread,
        plans.StopSession: Deed.stop_session,
        plans.StopCall: Deed.stop_call,
        plans.StopChild: Deed.stop_child,
        plans.CompactSession: Deed.compact,
        plans.RenameSession: Deed.rename,
        plans.PauseTurn: Deed.pause,
        plans.ResumeTurn: Deed.resume,
        plans.ContinueQueue: Deed.continue_queue,
        plans.DetachCall: Deed.detach,
        plans.EditMessage: Deed.edit,
        plans.MoveMessage: Deed.move,
        plans.WithdrawMessage: Deed.withdraw,
        plans.ReplyToQuestion: Deed.answer,
        plans.WatchEvents: Deed.watch,
        plans.EndSession: Deed.end,
    },
)


def _is_edit(recorded: Recorded, message: str, words: str) -> bool:
    event = recorded.event
    if not isinstance(event, MessageEdited) or event.message != message:
        return False
    return any(getattr(part, "text", "") == words for part in event.content)
