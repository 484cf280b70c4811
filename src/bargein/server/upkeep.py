"""Operations for the upkeep of a session: undo a turn, summarise, dismiss a question, import a
history, end."""

from bargein.contracts.checkpoint import FilesUndone
from bargein.contracts.event import TurnOutcome
from bargein.contracts.stage import StagedFiles
from bargein.server.gateway import Opened
from bargein.server.operation import ApiRequest, Operation, Reply, lookup, operation
from bargein.server.problems import Code
from bargein.server.shapes import (
    AcceptWanted,
    DiffWanted,
    DiscardWanted,
    Done,
    FilesDiff,
    History,
    Nothing,
    PreviewWanted,
    ResultView,
    RewindWanted,
    StageView,
    UndoCallsWanted,
    UndoWanted,
)
from bargein.server.talking import SEEN, check_trusted, done_or_too_late
from bargein.session.sending import TurnFailed
from bargein.session.undo import Undone
from bargein.session.undoing_calls import CallsBeingUndone


async def _open_trusted(request: ApiRequest) -> Opened:
    opened = await request.open("write")
    check_trusted(request, opened)
    return opened


@operation(
    "POST",
    "/sessions/{session}/undo",
    UndoWanted,
    replies={200: Undone},
    problems=(*SEEN, Code.TOO_LATE),
)
async def undo_turn(request: ApiRequest, body: UndoWanted) -> Reply:
    """Take back the last turn that the model can see, after stopping it if it runs. Its files are
    put back if snapshots are taken. The answer lists the files that were kept and the calls that
    had other effects."""
    opened = await _open_trusted(request)
    done = await opened.session.undo(
        files=body.files, overrule=body.overrule, by=request.principal.name
    )
    return Reply(200, done)


@operation(
    "POST",
    "/sessions/{session}/undo/preview",
    PreviewWanted,
    replies={200: Undone},
    problems=(*SEEN, Code.TOO_LATE),
)
async def preview_undo(request: ApiRequest, body: PreviewWanted) -> Reply:
    """Say what an undo, or a rewind to before `turn`, would do to files. Changes nothing."""
    opened = await request.open("write")
    return Reply(200, await opened.session.preview_undo(body.turn, overrule=body.overrule))


@operation(
    "POST",
    "/sessions/{session}/undo/calls",
    UndoCallsWanted,
    replies={200: CallsBeingUndone},
    problems=(*SEEN, Code.BUSY, Code.TOO_LATE),
)
async def undo_calls(request: ApiRequest, body: UndoCallsWanted) -> Reply:
    """Begin a turn that undoes calls whose tools declare how. Each is a call of that turn, with its
    approval and its result."""
    opened = await _open_trusted(request)
    with request.gateway.turn_allowed(request.principal, opened.session.id):
        done = await opened.session.undo_calls(body.calls, by=request.principal.name)
    return Reply(200, done)


@operation(
    "POST",
    "/sessions/{session}/rewind",
    RewindWanted,
    replies={200: Undone},
    problems=(*SEEN, Code.TOO_LATE),
)
async def rewind_session(request: ApiRequest, body: RewindWanted) -> Reply:
    """Go back to before a turn: the conversation, the files, or both. A running turn is stopped."""
    opened = await _open_trusted(request)
    done = await opened.session.rewind(
        body.turn, body.what, overrule=body.overrule, by=request.principal.name
    )
    return Reply(200, done)


@operation(
    "POST",
    "/sessions/{session}/redo",
    Nothing,
    replies={200: FilesUndone},
    problems=(*SEEN, Code.TOO_LATE),
)
async def redo_files(request: ApiRequest, body: Nothing) -> Reply:
    """Take back the last undo of files, as far as nobody has changed them since."""
    opened = await _open_trusted(request)
    return Reply(200, await opened.session.redo(by=request.principal.name))


@operation(
    "POST",
    "/sessions/{session}/diff",
    DiffWanted,
    replies={200: FilesDiff},
    problems=(*SEEN, Code.TOO_LATE),
)
async def diff_turn(request: ApiRequest, body: DiffWanted) -> Reply:
    """Return what the calls of a turn changed in files, as `git diff` shows it. Without a turn, the
    last that changed files."""
    opened = await request.open("write")
    return Reply(200, FilesDiff(await opened.session.diff(body.turn)))


