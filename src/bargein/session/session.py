"""A session, as its users see it: send, interrupt, watch, and manage the inbox.

`Session` is a light handle by name: the session itself may leave memory and come back.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from bargein.cancel import Cause, Reason
from bargein.contracts.budget import Spent
from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.choice import answer_of, choose
from bargein.contracts.event import (
    ChildEnded,
    ChildStarted,
    HistoryImported,
    Recorded,
    TurnOutcome,
)
from bargein.contracts.given import (
    check_attachments,
    check_heard_or_none,
    check_messages,
    check_number,
    check_texts,
    check_texts_or_none,
    wrong,
)
from bargein.contracts.live import ChildView
from bargein.contracts.message import (
    Attachment,
    Disposition,
    HeardSoFar,
    Message,
    Mode,
    QuestionPolicy,
)
from bargein.contracts.model import ModelMessage
from bargein.contracts.output_type import OutputType, T, output_type
from bargein.contracts.permission import (
    Grant,
    GrantScope,
    KeptGrant,
    May,
    PermissionMode,
    Standing,
)
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import Approval, OpenQuestion
from bargein.errors import BargeinError, UserError
from bargein.session import rewinding, staging
from bargein.session.abort import Interrupt, land, stopped_before
from bargein.session.broadcast import Watched
from bargein.session.children import views
from bargein.session.commands import (
    Accept,
    AddGrant,
    Command,
    Compact,
    Continue,
    Dismiss,
    Edit,
    End,
    Move,
    Refuse,
    RevokeGrant,
    SetMode,
    Withdraw,
)
from bargein.session.forking import AlreadyBegun, fork_id, read_fork
from bargein.session.reply import Answered, Reply, SessionGone
from bargein.session.results import ResultSlot, TurnResult
from bargein.session.rewinding import Rewind
from bargein.session.sending import (
    Busy,
    Content,
    IdReused,
    InboxFull,
    SendOptions,
    Sent,
    TooLate,
    TurnFailed,
    duplicate,
    find_key,
    hand_over,
    hash_of,
    parts_of,
    slot_of,
)
from bargein.session.side_question import SideAnswer, ask_aside
from bargein.session.state import Lane, SessionState
from bargein.session.streaming import TurnStream, stream_turn
from bargein.session.transcript import Transcript, check_history
from bargein.session.undo import Undone
from bargein.session.undoing_calls import CallsBeingUndone
from bargein.session.watching import follow, read_pages, tell_pages

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.engine import SessionEngine

__all__ = [
    "Busy",
    "Content",
    "Forbidden",
    "IdReused",
    "InboxFull",
    "InboxItem",
    "Sent",
    "Session",
    "TooLate",
    "TurnFailed",
]


U = TypeVar("U")

NAMED = (Scope.CALL, Scope.CHILD, Scope.SIDE)
BRING_A_MESSAGE = (Cause.REDIRECT, Cause.ROLLBACK)
CHILD_EVENTS = (ChildStarted, ChildEnded)


_SCOPES: dict[str, GrantScope] = {
    Approval.SESSION: GrantScope.SESSION,
    Approval.ALWAYS: GrantScope.PROJECT,
}


class Forbidden(UserError):
    """The caller's standing does not allow this answer or change."""


def _usual(actor: "Actor") -> Rewind:
    """Files go back if snapshots of the workspace are taken."""
    return Rewind.CONVERSATION if actor.parts.checkpoints is None else Rewind.BOTH


class InboxItem(msgspec.Struct, frozen=True):
    message: Message
    lane: Lane
    held: bool


