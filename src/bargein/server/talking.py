"""The operations inside a session: send messages, stop turns and calls, answer, edit the inbox."""

from collections.abc import Awaitable
from typing import cast

import msgspec
from msgspec import UNSET, UnsetType

from bargein.calls.receipt_words import NOT_STORED, left_open
from bargein.contracts.chat_commands import CHAT_COMMANDS_HELP, ChatCommand, chat_command_of
from bargein.contracts.choice import answer_of
from bargein.contracts.event import MessageAccepted
from bargein.contracts.message import Attachment, Mode, QuestionPolicy
from bargein.contracts.model import Image, Text
from bargein.contracts.output import TEXT, Output, make_output
from bargein.contracts.permission import Standing
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.tool import Approval
from bargein.contracts.visible import visible
from bargein.server.gateway import Opened
from bargein.server.keys import REPLAYED, Kept, fingerprint
from bargein.server.operation import (
    NOTHING_STOPS,
    ApiRequest,
    Operation,
    OperationOptions,
    Parameter,
    Reply,
    lookup,
    operation,
)
from bargein.server.problems import Code, Problem, not_found
from bargein.server.references import message_ref
from bargein.server.shapes import (
    Answer,
    AnswerDone,
    AttachmentView,
    CallInterrupt,
    Done,
    Inbox,
    InboxChange,
    InboxEntry,
    InterruptBody,
    MessageRef,
    NewMessage,
    NewTicket,
    Nothing,
    Sent,
    SideQuestion,
    Ticket,
)
from bargein.server.streams import check_place
from bargein.server.tickets import VALID_S
from bargein.session.session import NAMED, Forbidden, TooLate
from bargein.session.side_question import SideAnswer
from bargein.session.state import SessionState

GRANTS = (Approval.SESSION, Approval.ALWAYS)
SEEN = (Code.NOT_FOUND, Code.FORBIDDEN)
STOPS: OperationOptions = {
    "replies": {200: Receipt, 202: Done},
    "problems": SEEN,
    "query": (Parameter("wait", "boolean", "false: answer at once with 202, without the receipt"),),
    "while_draining": True,
    "disconnect": "Ends the waiting; the stop has landed and goes on.",
}


@operation(
    "POST",
    "/sessions/{session}/messages",
    NewMessage,
    replies={202: Sent, 200: Sent},
    problems=(*SEEN, Code.BUSY, Code.ID_REUSED, Code.TOO_LATE, Code.INBOX_FULL),
    kept=False,
    disconnect="Stops nothing: an accepted message is answered even if nobody listens.",
)
async def send_message(request: ApiRequest, body: NewMessage) -> Reply | Kept:
    """Send a message. 202: it is on the disk. 200: the text was a command (`/stop`, `/status`,
    `/help` or a bare `stop`) and was obeyed, or the same message was sent before. The
    Idempotency-Key serves as the `client_message_id` unless that is given."""
    opened = await request.open("write")
    parts = _parts(body.text, body.content)
    command = None
    if body.text is not UNSET and not body.literal and not body.attachments:
        command = chat_command_of(body.text)
    if command is not None:
        return await _obey_once(request, opened, command)
    request.gateway.refuse_if_draining()
    if body.mode is Mode.ROLLBACK:
        check_trusted(request, opened)
    _check_questions(request, opened, body.questions)
    size = sum(map(_size_of, parts)) + sum(len(each.data) for each in body.attachments)
    with request.gateway.turn_allowed(request.principal, opened.session.id, size):
        sent = await opened.session.send(
            parts,
            mode=body.mode,
            sender=request.principal.name,
            client_id=body.client_message_id or request.key,
            expected_turn=body.expected_turn_id,
            attachments=[
                Attachment(each.name, each.media_type, each.data) for each in body.attachments
            ],
            group=body.group,
            output=checked_output(body.output),
            questions=body.questions,
            heard=body.heard.heard() if body.heard is not None else None,
        )
    body_sent = Sent(sent.disposition.value, sent.message, sent.turn)
    if sent.disposition == "duplicate":
        return Reply(200, body_sent, REPLAYED)
    return Reply(202, body_sent)


def _parts(
    text: str | UnsetType, content: tuple[Text | Image, ...] | UnsetType
) -> tuple[Text | Image, ...]:
    """The words and images of a message, which come as `text` or as `content`."""
    if (text is UNSET) == (content is UNSET):
        raise Problem(
            Code.BAD_REQUEST,
            "the body is not right: give the words of the message as `text`, or words and images "
            "as `content`",
        )
    return (Text(text),) if text is not UNSET else content if content is not UNSET else ()


