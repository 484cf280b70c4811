"""The end of a turn, in a written order. The one function that every turn's end goes through.

1. decide the cell: cancelled or ended (for a cancel that has happened already);
2. at that moment flags, sockets and signals went out, from whoever cancelled;
3. wait within the ladder: the agent, then its calls;
4. fence: nothing that comes later counts;
5. repair the transcript;
6. commit: settled, the next messages taken and the next turn started, together;
7. announce, and give the receipt;
8. next.

Steps 6 to 8 are the session's, in answer to `Settled`.
"""

import logging
from functools import partial

import anyio

from bargein.calls.words import hidden_note, stop_note
from bargein.cancel import Cause, Outcome, Reason
from bargein.contracts.event import TurnOutcome
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.tool import CallStatus
from bargein.errors import BargeinError
from bargein.session.commands import Settled
from bargein.session.host import Host
from bargein.session.turn import AgentFunction, Turn

_log = logging.getLogger("bargein.session")

ERROR_CHARACTERS_MAX = 4000
"""What an error says may be as long as a message; it is stored and shown."""

_BARE = (Cause.USER_STOP, Cause.BUDGET, Cause.DEADLINE)
"""Stops that bring no message to go on with: what waits is held until the user says so."""


def is_bare(cause: Cause | None) -> bool:
    return cause in _BARE


async def run_turn(host: Host, turn: Turn, agent: AgentFunction) -> None:
    """Run a turn to its end, whatever happens. A task of the engine; never raises."""
    failure: BaseException | None = None
    outcome: Outcome[None] | None = None
    try:
        outcome = await host.owner.run(
            partial(turn.main, agent),
            token=turn.token,
            grace_s=host.limits.settle_s,
            name=f"agent of {turn.id}",
        )
        failure = outcome.error
    except Exception as error:  # boundary: it could not even be started; the user is told
        failure = error
    await settle(host, turn, outcome, failure)


async def settle(
    host: Host, turn: Turn, outcome: Outcome[None] | None, failure: BaseException | None
) -> None:
    turn.source.seal()
    stopped = turn.token.cancelled
    if not stopped:
        turn.calls.stop_running(Reason(Cause.SHUTDOWN, f"{turn.id} has ended"))
    if turn.calls.running:
        with anyio.move_on_after(turn.calls.settle_s, shield=True):
            await turn.calls.all_over()
    turn.fence()
    turn.book.abandon_open()
    if outcome is not None and outcome.status == "abandoned":
        since_ms = turn.book.since_cancel_ms
        step = StoppedStep(StepKind.AGENT, "agent", CallStatus.ABANDONED, since_ms)
        turn.book.record(step)
    if stopped:
        result = TurnOutcome.STOPPED
    elif failure is not None:
        result = TurnOutcome.FAILED
    else:
        result = TurnOutcome.COMPLETED
    events = turn.last_events = turn.repair(whole=result is TurnOutcome.COMPLETED)
    receipt = turn.receipt = receipt_of(host, turn) if stopped else None
    turn.over.set()
    host.post(
        Settled(
            turn=turn.id,
            outcome=result,
            events=events,
            bare_stop=stopped and is_bare(turn.stopped_by_cause),
            error=_words(turn, failure)[:ERROR_CHARACTERS_MAX]
            if result is TurnOutcome.FAILED
            else "",
            receipt=receipt,
            note=stop_note(receipt) if receipt is not None and turn.messages else "",
            effects=turn.book.effects,
            note_if_hidden=hidden_note((*turn.book.effects, *turn.book.stopped)),
        )
    )


def receipt_of(host: Host, turn: Turn) -> Receipt:
    return Receipt(
        status=ReceiptStatus.STOPPED,
        scope=Scope.TURN,
        session=host.session_id,
        target=turn.id,
        reason=turn.token.reason,
        by=turn.stopped_by,
        elapsed_ms=turn.book.since_cancel_ms,
        steps=turn.book.stopped,
    )


def _words(turn: Turn, failure: BaseException | None) -> str:
    if isinstance(failure, BargeinError):
        return str(failure)
    _log.error("the agent of %s failed", turn.id, exc_info=failure)
    return f"{type(failure).__name__}: {failure}"