@lookup("/sessions/{session}/stage", replies={200: StageView}, problems=SEEN)
async def get_stage(request: ApiRequest) -> Reply:
    """Read what is staged: what an acceptance would do, and the diff."""
    opened = await request.open("write")
    return Reply(200, StageView(await opened.session.staged()))


@operation(
    "POST",
    "/sessions/{session}/stage/accept",
    AcceptWanted,
    replies={200: StagedFiles},
    problems=(*SEEN, Code.BUSY),
)
async def accept_stage(request: ApiRequest, body: AcceptWanted) -> Reply:
    """Change the session's folder as its stage was changed. What somebody changed there meanwhile
    is kept and named."""
    opened = await _open_trusted(request)
    done = await opened.session.accept_staged(
        body.paths, overrule=body.overrule, by=request.principal.name
    )
    return Reply(200, done)


@operation(
    "POST",
    "/sessions/{session}/stage/undo",
    Nothing,
    replies={200: StagedFiles},
    problems=(*SEEN, Code.BUSY, Code.TOO_LATE),
)
async def undo_accept(request: ApiRequest, body: Nothing) -> Reply:
    """Take the last acceptance back. What it changed is staged again."""
    opened = await _open_trusted(request)
    return Reply(200, await opened.session.undo_accept(by=request.principal.name))


@operation(
    "POST",
    "/sessions/{session}/stage/discard",
    DiscardWanted,
    replies={200: StagedFiles},
    problems=(*SEEN, Code.BUSY),
)
async def discard_stage(request: ApiRequest, body: DiscardWanted) -> Reply:
    """Drop what is staged."""
    opened = await _open_trusted(request)
    done = await opened.session.discard_staged(body.paths, by=request.principal.name)
    return Reply(200, done)


@operation(
    "POST",
    "/sessions/{session}/compact",
    Nothing,
    replies={200: ResultView},
    problems=(*SEEN, Code.BUSY),
)
async def compact_session(request: ApiRequest, body: Nothing) -> Reply:
    """Summarise the older part of the conversation now, in a turn of its own. Answers when the turn
    has settled."""
    opened = await request.open("write")
    with request.gateway.turn_allowed(request.principal, opened.session.id):
        compacting = opened.session.compact(by=request.principal.name)
        try:
            done = await compacting
        except TurnFailed as error:
            return Reply(200, ResultView("settled", outcome=TurnOutcome.FAILED, error=str(error)))
    found = ResultView("settled", done.turn, done.outcome, done.text, done.error, done.receipt)
    return Reply(200, found)


@operation(
    "POST",
    "/sessions/{session}/questions/{question}/dismiss",
    Nothing,
    replies={200: Done},
    problems=SEEN,
)
async def dismiss_question(request: ApiRequest, body: Nothing) -> Reply:
    """Close a question that a restart has left open, without an answer."""
    opened = await request.open("write")
    closing = opened.session.dismiss(request.params["question"], by=request.principal.name)
    return await done_or_too_late(closing)


@operation(
    "POST",
    "/sessions/{session}/history",
    History,
    replies={200: Done},
    problems=SEEN,
)
async def import_history(request: ApiRequest, body: History) -> Reply:
    """Begin a session with a conversation from elsewhere: once, before its first message."""
    opened = await _open_trusted(request)
    by = request.principal.name
    await opened.session.begin_with(body.messages, instructions=body.instructions, by=by)
    return Reply(200, Done())


@operation(
    "POST",
    "/sessions/{session}/end",
    Nothing,
    replies={200: Done},
    problems=SEEN,
)
async def end_session(request: ApiRequest, body: Nothing) -> Reply:
    """End a session for good. Its turn and background calls are stopped, and its waiting messages
    stay unanswered. It can still be read."""
    opened = await request.open("own")
    await opened.session.end(by=request.principal.name)
    return Reply(200, Done())


UPKEEP_OPERATIONS: tuple[Operation, ...] = (
    undo_turn,
    preview_undo,
    undo_calls,
    rewind_session,
    redo_files,
    diff_turn,
    get_stage,
    accept_stage,
    undo_accept,
    discard_stage,
    compact_session,
    dismiss_question,
    import_history,
    end_session,
)