def _size_of(part: Text | Image) -> int:
    return len(part.text) if isinstance(part, Text) else len(part.data)


def check_trusted(request: ApiRequest, opened: Opened) -> None:
    """Raises `Problem` if the caller may only read and talk: a change of files or of the past is
    more."""
    who = request.principal
    if request.gateway.access.is_guest(who, opened.root):
        raise Problem(
            Code.FORBIDDEN, f"{who.name} may read and talk here, and not change files or the past"
        )


def _check_questions(request: ApiRequest, opened: Opened, policy: QuestionPolicy | None) -> None:
    """To allow every call of a turn is to answer questions before they are asked."""
    standing = request.gateway.access.standing_of(request.principal, opened.root)
    if policy is QuestionPolicy.ALLOW and not standing.covers(Standing.OWNER):
        raise Problem(
            Code.FORBIDDEN, "only an admin may send a message with questions: allow; leave it out"
        )


def checked_output(output: Output | None) -> Output | None:
    """Raises if the schema is too large or uses what is not checked here."""
    if output is None or output == TEXT:
        return output
    try:
        return make_output(msgspec.json.decode(output.schema), name=output.name)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(Code.BAD_REQUEST, f"output.schema is not JSON: {error}") from error


async def _obey_once(request: ApiRequest, opened: Opened, command: ChatCommand) -> Reply | Kept:
    if request.key is None:
        return Reply(200, await _obey(request, opened, command))

    async def run() -> Kept:
        return Reply(200, await _obey(request, opened, command)).kept()

    print_ = fingerprint(f"say {command}", opened.session.id, b"")
    return await request.gateway.keys.once(request.principal.name, request.key, print_, run)


async def _obey(request: ApiRequest, opened: Opened, command: ChatCommand) -> Sent:
    if command is ChatCommand.HELP:
        return Sent("obeyed", command="help", reply=CHAT_COMMANDS_HELP)
    if command is ChatCommand.STATUS:
        return Sent("obeyed", command="status", reply=_status(await opened.session.state()))
    receipt = await opened.session.interrupt(by=request.principal.name)
    words = [await _stop_in_short(opened, receipt), *left_open(receipt)]
    reply = "; ".join(words if receipt.stored else [*words, NOT_STORED])
    return Sent("obeyed", turn=receipt.target or None, command="stop", reply=reply, receipt=receipt)


async def _stop_in_short(opened: Opened, receipt: Receipt) -> str:
    if receipt.status is ReceiptStatus.STOPPED:
        return f"stopped in {receipt.elapsed_ms:.0f} ms"
    # A store that cannot write the stop may have put the session out of memory.
    left = len((await opened.session.state()).background) if receipt.stored else 0
    return f"nothing is running{f' but {left} in the background' if left else ''}"


def _status(state: SessionState) -> str:
    words = [f"{state.phase}, {state.turn}" if state.turn else str(state.phase)]
    if state.waiting:
        words.append(f"{len(state.waiting)} waiting{', held' if state.held else ''}")
    if state.background:
        words.append(f"{len(state.background)} in the background")
    return "; ".join(words)


@operation("POST", "/sessions/{session}/interrupt", InterruptBody, **STOPS)
async def interrupt(request: ApiRequest, body: InterruptBody) -> Reply:
    """Stop a turn, call, child or the whole session, and answer with the receipt when everything
    has settled. If it had ended before, the receipt says `too_late`."""
    opened = await request.open("write")
    if body.scope in NAMED and body.target is None:
        raise Problem(Code.BAD_REQUEST, f"scope {body.scope} needs a target: the id to stop")
    heard = body.heard.heard() if body.heard is not None else None
    if body.start not in (None, request.gateway.start):
        if heard is not None:
            # Aimed at a turn of that start, so this stops nothing that runs under this one.
            await opened.session.interrupt(
                expected_turn=f"{heard.turn} under {body.start}",
                by=request.principal.name,
                heard=heard,
            )
        target = body.target or body.expected_turn_id or ""
        over = Receipt(ReceiptStatus.TOO_LATE, body.scope, opened.session.id, target)
        return Reply(200, over, note=body.reason)
    stopping = opened.session.interrupt(
        scope=body.scope,
        target=body.target,
        expected_turn=body.expected_turn_id,
        by=request.principal.name,
        heard=heard,
    )
    return await _stop(request, stopping, body.reason)