class Session(Generic[T]):
    """`T` is the type of its answers' `output`: that of `Agent(output=...)`, or `str`."""

    def __init__(self, engine: "SessionEngine", session_id: str) -> None:
        self.id = session_id
        self._engine = engine

    @property
    def output_type(self) -> OutputType[T] | None:
        """The type of its agent's answers; None for words."""
        return self._engine.output_type

    # Messages

    @overload
    async def send(self, content: Content, **options: Unpack[SendOptions]) -> Sent[T]: ...

    @overload
    async def send(
        self, content: Content, *, output: type[U], **options: Unpack[SendOptions]
    ) -> Sent[U]: ...

    @overload
    async def send(
        self, content: Content, *, output: object, **options: Unpack[SendOptions]
    ) -> Sent[Any]: ...

    async def send(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        sender: str = "user",
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> Sent[Any]:
        """Send a message. It is durable when this returns; if its mode stops the turn, that happens
        at once.

        `expected_turn` guards only the effect on a running turn: if that turn is over, the message
        is still accepted. `output` and `questions` apply to the turn that takes the message: the
        type of its answer (`str` for words), in place of the agent's, and the policy for its
        questions. `heard` says how much of a turn the user has heard or seen: the model sees no
        more of it.
        """
        parts, those = parts_of(content), check_attachments("attachments", attachments)
        check_texts(sender=sender)
        check_texts_or_none(client_id=client_id, expected_turn=expected_turn, group=group)
        check_heard_or_none(heard)
        mode = mode if isinstance(mode, Mode) else choose(Mode, mode)
        asked_type = output_type(output) if output is not None else None
        asked = asked_type.output if asked_type is not None else None
        body_hash = hash_of(parts, those, mode, asked) if client_id is not None else b""
        while True:
            actor = self._engine.actor_in_memory(self.id) or await self._engine.actor(self.id)
            if not actor.logbook.is_readable:
                await self._engine.check_readable(actor)
            try:
                if client_id is not None:
                    known, reply = await find_key(self._engine, actor, sender, client_id)
                    if known is not None:
                        return await duplicate(
                            self._engine, actor, known, reply, body_hash, asked_type
                        )
                number = actor.state.messages + 1
                message = Message(
                    f"m{number}",
                    sender,
                    mode,
                    parts,
                    those,
                    client_id,
                    group,
                    output=asked,
                    questions=questions,
                )
                slot, reply = hand_over(actor, message, body_hash, expected_turn, asked_type, heard)
                try:
                    answer = await reply.wait()
                except BargeinError:
                    actor.results.forget(message.id, slot)
                    raise
            except SessionGone:
                continue
            if isinstance(answer, Accept):
                return Sent(
                    message.id,
                    answer.disposition,
                    answer.turn,
                    slot,
                    asked_type or self._engine.output_type,
                )
            assert isinstance(answer, Refuse)
            raise Busy(answer.why) if answer.status == "busy" else TooLate(answer.why)

    @overload
    def stream(self, content: Content, **options: Unpack[SendOptions]) -> TurnStream[T]: ...

    @overload
    def stream(
        self, content: Content, *, output: type[U], **options: Unpack[SendOptions]
    ) -> TurnStream[U]: ...

    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[SendOptions]
    ) -> TurnStream[Any]: ...

    def stream(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        sender: str = "user",
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> TurnStream[Any]:
        """`async for event in session.stream("..."):` sends a message like `send`, and yields the
        events of its turn as they happen; `bargein.events` has their types.

        The message is sent when the loop begins. The first event is the `TurnStarted` or
        `MessagesTaken` by which a turn takes the message: until then the stream yields nothing, and
        it never yields events of other turns. The last event is the `TurnSettled`. After it the
        stream raises `TurnFailed` if the turn failed; a stop is not a failure. Keep the stream to
        ask it for the result: `await stream.result()`.

        Leaving the loop, or cancelling the task that runs it, does not stop the turn;
        `interrupt()` does. The stream raises `TooSlow` if its reader falls too far behind.
        """
        send = partial(
            self.send,
            content,
            mode=mode,
            sender=sender,
            client_id=client_id,
            expected_turn=expected_turn,
            attachments=attachments,
            group=group,
            output=output,
            questions=questions,
            heard=heard,
        )
        accepted: list[Sent[Any]] = []
        return TurnStream(stream_turn(self._engine, self.id, send, accepted), accepted)

    async def result(self, message: str) -> TurnResult[T]:
        """Wait for the result of a message by its id, as `result()` of what `send` returned does.

        Raises `TurnFailed` if its turn failed, and `MessageGone` if no turn will ever take it.
        """
        check_texts(message=message)
        actor = await self._engine.actor(self.id)
        slot = await slot_of(self._engine, actor, message)
        asked = slot.output_type or self._engine.output_type
        return await Sent(message, Disposition.DUPLICATE, None, slot, asked).result()

    # Interrupts

    async def interrupt(
        self,
        *,
        scope: Scope | str = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        by: str = "user",
        cause: Cause = Cause.USER_STOP,
        heard: HeardSoFar | None = None,
    ) -> Receipt:
        """Stop a turn, call, sub-agent or session. Returns the receipt when all of it has settled.

        Messages that no turn has taken are held until `continue_` or the next message. Cancelling
        this call ends only the wait, not the stop.

        `heard` says how much of a turn the user has heard or seen: the model sees no more of it. It
        counts even if that turn, or the target of the stop, is over.
        """
        scope = choose(Scope, scope)
        check_texts_or_none(target=target)
        if scope in NAMED and target is None:
            raise UserError(f"name the {scope} to stop: target=...")
        return await self._interrupt(by, cause, scope, target, expected_turn, heard).receipt()

    def interrupt_now(
        self,
        *,
        expected_turn: str | None = None,
        by: str = "user",
        cause: Cause = Cause.USER_STOP,
        heard: HeardSoFar | None = None,
    ) -> Interrupt:
        """Stop the running turn from any thread or signal handler. Never waits.

        The turn is cancelled when this returns; everything else follows in the engine's loop, as
        after `interrupt`. `landed` of the returned object is True if a turn is being stopped; its
        `receipt()` can be awaited in the engine's loop.
        """
        stop = self._interrupt(by, cause, Scope.TURN, None, expected_turn, heard)
        self._engine.call_in_loop(stop.tell)
        return stop

    def _interrupt(
        self,
        by: str,
        cause: Cause,
        scope: Scope,
        target: str | None,
        expected_turn: str | None,
        heard: HeardSoFar | None,
    ) -> Interrupt:
        check_texts(by=by)
        check_heard_or_none(heard)
        check_texts_or_none(expected_turn=expected_turn)
        if not isinstance(cause, Cause):
            raise wrong("cause", cause, f"give a Cause, such as {Cause.USER_STOP!r}")
        if cause in BRING_A_MESSAGE:
            raise wrong("cause", cause, "a stop with this cause has a message: use send(mode=...)")
        return Interrupt(
            self._engine,
            self.id,
            Reason(cause, by),
            scope=scope,
            target=target,
            expected_turn=expected_turn,
            heard=heard,
        )

    async def pause(self) -> None:
        """Hold the turn at its next step boundary, and its sub-agents at theirs."""
        await self._done((await self._engine.actor(self.id)).pause())

    async def resume(self) -> None:
        await self._done((await self._engine.actor(self.id)).resume())

    async def detach(self, call_id: str) -> None:
        """Move a running call to the background: it survives a stop of the turn."""
        check_texts(call_id=call_id)
        actor = await self._engine.actor(self.id)
        turn, call = actor.turn, actor.find_call(call_id)
        reply = turn.calls.detach(call) if turn is not None and call is not None else None
        if reply is None:
            raise TooLate(f"{call_id} is not running; nothing was moved")
        await reply.wait()

    async def side_question(self, question: str, *, question_id: str | None = None) -> SideAnswer:
        """Ask the model something beside the running turn, without touching it: it answers from a
        copy of the conversation, runs no tools, and neither question nor answer is kept. Only the
        usage is counted.

        `interrupt(scope="side", target=question_id)` stops it, and so does cancelling this call;
        without a `question_id` it gets one. Takes two minutes at most.
        """
        check_texts(question=question)
        check_texts_or_none(question_id=question_id)
        actor = await self._engine.actor(self.id)
        return await ask_aside(self._engine, actor, question, question_id)

    # Questions and sub-agents

    async def questions(self) -> tuple[OpenQuestion, ...]:
        """Return the open questions and approvals, including those of sub-agents and those that a
        restart left open."""
        state = await self.state()
        return tuple(pending.asked for pending in state.questions)

    async def answer(
        self,
        question: str,
        text: str,
        *,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> Sent[T] | None:
        """Answer a question by its id. Raises `TooLate` if it is not open any more, `Forbidden` if
        `standing` is not enough.

        `text` names a choice in full, by its number or by its first letter. `allow` or `yes`
        approves this call; `session` or `always` approves everything that the question's grant
        covers. Any other answer to an approval denies the call, and the model reads it as the
        reason. If a restart left the question open, the answer becomes a message, which starts a
        turn or joins one, and this returns that message. In it the model reads both question and
        answer.
        """
        check_texts(question=question, text=text, by=by)
        actor = await self._engine.actor(self.id)
        pending = actor.state.question(question)
        if pending is not None:
            text = answer_of(text, pending.asked.question)
        grant = pending.asked.question.grant if pending is not None else None
        offered = pending.asked.question.choices if pending is not None else ()
        scope = _SCOPES.get(text) if grant is not None and text in offered else None
        if scope is not None and text not in actor.permits.may(standing).choices:
            raise Forbidden("only the owner can always allow something; answer with session")
        left_open = pending is not None and not pending.live
        if left_open:
            await self._engine.check_readable(actor)
        message = f"m{actor.state.messages + 1}"
        reply = actor.questions.answer(question, text, by, standing)
        slot = ResultSlot()
        if left_open:
            actor.results.begin(message, slot)
        try:
            answer = await self._done(reply)
        except BargeinError:
            actor.results.forget(message, slot)
            raise
        if grant is not None and scope is not None:
            await self._grant(actor, grant, scope, by)
        if isinstance(answer, Accept):
            return Sent(
                answer.message, answer.disposition, answer.turn, slot, self._engine.output_type
            )
        return None

    async def _grant(self, actor: "Actor", grant: Grant, scope: GrantScope, by: str) -> None:
        permits = actor.permits
        if scope is GrantScope.PROJECT and permits.settings.grants is not None:
            permits.settings.grants.keep(grant, by)
        await permits.root.post(AddGrant(grant, scope, by, self._engine.now())).wait()

    # What it permits

    async def mode(self) -> PermissionMode:
        """Return the permission mode for the next call."""
        return (await self._engine.actor(self.id)).permits.mode

    async def set_mode(
        self,
        mode: PermissionMode | str,
        *,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> PermissionMode:
        """Change the permission mode, from the next call on. Durable when this returns.

        Loosening the mode answers questions before they are asked, so it needs the same standing as
        answering them. A sub-agent's mode is never looser than its parent's.
        """
        check_texts(by=by)
        wanted = mode if isinstance(mode, PermissionMode) else choose(PermissionMode, mode)
        actor = await self._engine.actor(self.id)
        permits = actor.permits
        if wanted.looseness > permits.loosest.looseness:
            raise UserError(
                f"a sub-agent cannot be looser than its parent and its kind, which allow "
                f"{permits.loosest}; change its parent's mode first"
            )
        if wanted not in permits.may(standing).modes:
            raise Forbidden("only somebody who may approve calls can loosen the permission mode")
        await self._tell(SetMode(wanted, by))
        return permits.mode

    async def may(self, standing: Standing = Standing.OWNER) -> May:
        """Return what a person of this standing may change about permissions. Surfaces offer only
        that."""
        return (await self._engine.actor(self.id)).permits.may(standing)

    async def grants(self, scope: GrantScope | str = GrantScope.SESSION) -> tuple[KeptGrant, ...]:
        """Return the grants of this session, or with `"project"` those of its project, the oldest
        first."""
        permits = (await self._engine.actor(self.id)).permits
        if choose(GrantScope, scope) is GrantScope.SESSION:
            return permits.root.state.grants
        kept = permits.settings.grants
        return kept.kept() if kept is not None else ()

    async def revoke(
        self,
        grant: str,
        *,
        scope: GrantScope | str = GrantScope.SESSION,
        by: str = "user",
        standing: Standing = Standing.OWNER,
    ) -> None:
        """Revoke a grant by its id: such calls need approval again, in this session, or with
        `scope="project"` in every session of the project. Raises `TooLate` if the grant does not
        exist, `Forbidden` if `standing` is not enough."""
        check_texts(grant=grant, by=by)
        scope = choose(GrantScope, scope)
        permits = (await self._engine.actor(self.id)).permits
        if scope not in permits.may(standing).revokes:
            raise Forbidden("only the owner can revoke what is allowed for always")
        kept = permits.settings.grants
        if scope is GrantScope.PROJECT and not (kept is not None and kept.revoke(grant)):
            raise TooLate(f"there is no grant {grant} in this project")
        await self._done(permits.root.post(RevokeGrant(grant, by, scope)))

    async def dismiss(self, question: str, *, by: str = "user") -> None:
        """Close a question that a restart left open, without an answer."""
        check_texts(question=question, by=by)
        await self._tell(Dismiss(question, by))

    async def children(self) -> tuple[ChildView, ...]:
        """Return all sub-agents that this session itself started, in order."""
        child_events: list[Recorded] = []

        def keep(recorded: Recorded) -> None:
            if isinstance(recorded.event, CHILD_EVENTS):
                child_events.append(recorded)

        await tell_pages(self._engine.events, self.id, keep)
        return views(child_events)

    # The inbox

    async def inbox(self) -> tuple[InboxItem, ...]:
        state = await self.state()
        return tuple(InboxItem(each.message, each.lane, state.held) for each in state.waiting)

    async def edit(self, message: str, content: Content, *, by: str = "user") -> None:
        check_texts(message=message, by=by)
        await self._tell(Edit(message, parts_of(content), by))

    async def move(self, message: str, *, before: str | None = None, by: str = "user") -> None:
        check_texts(message=message, by=by)
        check_texts_or_none(before=before)
        await self._tell(Move(message, before, by))

    async def withdraw(self, message: str, *, by: str = "user") -> None:
        check_texts(message=message, by=by)
        await self._tell(Withdraw(message, by))

    async def continue_(self) -> None:
        """Continue with the held messages."""
        await self._engine.check_readable(await self._engine.actor(self.id))
        await self._tell(Continue())

    # Going back

    async def undo(
        self, *, files: bool | None = None, overrule: Sequence[str] = (), by: str = "user"
    ) -> Undone:
        """Take back the last turn the model can see; one that runs is stopped first. Again: the
        turn before.

        The files that its calls changed are put back if snapshots are taken; with `files=True`
        it raises if none are, with `files=False` they stay. A file that somebody else has
        changed since is kept and named, unless `overrule` names it. Other effects of the calls
        stay: the answer and the model's next message name them. `offers` of the answer are the
        calls that `undo_calls` can undo.
        """
        check_texts(by=by)
        actor, log = await self._at_rest(by)
        turn = rewinding.last_turn(log)
        what = _usual(actor) if files is None else Rewind.BOTH if files else Rewind.CONVERSATION
        return await rewinding.take_back(actor, (turn,), log, what, overrule=overrule, by=by)

    async def preview_undo(
        self, turn: str | None = None, *, overrule: Sequence[str] = ()
    ) -> Undone:
        """Say what `undo`, or a rewind to before `turn`, would do. Changes nothing."""
        check_texts_or_none(turn=turn)
        actor = await self._all_told()
        return await rewinding.preview(actor, turn, await self.events(), overrule)

    async def rewind(
        self,
        turn: str,
        what: Rewind | str | None = None,
        *,
        overrule: Sequence[str] = (),
        by: str = "user",
    ) -> Undone:
        """Go back to before `turn`: take it and all later turns back from the model
        (`conversation`), put back their files (`files`), or `both`, which is meant if snapshots
        are taken. A running turn is stopped."""
        check_texts(turn=turn, by=by)
        chosen = None if what is None else choose(Rewind, what)
        actor, log = await self._at_rest(by)
        turns = rewinding.known_turns(turn, log)
        what = chosen or _usual(actor)
        return await rewinding.take_back(actor, turns, log, what, overrule=overrule, by=by)

    async def redo(self, *, by: str = "user") -> FilesUndone:
        """Take back the last undo of files, as far as nobody has changed them since. The model
        does not see the turn again."""
        check_texts(by=by)
        actor, log = await self._at_rest(by)
        return await rewinding.redo(actor, log, by=by)

    async def diff(self, turn: str | None = None) -> str:
        """What the calls of a turn changed in files, as `git diff` shows it; of the last turn that
        changed any if none is named. Empty if nothing changed."""
        check_texts_or_none(turn=turn)
        actor = await self._all_told()
        return await rewinding.diff(actor, turn, await self.events())

    async def undo_calls(
        self, calls: Sequence[str] | None = None, *, by: str = "user"
    ) -> CallsBeingUndone:
        """Undo calls whose tools declare how (`@tool(undo=...)`): those with these ids, or all of
        the last turn that has any. `undo` and `preview_undo` offer them.

        Returns when the turn that does it has begun. In that turn each is a call like others: it
        may need an approval, can be stopped, and the log has its result. Raises `Busy` if a turn
        is running, `TooLate` if there is nothing to undo.
        """
        check_texts(by=by, **{f"calls[{n}]": each for n, each in enumerate(calls or ())})
        if (await self.state()).busy:
            raise Busy("a turn is running; stop it first")
        actor = await self._all_told()
        return await rewinding.undo_calls(actor, calls, await self.events(), by=by)

    # The stage

    async def staged(self) -> StagedFiles | None:
        """What this session's turns changed in its stage and nobody has accepted: what an
        acceptance would do, and the diff. None if the session is not staged."""
        actor = await self._engine.actor(self.id)
        return await actor.parts.stage.look() if actor.parts.stage is not None else None

    async def set_staged(self, on: bool = True, *, by: str = "user") -> None:
        """Let the session work in a copy of its folder from its next turn on, its stage: the folder
        changes when somebody accepts. `False` ends that. Raises `Busy` if a turn runs, `UserError`
        if nothing can be staged here, or if something is still staged."""
        check_texts(by=by)
        actor = await self._engine.actor(self.id)
        place = actor.state.place or SessionPlace("")
        stage = actor.parts.stage
        await self.set_place(msgspec.structs.replace(place, staged=on), by=by)
        if not on and stage is not None:
            await stage.drop()

    async def accept_staged(
        self, paths: Sequence[str] = (), *, overrule: Sequence[str] = (), by: str = "user"
    ) -> StagedFiles:
        """Change the session's folder as its stage was changed: these paths and what is below
        them, or everything. A path that somebody changed meanwhile is kept and named, unless
        `overrule` names it. Raises `Busy` if a turn runs, or a call in the background."""
        check_texts(by=by)
        return await staging.accept(await self._all_told(), paths, overrule, by=by)

    async def undo_accept(self, *, by: str = "user") -> StagedFiles:
        """Take the last acceptance back, as far as nobody has changed its files since. What it
        changed is staged again."""
        check_texts(by=by)
        return await staging.take_back(await self._all_told(), await self.events(), by=by)

    async def discard_staged(self, paths: Sequence[str] = (), *, by: str = "user") -> StagedFiles:
        """Drop what is staged: these paths and what is below them, or everything."""
        check_texts(by=by)
        return await staging.discard(await self._all_told(), paths, by=by)

    async def _all_told(self) -> "Actor":
        """Wait until the log tells everything, snapshots included."""
        actor = await self._engine.actor(self.id)
        await actor.files.idle()
        # A turn may have ended a moment ago, and the log not tell of it yet.
        await actor.written()
        return actor

    async def _at_rest(self, by: str) -> "tuple[Actor, list[Recorded]]":
        """Stop the running turn, wait until the log tells all of it, and read the log. Raise
        `TooLate` if another turn begins meanwhile."""
        state = await self.state()
        if state.busy or state.restoring:
            await self.interrupt(by=by)
        actor = await self._all_told()
        log = await self.events()
        rewinding.refuse_if_untold(actor, log)
        return actor, log

    async def compact(self, *, by: str = "user") -> TurnResult:
        """Summarise the older part of the conversation now, in a separate turn that can be stopped
        like any other. Raises `Busy` if a turn is running."""
        check_texts(by=by)
        while True:
            actor = await self._engine.actor(self.id)
            if not actor.turns.can_compact:
                raise UserError("this engine runs a user-written agent, which cannot compress")
            await self._engine.check_readable(actor)
            if not actor.gone.is_set:
                break  # otherwise it left memory meanwhile
        told = actor.post(Compact(by))
        turn = actor.turn
        answer = await told.wait()
        if isinstance(answer, Refuse) or turn is None:
            raise Busy(answer.why if isinstance(answer, Refuse) else "the session is busy")
        result = await turn.settled.wait()
        if result.outcome is TurnOutcome.FAILED:
            raise TurnFailed(result.error, retryable=False)
        return result

    async def rename(self, title: str, *, by: str = "user") -> None:
        """Give the session a title. Durable when this returns."""
        check_texts(title=title, by=by)
        actor = await self._engine.actor(self.id)
        await actor.titler.rename(title, by).wait()

    async def place(self) -> SessionPlace | None:
        """Return where the session works; None if nobody has said."""
        return (await self._engine.actor(self.id)).state.place

    async def set_place(
        self, place: SessionPlace, *, environment: Mapping[str, str] | None = None, by: str = "user"
    ) -> None:
        """Let the session work in another folder or with another model, from its next turn on.
        Raises `Busy` if a turn works in its folder. An engine without `agent_of` only writes the
        place down. `environment` has variables for the agent there, such as keys of providers; it
        stays in memory, until the engine is closed. Raises `UserError` if something is staged that
        the session would leave behind."""
        check_texts(by=by)
        await self._engine.place(self.id, place, environment=environment, by=by)

    async def end(self, *, by: str = "user") -> None:
        """End the session for good: stop its turn and its background, and leave its inbox
        unanswered."""
        check_texts(by=by)
        actor = await self._engine.actor(self.id)
        landing = land(actor, Reason(Cause.SHUTDOWN, by))
        await actor.post(End(by, stopped_before(landing))).wait()
        await actor.gone.wait()

    async def settled(self) -> None:
        """Wait until no turn runs, no message would start one by itself, and all is stored."""
        while True:
            actor = await self._engine.actor(self.id)
            turn = actor.turn
            if turn is None:
                await actor.files.restored()
                await actor.written()
                if actor.turn is None and not actor.state.restoring:
                    return
            else:
                with suppress(SessionGone):
                    await turn.settled.wait()

    async def begin_with(
        self, history: Sequence[ModelMessage], *, instructions: str = "", by: str = "user"
    ) -> None:
        """Begin with a conversation from elsewhere. Only once, before the first message."""
        check_texts(instructions=instructions, by=by)
        history = check_messages("history", history)
        check_history(history)
        actor = await self._engine.actor(self.id)
        if actor.appended_seq:
            raise AlreadyBegun(
                f"session {self.id} has already begun; a history can only come first. Use a new "
                "session"
            )
        await actor.write(HistoryImported(tuple(history), instructions, by)).wait()

    async def fork(self, turn: str | None = None, *, by: str = "user") -> str:
        """Make a session that begins with what this one said until the end of `turn`, or of the
        last turn that is over; return its id. It works in the same place. This one is unchanged."""
        check_texts(by=by)
        check_texts_or_none(turn=turn)
        forked = await read_fork(self, turn)
        made = await self._engine.session(fork_id())
        await forked.begin(made, by=by)
        return made.id

    async def position(self) -> int:
        """Return the number of the last durable event, to watch from there."""
        return (await self._engine.actor(self.id)).durable_seq

    # Looking

    async def state(self) -> SessionState:
        return (await self._engine.actor(self.id)).state

    async def usage(self) -> Spent:
        """Return what the session has used since it began: steps, tokens, and cost if known."""
        return (await self._engine.actor(self.id)).logbook.accounts.spent

    async def events(self, *, after: int = 0) -> list[Recorded]:
        check_number("after", after)
        return await self._engine.events(self.id, after=after)

    async def log(self) -> AsyncGenerator[Recorded, None]:
        """Yield the events one by one, with one page of the log in memory at a time."""
        async with aclosing(read_pages(self._engine.events, self.id)) as pages:
            async for recorded in pages:
                yield recorded

    async def transcript(self) -> tuple[ModelMessage, ...]:
        transcript = Transcript()

        def add(recorded: Recorded) -> None:
            transcript.apply(recorded.event, recorded.seq)

        await tell_pages(self._engine.events, self.id, add)
        return transcript.messages()

    async def watch(self, *, after: int | None = None) -> AsyncGenerator[Watched, None]:
        """Yield events as they happen; with `after`, first those of the log since then, none twice.

        If work is in progress, the first events contain its text and output so far, so that the
        deltas after them continue it. Ends with the session or the engine, and when another process
        claims the session. Raises `TooSlow` if its reader falls too far behind.
        """
        async with aclosing(self.watch_many(after=after)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    def watch_many(self, *, after: int | None = None) -> AsyncGenerator[list[Watched], None]:
        """Like `watch`, in lists, for a reader that takes all waiting events at once."""
        if after is not None:
            check_number("after", after)
        return follow(self._engine, self.id, after)

    async def _tell(self, command: Command) -> Answered:
        actor = await self._engine.actor(self.id)
        return await self._done(actor.post(command))

    async def _done(self, reply: Reply) -> Answered:
        answer = await reply.wait()
        if isinstance(answer, Refuse):
            raise Forbidden(answer.why) if answer.status == "forbidden" else TooLate(answer.why)
        return answer
