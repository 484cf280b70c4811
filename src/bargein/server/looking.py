"""The operations that look into a session: its state, its log, what it has used, what came of a
message. They change nothing. Two of them can wait, for as long as the caller says."""

from typing import Any, cast

import anyio
import msgspec

from bargein.contracts.budget import Spent
from bargein.contracts.event import TurnOutcome
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup
from bargein.server.problems import Code
from bargein.server.references import event_ref, message_ref
from bargein.server.shapes import LogPage, ResultView, SettledView
from bargein.session.results import MessageGone
from bargein.session.sending import TurnFailed
from bargein.session.state import SessionState
from bargein.session.watching import LOG_PAGE, LOG_PAGE_BYTES

WAIT_S = 60
WAIT = Parameter("wait_s", "integer", f"wait for so long at most; {WAIT_S} unless given")

_replace: Any = msgspec.structs.replace


@lookup("/sessions/{session}/state", replies={200: SessionState}, problems=(Code.NOT_FOUND,))
async def get_state(request: ApiRequest) -> Reply:
    """What a session is doing, as the engine knows it. Files of what waits are told by name and
    size."""
    state = await (await request.open()).session.state()
    waiting = tuple(_replace(each, message=message_ref(each.message)) for each in state.waiting)
    return Reply(200, _replace(state, waiting=waiting))


@lookup(
    "/sessions/{session}/log",
    replies={200: LogPage},
    problems=(Code.NOT_FOUND,),
    query=(
        Parameter("after", "integer", "begin after this event; 0 for the whole log"),
        Parameter("limit", "integer", f"how many at most; {LOG_PAGE} unless given"),
    ),
)
async def get_log(request: ApiRequest) -> Reply:
    """A page of the log, as `watch_events` would begin with. Files are told by name and size."""
    opened = await request.open()
    after = request.number("after", default=0, least=0, most=2**53)
    limit = request.number("limit", default=LOG_PAGE, least=1, most=LOG_PAGE)
    async with request.gateway.heavy(request.principal.name):
        last = await opened.session.position()
        page = await request.gateway.engine.events(
            opened.session.id, after=after, limit=limit, bytes_max=LOG_PAGE_BYTES
        )
    events = tuple(cast(Any, event_ref(each)) for each in page)
    return Reply(200, LogPage(events, bool(page) and page[-1].seq < last))


@lookup("/sessions/{session}/usage", replies={200: Spent}, problems=(Code.NOT_FOUND,))
async def get_usage(request: ApiRequest) -> Reply:
    """What a session has used since it began: steps, tokens, and the cost if it is known."""
    return Reply(200, await (await request.open()).session.usage())


@lookup(
    "/sessions/{session}/messages/{message}/result",
    replies={200: ResultView},
    problems=(Code.NOT_FOUND,),
    query=(WAIT,),
    disconnect="Ends the waiting; the turn goes on.",
)
async def get_result(request: ApiRequest) -> Reply:
    """How the turn that took a message ended, by the message's id."""
    opened = await request.open()
    found = ResultView("open")
    with _patience(request):
        try:
            result = await opened.session.result(request.params["message"])
            found = ResultView(
                "settled", result.turn, result.outcome, result.text, result.error, result.receipt
            )
        except TurnFailed as error:
            found = ResultView("settled", outcome=TurnOutcome.FAILED, error=str(error))
        except MessageGone as error:
            found = ResultView("gone", error=str(error))
    return await _told_again(request, found)


@lookup(
    "/sessions/{session}/settled",
    replies={200: SettledView},
    problems=(Code.NOT_FOUND,),
    query=(WAIT,),
    disconnect="Ends the waiting; the session goes on.",
)
async def get_settled(request: ApiRequest) -> Reply:
    """Whether nothing runs in a session, and nothing waits that would run by itself."""
    opened = await request.open()
    found = SettledView(False)
    with _patience(request):
        await opened.session.settled()
        found = SettledView(True)
    return await _told_again(request, found)


def _patience(request: ApiRequest) -> anyio.CancelScope:
    most = int(request.gateway.limits.wait_s_max)
    return anyio.move_on_after(request.number("wait_s", default=WAIT_S, least=1, most=most))


async def _told_again(request: ApiRequest, found: msgspec.Struct) -> Reply:
    """The answer, if whoever asked may still have it after the time that it took."""
    request.gateway.check_token(request.principal)
    await request.open()
    return Reply(200, found)


LOOKING_OPERATIONS: tuple[Operation, ...] = (
    get_state,
    get_log,
    get_usage,
    get_result,
    get_settled,
)
