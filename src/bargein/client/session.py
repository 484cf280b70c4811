"""A session over the wire, with the methods of `bargein.Session`.

Who speaks is whom the client's token names: the parameters `sender`, `by` and `standing` of the
engine's own methods are the server's to fill in.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, Unpack, overload
from urllib.parse import quote

import msgspec

from bargein.client.commands import AskedCommand, Resend
from bargein.client.connection import COMMAND_BYTES_MAX, ServerConnection
from bargein.client.watches import WireWatch
from bargein.client.wire import (
    DetailReply,
    DiffReply,
    DoneReply,
    GrantsReply,
    InboxReply,
    LogReply,
    ResultReply,
    SentReply,
    SettledReply,
    StageReply,
    TranscriptReply,
    read,
)
from bargein.contracts.budget import Spent
from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.choice import choose
from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.given import (
    check_attachments,
    check_heard_or_none,
    check_messages,
    check_number,
    check_texts,
    check_texts_or_none,
)
from bargein.contracts.live import ChildView, TurnEvent
from bargein.contracts.message import Attachment, Disposition, HeardSoFar, Mode, QuestionPolicy
from bargein.contracts.model import ModelMessage
from bargein.contracts.output_type import OutputType, output_type
from bargein.contracts.permission import GrantScope, KeptGrant, May, PermissionMode
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.stage import StagedFiles
from bargein.contracts.tool import OpenQuestion
from bargein.errors import UserError
from bargein.session.broadcast import Watched
from bargein.session.results import MessageGone, TurnResult
from bargein.session.rewinding import Rewind
from bargein.session.sending import AnySendOptions, parts_of
from bargein.session.session import NAMED, Content, InboxItem, Sent, TooLate, TurnFailed
from bargein.session.side_question import SideAnswer
from bargein.session.state import SessionState
from bargein.session.streaming import EventsOfTurn, TurnStream
from bargein.session.undo import Undone
from bargein.session.undoing_calls import CallsBeingUndone

U = TypeVar("U")

WAIT_S = 50
"""How long the server may hold one request that waits for a turn. Then the client asks again."""


class Session:
    def __init__(self, connection: ServerConnection, session_id: str) -> None:
        self.id = session_id
        self._connection = connection

    # Messages

    @overload
    async def send(self, content: Content, **options: Unpack[AnySendOptions]) -> Sent[str]: ...

    @overload
    async def send(
        self, content: Content, *, output: type[U], **options: Unpack[AnySendOptions]
    ) -> Sent[U]: ...

    @overload
    async def send(
        self, content: Content, *, output: object, **options: Unpack[AnySendOptions]
    ) -> Sent[Any]: ...

    async def send(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> Sent[Any]:
        """Hand over a message. Durable when this returns.

        Without a `client_id` the client makes one. So a message that is sent again after a broken
        connection is taken once; `disposition` is `duplicate` if the first copy had arrived.
        """
        check_texts_or_none(client_id=client_id, expected_turn=expected_turn, group=group)
        check_heard_or_none(heard)
        asked_type = output_type(output) if output is not None else None
        body: dict[str, Any] = {
            "content": parts_of(content),
            "mode": mode if isinstance(mode, Mode) else choose(Mode, mode),
            "client_message_id": client_id or secrets.token_urlsafe(16),
        }
        given = {
            "expected_turn_id": expected_turn,
            "attachments": check_attachments("attachments", attachments) or None,
            "group": group,
            "output": asked_type.output if asked_type is not None else None,
            "questions": questions,
            "heard": heard,
        }
        body |= {name: value for name, value in given.items() if value is not None}
        answer = await self._ask_large("send_message", "POST", "messages", body)
        return self._sent(read(SentReply, answer), asked_type)

    @overload
    def stream(self, content: Content, **options: Unpack[AnySendOptions]) -> TurnStream[str]: ...

    @overload
    def stream(
        self, content: Content, *, output: type[U], **options: Unpack[AnySendOptions]
    ) -> TurnStream[U]: ...

    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[AnySendOptions]
    ) -> TurnStream[Any]: ...

    def stream(
        self,
        content: Content,
        *,
        mode: Mode | str = Mode.STEER,
        client_id: str | None = None,
        expected_turn: str | None = None,
        attachments: Sequence[Attachment] = (),
        group: str | None = None,
        output: object = None,
        questions: QuestionPolicy | None = None,
        heard: HeardSoFar | None = None,
    ) -> TurnStream[Any]:
        """Sends a message and yields the events of its turn, as `bargein.Session.stream` does.

        After a broken connection an `AnswerSoFar` or `OutputSoFar` takes the place of the pieces
        that came before it; no event of the log is missed or comes twice.
        """
        send = partial(
            self.send,
            content,
            mode=mode,
            client_id=client_id,
            expected_turn=expected_turn,
            attachments=attachments,
            group=group,
            output=output,
            questions=questions,
            heard=heard,
        )
        accepted: list[Sent[Any]] = []
        return TurnStream(self._stream(send, client_id is not None, accepted), accepted)

    async def _stream(
        self, send: Callable[[], Awaitable[Sent[Any]]], is_named: bool, accepted: list[Sent[Any]]
    ) -> AsyncGenerator[TurnEvent, None]:
        """`is_named`: the caller gave the message an id, and may have sent it before."""
        # Opened before the message is sent: the first words of the answer can come at any moment.
        watch = await self._watch(None)
        try:
            sent = await send()
            accepted.append(sent)
            if is_named and sent.disposition is Disposition.DUPLICATE:
                # Its turn began earlier, so the log has the beginning.
                self._connection.unwatch(watch)
                watch = await self._watch(0)
            events = EventsOfTurn(sent.message)
            while not events.are_over and (batch := await watch.next()):
                for shown in batch:
                    event = shown.event if isinstance(shown, Recorded) else shown
                    if events.include(event):
                        yield event
        finally:
            self._connection.unwatch(watch)
        # Raises if the turn failed or the message was withdrawn.
        await sent.result()

    async def result(self, message: str) -> TurnResult[str]:
        """Wait for the result of a message by its id. Raises `TurnFailed` if its turn failed, and
        `MessageGone` if no turn will ever take it."""
        check_texts(message=message)
        return await Sent(
            message, Disposition.DUPLICATE, None, _ResultOverWire(self, message)
        ).result()

    def _sent(self, reply: SentReply, asked: OutputType[Any] | None = None) -> Sent[Any]:
        slot = _ResultOverWire(self, reply.message)
        return Sent(reply.message, reply.disposition, reply.turn, slot, asked)

    # Interrupts

    async def interrupt(
        self,
        *,
        scope: Scope | str = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        heard: HeardSoFar | None = None,
    ) -> Receipt:
        """Stop what is named; return the receipt when all of it has settled.

        If the connection breaks meanwhile the stop is asked again under the same key: it has its
        effect once, and stops nothing that began in a server that was started since. Cancelling
        this call ends only the waiting.
        """
        scope = choose(Scope, scope)
        check_texts_or_none(target=target, expected_turn=expected_turn)
        check_heard_or_none(heard)
        if scope in NAMED and target is None:
            raise UserError(f"say which {scope} is to be stopped: target=...")
        body = _without_none(
            scope=scope, target=target, expected_turn_id=expected_turn, heard=heard
        )
        return read(Receipt, await self._ask("interrupt", body=body, again=Resend.AIMED))

    def interrupt_now(
        self, *, expected_turn: str | None = None, heard: HeardSoFar | None = None
    ) -> "StopOverWire":
        """Ask for a stop of the running turn from any thread or signal handler. Never waits."""
        check_texts_or_none(expected_turn=expected_turn)
        check_heard_or_none(heard)
        body = _without_none(expected_turn_id=expected_turn, heard=heard)
        asked = self._connection.begin_soon(
            "interrupt", params={"session": self.id}, body=body, again=Resend.AIMED
        )
        return StopOverWire(self._connection, asked)

    async def side_question(self, question: str, *, question_id: str | None = None) -> SideAnswer:
        """Ask the model something beside the running turn, without touching it. Cancelling this
        call stops it."""
        check_texts(question=question)
        check_texts_or_none(question_id=question_id)
        question_id = question_id or f"b{secrets.token_hex(8)}"
        body = {"text": question, "id": question_id}
        try:
            return read(SideAnswer, await self._ask("side_question", body=body, again=Resend.NEVER))
        except asyncio.CancelledError:
            stop = {"scope": Scope.SIDE, "target": question_id}
            params = {"session": self.id}
            self._connection.begin_soon("interrupt", params=params, body=stop, again=Resend.AIMED)
            raise

    async def pause(self) -> None:
        """Hold the turn at its next step boundary, and its sub-agents at theirs."""
        await self._do("pause")

    async def resume(self) -> None:
        await self._do("resume")

    async def detach(self, call_id: str) -> None:
        """Move a running call to the background: it survives a stop of the turn."""
        check_texts(call_id=call_id)
        await self._do("detach_call", call=call_id)

    # Questions and sub-agents

    async def questions(self) -> tuple[OpenQuestion, ...]:
        """The open questions and approvals, those of sub-agents and those that a restart left open
        included."""
        return (await self._detail()).questions

    async def answer(self, question: str, text: str) -> Sent[str] | None:
        """Answer a question, by its id; `TooLate` if it is not open any more, `Forbidden` if this
        client may not answer it."""
        check_texts(question=question, text=text)
        done = await self._do("answer_question", body={"text": text}, question=question)
        return self._sent(done.sent) if done.sent is not None else None

    async def mode(self) -> PermissionMode:
        """The permission mode that its next call is decided by."""
        return (await self._detail()).mode

    async def set_mode(self, mode: PermissionMode | str) -> PermissionMode:
        """Change the permission mode, from the next call on. Durable when this returns."""
        wanted = mode if isinstance(mode, PermissionMode) else choose(PermissionMode, mode)
        answer = await self._ask("change_session", body={"mode": wanted}, again=Resend.SAME)
        return read(DetailReply, answer).mode

    async def may(self) -> May:
        """What this client may change about permissions. Surfaces offer only that."""
        return (await self._detail()).may

    async def grants(self, scope: GrantScope | str = GrantScope.SESSION) -> tuple[KeptGrant, ...]:
        """The grants of this session, or with `"project"` those of its project, the oldest first,
        if this client may revoke them."""
        wanted = choose(GrantScope, scope)
        found = read(GrantsReply, await self._ask("list_grants")).grants
        return tuple(
            KeptGrant(each.grant, each.by, each.at) for each in found if each.scope is wanted
        )

    async def revoke(self, grant: str, *, scope: GrantScope | str = GrantScope.SESSION) -> None:
        """Revoke a grant by its id: such calls need approval again, in this session, or with
        `scope="project"` in every session of the project."""
        check_texts(grant=grant)
        query = {"scope": str(choose(GrantScope, scope))}
        params = {"grant": grant}
        answer = await self._ask("revoke_grant", params, query=query, again=Resend.SAME)
        _done(read(DoneReply, answer))

    async def dismiss(self, question: str) -> None:
        """Close a question that a restart has left open, without an answer."""
        check_texts(question=question)
        await self._do("dismiss_question", question=question)

    async def children(self) -> tuple[ChildView, ...]:
        """All sub-agents that this session has begun itself, in order."""
        return (await self._detail()).children

    # The inbox

    async def inbox(self) -> tuple[InboxItem, ...]:
        """What waits. Files of messages have no bytes here."""
        found = read(InboxReply, await self._ask("get_inbox"))
        return tuple(InboxItem(each.message, each.lane, each.held) for each in found.messages)

    async def edit(self, message: str, content: Content) -> None:
        check_texts(message=message)
        body = {"content": parts_of(content)}
        place = f"inbox/{quote(message, safe='')}"
        answer = await self._ask_large("change_message", "PATCH", place, body, message=message)
        _done(read(DoneReply, answer))

    async def move(self, message: str, *, before: str | None = None) -> None:
        check_texts(message=message)
        check_texts_or_none(before=before)
        await self._do("change_message", body={"before": before}, message=message)

    async def withdraw(self, message: str) -> None:
        check_texts(message=message)
        await self._do("withdraw_message", message=message)

    async def continue_(self) -> None:
        """Go on with what is held."""
        await self._do("continue_queue")

    # The conversation

    async def undo(self, *, files: bool | None = None, overrule: Sequence[str] = ()) -> Undone:
        """Take back the last turn the model can see; one that runs is stopped first. Its files are
        put back if the server takes snapshots; `files` and `overrule` as in `bargein.Session`."""
        body = {"files": files, "overrule": list(overrule)}
        return read(Undone, await self._ask("undo_turn", body=body, again=Resend.NEVER))

    async def preview_undo(
        self, turn: str | None = None, *, overrule: Sequence[str] = ()
    ) -> Undone:
        """Say what an undo, or a rewind to before `turn`, would do. Changes nothing."""
        check_texts_or_none(turn=turn)
        body = {"turn": turn, "overrule": list(overrule)}
        return read(Undone, await self._ask("preview_undo", body=body, again=Resend.SAME))

    async def rewind(
        self, turn: str, what: Rewind | str | None = None, *, overrule: Sequence[str] = ()
    ) -> Undone:
        """Go back to before `turn`: the conversation, the files, or both."""
        check_texts(turn=turn)
        chosen = None if what is None else choose(Rewind, what)
        body = {"turn": turn, "what": chosen, "overrule": list(overrule)}
        return read(Undone, await self._ask("rewind_session", body=body, again=Resend.NEVER))

    async def redo(self) -> FilesUndone:
        """Take back the last undo of files, as far as nobody has changed them since."""
        return read(FilesUndone, await self._ask("redo_files", again=Resend.NEVER))

    async def undo_calls(self, calls: Sequence[str] | None = None) -> CallsBeingUndone:
        """Begin a turn that undoes calls whose tools declare how, as `bargein.Session` does."""
        body = {"calls": None if calls is None else list(calls)}
        return read(CallsBeingUndone, await self._ask("undo_calls", body=body, again=Resend.NEVER))

    async def diff(self, turn: str | None = None) -> str:
        """What the calls of a turn changed in files, as `git diff` shows it."""
        check_texts_or_none(turn=turn)
        found = await self._ask("diff_turn", body={"turn": turn}, again=Resend.SAME)
        return read(DiffReply, found).diff

    async def staged(self) -> StagedFiles | None:
        """What is staged: what an acceptance would do, and the diff. None if the session is not
        staged."""
        return read(StageReply, await self._ask("get_stage")).files

    async def set_staged(self, on: bool = True) -> None:
        """Let the session work in a copy of its folder, or in the folder itself again. Only for the
        terminals of the user who runs the server."""
        await self._ask("stage_session", body={"on": on}, again=Resend.SAME)

    async def accept_staged(
        self, paths: Sequence[str] = (), *, overrule: Sequence[str] = ()
    ) -> StagedFiles:
        """Change the session's folder as its stage was changed, as `bargein.Session` does."""
        body = {"paths": list(paths), "overrule": list(overrule)}
        return read(StagedFiles, await self._ask("accept_stage", body=body, again=Resend.NEVER))

    async def undo_accept(self) -> StagedFiles:
        """Take the last acceptance back. What it changed is staged again."""
        return read(StagedFiles, await self._ask("undo_accept", again=Resend.NEVER))

    async def discard_staged(self, paths: Sequence[str] = ()) -> StagedFiles:
        """Drop what is staged: these paths and what is below them, or everything."""
        body = {"paths": list(paths)}
        return read(StagedFiles, await self._ask("discard_stage", body=body, again=Resend.NEVER))

    async def compact(self) -> TurnResult[str]:
        """Summarise the older part of the conversation now, in a turn of its own that a stop ends
        like any other. `Busy` if one is running."""
        found = read(ResultReply, await self._ask("compact_session", again=Resend.NEVER))
        if found.outcome is TurnOutcome.FAILED:
            raise TurnFailed(found.error, retryable=False)
        return _result_in(found)

    async def rename(self, title: str) -> None:
        """Give the session a title. Durable when this returns."""
        check_texts(title=title)
        await self._ask("change_session", body={"title": title}, again=Resend.SAME)

    async def fork(self, turn: str | None = None) -> str:
        """Make a session that begins with what this one said until the end of `turn`, or of the
        last turn that is over; return its id."""
        check_texts_or_none(turn=turn)
        body = {"turn": turn} if turn is not None else {}
        made = await self._ask("fork_session", body=body, again=Resend.SAME)
        return read(DetailReply, made).session.id

    async def place(self) -> SessionPlace | None:
        """Where the session works; None if nobody has said."""
        return (await self.state()).place

    async def set_place(
        self, place: SessionPlace, *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Let the session work in another folder or with another model, from its next turn on. Only
        for the terminals of the user who runs the server. `environment` stays in its memory."""
        body = {
            "workspace": place.workspace,
            "model": place.model,
            "staged": place.staged,
            "environment": dict(environment or {}),
        }
        await self._ask("place_session", body=body, again=Resend.SAME)

    async def end(self) -> None:
        """End the session for good: its turn, its background, and its inbox stays unanswered."""
        await self._ask("end_session", again=Resend.NEVER)

    async def settled(self) -> None:
        """Wait until nothing runs, nothing waits that would run by itself, and all is stored."""
        query = {"wait_s": str(WAIT_S)}
        while not read(SettledReply, await self._ask("get_settled", query=query)).settled:
            pass

    async def begin_with(self, history: Sequence[ModelMessage], *, instructions: str = "") -> None:
        """Begin with what was said elsewhere. Only before the first message; once."""
        check_texts(instructions=instructions)
        body = {"messages": check_messages("history", history), "instructions": instructions}
        await self._ask_large("import_history", "POST", "history", body, again=Resend.NEVER)

    # Looking

    async def position(self) -> int:
        """The number of the last durable event, to watch from there."""
        return (await self._detail()).session.last_seq

    async def state(self) -> SessionState:
        """What the session is doing. Files of messages have no bytes here."""
        return read(SessionState, await self._ask("get_state"))

    async def usage(self) -> Spent:
        """What the session has used since it began: steps, tokens, and the cost if it is known."""
        return read(Spent, await self._ask("get_usage"))

    async def events(self, *, after: int = 0) -> list[Recorded]:
        """Events of the log. Files in them have no bytes."""
        check_number("after", after)
        return [recorded async for page in self._pages(after) for recorded in page]

    async def log(self) -> AsyncGenerator[Recorded, None]:
        """The same one by one, with one page of the log in memory at a time."""
        async with aclosing(self._pages(0)) as pages:
            async for page in pages:
                for recorded in page:
                    yield recorded

    async def _pages(self, after: int) -> AsyncGenerator[tuple[Recorded, ...], None]:
        more = True
        while more:
            page = read(LogReply, await self._ask("get_log", query={"after": str(after)}))
            if page.events:
                after = page.events[-1].seq
                yield page.events
            more = page.more

    async def transcript(self) -> tuple[ModelMessage, ...]:
        """What the model has been shown, in order. Images in it have no bytes."""
        return read(TranscriptReply, await self._ask("get_transcript")).messages

    async def watch(self, *, after: int | None = None) -> AsyncGenerator[Watched, None]:
        """Events as they happen; with `after`, first those of the log since then, none twice.

        A broken connection is not seen here: the watch goes on where it was. It ends with the
        session; a reader that falls too far behind gets `TooSlow`.
        """
        async with aclosing(self.watch_many(after=after)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_many(self, *, after: int | None = None) -> AsyncGenerator[list[Watched], None]:
        """The same in lists, for a reader that takes all that is there at once."""
        if after is not None:
            check_number("after", after)
        watch = await self._watch(after)
        try:
            while batch := await watch.next():
                yield batch
        finally:
            self._connection.unwatch(watch)

    async def _watch(self, after: int | None) -> WireWatch:
        watch = self._connection.watch(self.id, after)
        try:
            await watch.began()
        except BaseException:
            self._connection.unwatch(watch)
            raise
        return watch

    # Asking

    async def _detail(self) -> DetailReply:
        return read(DetailReply, await self._ask("get_session"))

    async def _do(
        self, do: str, *, body: Mapping[str, Any] | None = None, **params: str
    ) -> DoneReply:
        answer = await self._ask(do, params, body=body, again=Resend.SAME)
        return _done(read(DoneReply, answer))

    async def _ask(
        self,
        do: str,
        params: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        again: Resend = Resend.READ,
    ) -> bytes:
        named = {"session": self.id, **(params or {})}
        return await self._connection.ask(do, params=named, query=query, body=body, again=again)

    async def _ask_large(
        self,
        do: str,
        method: str,
        place: str,
        body: Mapping[str, Any],
        *,
        again: Resend = Resend.SAME,
        **params: str,
    ) -> bytes:
        """Over the socket if it fits, or else by a request of its own."""
        if len(msgspec.json.encode(body)) <= COMMAND_BYTES_MAX:
            return await self._ask(do, params, body=body, again=again)
        path = f"/v1/sessions/{quote(self.id)}/{place}"
        return await self._connection.request(method, path, body)


class StopOverWire:
    """A stop on its way to the server. Await `receipt()` in the client's loop. `landed` is always
    true: only the receipt says whether there was something to stop."""

    landed = True

    def __init__(self, connection: ServerConnection, asked: AskedCommand) -> None:
        self._connection = connection
        self._asked = asked

    async def receipt(self) -> Receipt:
        """Wait until everything stopped has settled, and return the receipt."""
        return read(Receipt, await self._connection.answer_to(self._asked))


class _ResultOverWire:
    """Asks the server for the result of a message until there is one."""

    def __init__(self, session: Session, message: str) -> None:
        self._session = session
        self._message = message

    async def wait(self) -> TurnResult[Any]:
        query = {"wait_s": str(WAIT_S)}
        while True:
            answer = await self._session._ask("get_result", {"message": self._message}, query=query)
            found = read(ResultReply, answer)
            if found.state == "gone":
                raise MessageGone(found.error)
            if found.state == "settled":
                return _result_in(found)


def _result_in(found: ResultReply) -> TurnResult[str]:
    assert found.outcome is not None
    return TurnResult(found.turn, found.outcome, found.text, found.error, found.receipt)


def _done(done: DoneReply) -> DoneReply:
    if done.status == "too_late":
        raise TooLate(done.detail)
    return done


def _without_none(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