@operation(
    "POST",
    "/sessions/{session}/side_questions",
    SideQuestion,
    replies={200: SideAnswer},
    problems=SEEN,
    kept=False,
    disconnect="Stops nothing: the model goes on within its bound. Stop the question by its id.",
)
async def side_question(request: ApiRequest, body: SideQuestion) -> Reply:
    """Ask the model something beside the running turn, without touching it. It answers from a copy
    of the conversation and runs no tools; only the usage is kept."""
    opened = await request.open("write")
    with request.gateway.turn_allowed(request.principal, opened.session.id, len(body.text)):
        return Reply(200, await opened.session.side_question(body.text, question_id=body.id))


@operation("POST", "/sessions/{session}/calls/{call}/interrupt", CallInterrupt, **STOPS)
async def interrupt_call(request: ApiRequest, body: CallInterrupt) -> Reply:
    """Stop one call and let its turn go on."""
    opened = await request.open("write")
    stopping = opened.session.interrupt(
        scope=Scope.CALL, target=request.params["call"], by=request.principal.name
    )
    return await _stop(request, stopping, body.reason)


async def _stop(request: ApiRequest, stopping: Awaitable[Receipt], reason: str) -> Reply:
    if request.flag("wait", default=True):
        return Reply(200, await stopping, note=reason)
    request.gateway.go_on(stopping)
    done = Done("accepted", "the receipt comes with the events of the session")
    return Reply(202, done, note=reason)


@operation(
    "POST",
    "/sessions/{session}/ticket",
    NewTicket,
    replies={201: Ticket},
    problems=SEEN,
    kept=False,
    while_draining=True,
    audited=False,
    disconnect="Nothing: an unused ticket expires.",
)
async def make_ticket(request: ApiRequest, body: NewTicket) -> Reply:
    """Make a ticket with which a page opens one WebSocket of this session. The page offers it as
    the subprotocol `bargein.ticket.TICKET`, beside `bargein.v1`."""
    opened = await request.open()
    await check_place(request.gateway, opened, body.after)
    request.gateway.check_streams(request.principal)
    ticket = await request.gateway.tickets.give(request.principal, request.session_id)
    return Reply(201, Ticket(ticket, VALID_S))


@operation(
    "POST",
    "/sessions/{session}/calls/{call}/detach",
    Nothing,
    replies={200: Done},
    problems=SEEN,
)
async def detach_call(request: ApiRequest, body: Nothing) -> Reply:
    """Move a running call to the background: it survives a stop of the turn."""
    opened = await request.open("write")
    return await done_or_too_late(opened.session.detach(request.params["call"]))


@operation("POST", "/sessions/{session}/pause", Nothing, replies={200: Done}, problems=SEEN)
async def pause(request: ApiRequest, body: Nothing) -> Reply:
    """Hold the turn at its next step boundary."""
    return await done_or_too_late((await request.open("write")).session.pause())


@operation("POST", "/sessions/{session}/resume", Nothing, replies={200: Done}, problems=SEEN)
async def resume(request: ApiRequest, body: Nothing) -> Reply:
    """Let a paused turn go on."""
    return await done_or_too_late((await request.open("write")).session.resume())


@operation("POST", "/sessions/{session}/continue", Nothing, replies={200: Done}, problems=SEEN)
async def continue_queue(request: ApiRequest, body: Nothing) -> Reply:
    """Release the messages that a stop has held."""
    opened = await request.open("write")
    with request.gateway.turn_allowed(request.principal, opened.session.id):
        return await done_or_too_late(opened.session.continue_())


@operation(
    "POST",
    "/sessions/{session}/questions/{question}/answer",
    Answer,
    replies={200: AnswerDone},
    problems=SEEN,
)
async def answer_question(request: ApiRequest, body: Answer) -> Reply:
    """Answer a question or an approval by its id. Name a choice in full, by its number or by its
    first letter. `allow` or `yes` approves this call; `session` or `always` approves everything
    that the grant describes. Any other text refuses, and the model reads it as the reason. The
    session's `may` lists the answers that the caller can give."""
    opened = await request.open("write")
    access = request.gateway.access
    note = await _granting(opened, request.params["question"], body.text)
    answering = opened.session.answer(
        request.params["question"],
        body.text,
        by=request.principal.name,
        standing=access.standing_of(request.principal, opened.root),
    )
    try:
        sent = await answering
    except TooLate as error:
        return Reply(200, AnswerDone("too_late", str(error)))
    except Forbidden as error:
        raise access.why_forbidden(request.principal, opened.root, str(error)) from None
    began = Sent(sent.disposition.value, sent.message, sent.turn) if sent is not None else None
    return Reply(200, AnswerDone(sent=began), note=note)


