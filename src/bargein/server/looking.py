"""The operations that read a session: its state, log, turns, transcript, usage and results.

They change nothing. Some can wait for a turn, for as long as the caller says; a cancel ends only
the waiting. After a wait the caller's rights are checked again.
"""

from contextlib import suppress
from typing import Any, cast

import anyio
import msgspec

from bargein.contracts.budget import Spent
from bargein.contracts.event import TurnOutcome
from bargein.server.gateway import Gateway
from bargein.server.operation import ApiRequest, Operation, Parameter, Reply, lookup
from bargein.server.problems import Code, Problem, not_found
from bargein.server.references import event_ref, message_ref, messages_ref
from bargein.server.shapes import LogPage, ResultView, SettledView, TranscriptView, TurnView
from bargein.session.reply import SessionGone
from bargein.session.results import MessageGone
from bargein.session.sending import TurnFailed
from bargein.session.session import Session
from bargein.session.snapshot import stored_in
from bargein.session.state import SessionState
from bargein.session.watching import LOG_PAGE, LOG_PAGE_BYTES
from bargein.view import Picture

WAIT_S = 60
WAIT = Parameter("wait_s", "integer", f"wait for so long at most; {WAIT_S} unless given")

_replace: Any = msgspec.structs.replace


@lookup("/sessions/{session}/state", replies={200: SessionState}, problems=(Code.NOT_FOUND,))
async def get_state(request: ApiRequest) -> Reply:
    """Read what a session is doing, as the engine knows it. Files of waiting messages are given by
    name and size."""
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
    """Read a page of the log, as `watch_events` would send it. Files are given by name and size."""
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
    """Read what a session has used since it began: steps, tokens, and the cost if it is known."""
    return Reply(200, await (await request.open()).session.usage())


@lookup(
    "/sessions/{session}/messages/{message}/result",
    replies={200: ResultView},
    problems=(Code.NOT_FOUND,),
    query=(WAIT,),
    disconnect="Ends the waiting; the turn goes on.",
)
async def get_result(request: ApiRequest) -> Reply:
    """Read how the turn that took a message ended, by the message's id."""
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
    return await _checked_again(request, found)


@lookup(
    "/sessions/{session}/settled",
    replies={200: SettledView},
    problems=(Code.NOT_FOUND,),
    query=(WAIT,),
    disconnect="Ends the waiting; the session goes on.",
)
async def get_settled(request: ApiRequest) -> Reply:
    """Read whether a session is settled: nothing runs, and nothing waits that would run by
    itself."""
    opened = await request.open()
    found = SettledView(False)
    with _patience(request):
        await opened.session.settled()
        found = SettledView(True)
    return await _checked_again(request, found)


@lookup(
    "/sessions/{session}/turns/{turn}",
    replies={200: TurnView},
    problems=(Code.NOT_FOUND,),
    query=(
        Parameter("wait", "boolean", "answer when the turn has settled"),
        Parameter("wait_s", "integer", "wait at most so long, then answer with the turn as it is"),
    ),
    disconnect="Ends the waiting; the turn goes on.",
)
async def get_turn(request: ApiRequest) -> Reply:
    """Read how a turn ended, or how far it is."""
    opened = await request.open()
    turn = request.params["turn"]
    if request.flag("wait", default=False):
        most = int(request.gateway.limits.wait_s_max)
        wait_s = request.number("wait_s", default=60, least=0, most=most)
        await _wait_settled(request.gateway, opened.session, turn, wait_s)
        request.gateway.check_token(request.principal)
        opened = await request.open()
    return Reply(200, await _turn_view(opened.session, turn))


@lookup(
    "/sessions/{session}/transcript",
    replies={200: TranscriptView},
    problems=(Code.NOT_FOUND, Code.TOO_LARGE),
)
async def get_transcript(request: ApiRequest) -> Reply:
    """Read what the model has been shown, in order. Images are given by type and size."""
    opened = await request.open()
    async with request.gateway.heavy(request.principal.name):
        head = await request.gateway.head(opened.session.id)
        said, most = stored_in(head).accounts.said_bytes, request.gateway.limits.answer_bytes_max
        if said > most:
            raise Problem(
                Code.TOO_LARGE,
                f"the transcript of {opened.session.id} has {said} bytes, and at most {most} are "
                "sent; read its events, which come piece by piece",
            )
        messages = messages_ref(await opened.session.transcript())
    return Reply(200, TranscriptView(messages))


async def _turn_view(session: Session, turn: str) -> TurnView:
    """Returns the turn as the API shows it. Raises `Problem` if the session has no such turn."""
    picture = Picture(session.id)
    async for recorded in session.log():
        if getattr(recorded.event, "turn", None) == turn:
            picture.apply(recorded)
    shown = picture.turns.get(turn)
    if shown is None:
        raise not_found(f"turn {turn!r} in session {session.id}")
    messages = tuple(shown.messages)
    if shown.outcome is None:
        return TurnView(turn, "running", messages, shown.began_at, shown.text)
    return TurnView(
        turn,
        "settled",
        messages,
        shown.began_at,
        shown.text,
        shown.outcome,
        shown.error,
        shown.receipt,
        shown.ended_at,
    )


async def _wait_settled(gateway: Gateway, session: Session, turn: str, wait_s: float) -> None:
    """Returns when the turn has settled, after `wait_s`, or when the session leaves memory because
    the server shuts down. A cancel ends only the waiting."""
    if (await _turn_view(session, turn)).state == "settled":
        return
    actor = gateway.engine.actor_in_memory(session.id)
    if actor is None and gateway.engine.elsewhere is not None:
        # Raises if it runs at another node, which is then asked.
        actor = await gateway.engine.actor(session.id)
    if actor is None:
        return
    running = actor.turn
    with anyio.move_on_after(wait_s), suppress(SessionGone):
        if running is not None and running.id == turn:
            await running.settled.wait()
        else:
            # The turn is over; wait until the store has its end.
            await actor.written()


def _patience(request: ApiRequest) -> anyio.CancelScope:
    most = int(request.gateway.limits.wait_s_max)
    return anyio.move_on_after(request.number("wait_s", default=WAIT_S, least=1, most=most))


async def _checked_again(request: ApiRequest, found: msgspec.Struct) -> Reply:
    """Returns the answer, if the caller may still read the session after the wait."""
    request.gateway.check_token(request.principal)
    await request.open()
    return Reply(200, found)


LOOKING_OPERATIONS: tuple[Operation, ...] = (
    get_state,
    get_log,
    get_usage,
    get_result,
    get_settled,
    get_turn,
    get_transcript,
)