async def _granting(opened: Opened, question_id: str, words: str) -> str:
    """Describes, for the audit log, what this answer allows for longer than one call."""
    for asked in await opened.session.questions():
        grant, question = asked.question.grant, asked.question
        answer = answer_of(words, question)
        if asked.id == question_id and grant is not None and answer in GRANTS:
            return f"{answer}: {visible(str(grant))}"
    return ""


async def done_or_too_late(doing: Awaitable[object]) -> Reply:
    try:
        await doing
    except TooLate as error:
        return Reply(200, Done("too_late", str(error)))
    return Reply(200, Done())


# --- the inbox


@lookup("/sessions/{session}/inbox", replies={200: Inbox}, problems=(Code.NOT_FOUND,))
async def get_inbox(request: ApiRequest) -> Reply:
    """Read the waiting messages, in the order in which they will be taken. Attachments are given
    by name and size."""
    opened = await request.open()
    state = await opened.session.state()
    entries = (
        InboxEntry(cast(MessageRef, message_ref(each.message)), each.lane, state.held)
        for each in state.waiting
    )
    return Reply(200, Inbox(state.held, tuple(entries)))


@lookup(
    "/sessions/{session}/messages/{message}/attachments/{number}",
    replies={200: AttachmentView},
    problems=(Code.NOT_FOUND,),
)
async def get_attachment(request: ApiRequest) -> Reply:
    """Read a message's attachment, by the message's id and the attachment's number."""
    opened = await request.open()
    message, number = request.params["message"], request.params["number"]
    index = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else -1
    async with request.gateway.heavy(request.principal.name):
        async for recorded in opened.session.log():
            event = recorded.event
            if isinstance(event, MessageAccepted) and event.message.id == message:
                if 0 <= index < len(event.message.attachments):
                    found = event.message.attachments[index]
                    return Reply(200, AttachmentView(found.name, found.media_type, found.data))
                break
    raise not_found(f"attachment {number!r} of message {message!r}")


@operation(
    "PATCH",
    "/sessions/{session}/inbox/{message}",
    InboxChange,
    replies={200: Done},
    problems=SEEN,
)
async def change_message(request: ApiRequest, body: InboxChange) -> Reply:
    """Change the text of a waiting message, or its place."""
    opened = await request.open("write")
    message, by = await _waiting(request, opened), request.principal.name

    async def change() -> None:
        if body.text is not UNSET or body.content is not UNSET:
            await opened.session.edit(message, _parts(body.text, body.content), by=by)
        if body.before is not UNSET:
            await opened.session.move(message, before=body.before, by=by)

    return await done_or_too_late(change())


@lookup(
    "/sessions/{session}/inbox/{message}",
    method="DELETE",
    kept=True,
    replies={200: Done},
    problems=SEEN,
    while_draining=False,
    disconnect=NOTHING_STOPS,
)
async def withdraw_message(request: ApiRequest) -> Reply:
    """Withdraw a waiting message."""
    opened = await request.open("write")
    message = await _waiting(request, opened)
    return await done_or_too_late(opened.session.withdraw(message, by=request.principal.name))


async def _waiting(request: ApiRequest, opened: Opened) -> str:
    """Returns the message's id. Raises `Problem` if there never was such a message; for one that
    was taken already, the caller answers `too_late`."""
    message = request.params["message"]
    number = message.removeprefix("m")
    state = await opened.session.state()
    if any(each.message.id == message for each in state.waiting):
        return message
    known = message.startswith("m") and number.isascii() and number.isdigit() and len(number) < 16
    if not known or not 0 < int(number) <= state.messages:
        raise not_found(f"message {message!r} in session {opened.session.id}")
    return message


TALKING_OPERATIONS: tuple[Operation, ...] = (
    send_message,
    interrupt,
    side_question,
    interrupt_call,
    make_ticket,
    detach_call,
    pause,
    resume,
    continue_queue,
    answer_question,
    get_inbox,
    get_attachment,
    change_message,
    withdraw_message,
)
