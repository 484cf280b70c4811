"""Undoes calls whose effects are not in files, if their tools declare how (`@tool(undo=...)`).

The undoing calls have a turn of their own, which runs no model. Each of them is approved, run,
shown, stopped and reported like any call. They run one after the other, the last call first; after
a stop the rest do not run. Files that they change are saved like those of other calls. The user's
next message tells the model about it.
"""

from collections.abc import Sequence

from bargein.calls import words
from bargein.contracts.event import (
    BackgroundEnded,
    CallEnded,
    CallStarted,
    CallsUndoing,
    Recorded,
)
from bargein.contracts.model import ToolCall
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    PlannedCall,
    Refused,
    UndoingToolbox,
)
from bargein.contracts.value import Value
from bargein.session.commands import CallToUndo
from bargein.session.turn import AgentFunction, Turn

_PLANNED_ONLY = "not run"


class UndoOffer(Value, frozen=True):
    """A call that can be undone by another call. `call` is its id, `effect` says in words what it
    did, and `undo` what would undo it."""

    turn: str
    call: str
    effect: str
    undo: str


class CallsBeingUndone(Value, frozen=True):
    """The turn that undoes calls, and which; nothing is undone yet when this is returned."""

    turn: str
    calls: tuple[UndoOffer, ...]


def offers(
    toolbox: UndoingToolbox | None, turns: Sequence[str], log: Sequence[Recorded]
) -> tuple[UndoOffer, ...]:
    """The calls of these turns that can be undone, in the order in which that would be done."""
    return tuple(offer for offer, _ in undoable(toolbox, turns, log))


def undoable(
    toolbox: UndoingToolbox | None, turns: Sequence[str], log: Sequence[Recorded]
) -> list[tuple[UndoOffer, CallToUndo]]:
    """A call that was undone already is not among them."""
    if toolbox is None:
        return []
    started: dict[tuple[str, str], CallStarted] = {}
    latest: dict[str, str] = {}
    results: dict[tuple[str, str], CallResult] = {}
    undoing: dict[tuple[str, str], tuple[str, str]] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, CallStarted):
            started[event.turn, event.call.id] = event
            latest[event.call.id] = event.turn
        elif isinstance(event, CallEnded):
            results[event.turn, event.call_id] = event.result
        elif isinstance(event, BackgroundEnded):
            results[latest.get(event.call_id, ""), event.call_id] = event.result
        elif isinstance(event, CallsUndoing):
            undoing |= {(event.turn, e.call.id): (e.of, e.undoes) for e in event.calls}
    done = {
        undone
        for at, undone in undoing.items()
        if at in results and results[at].status is CallStatus.FINISHED
    }
    found: list[tuple[UndoOffer, CallToUndo]] = []
    for (turn, call_id), event in reversed(started.items()):
        result = results.get((turn, call_id))
        if turn not in turns or result is None or (turn, call_id) in done | undoing.keys():
            continue
        planned = toolbox.plan_undo(event.call, result, _PLANNED_ONLY)
        if isinstance(planned, PlannedCall):
            effect = f"{event.title or event.call.name}: {result.status}"
            offer = UndoOffer(turn, call_id, effect, planned.title)
            found.append((offer, CallToUndo(turn, event.call, result, planned.call)))
    return found


def undoes_calls(toolbox: UndoingToolbox, calls: Sequence[CallToUndo]) -> AgentFunction:
    """The agent of a turn that undoes these calls."""

    async def undo(turn: Turn) -> None:
        turn.note = lambda: words.undone_by_calls(
            (each.call, each.undo, turn.result_of(each.undo.id)) for each in calls
        )
        for each in calls:
            await turn.run_calls(_Undoing(toolbox, each), [each.undo])

    return undo


class _Undoing:
    """The toolbox of one call that undoes another."""

    def __init__(self, toolbox: UndoingToolbox, to_undo: CallToUndo) -> None:
        self._toolbox = toolbox
        self._to_undo = to_undo

    def schemas(self) -> tuple[()]:
        return ()

    def plan(self, call: ToolCall) -> PlannedCall | Refused:
        undone = self._to_undo.call
        planned = self._toolbox.plan_undo(undone, self._to_undo.result, call.id)
        return planned or Refused(f"{undone.name} cannot be undone any more")

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        return await self._toolbox.run(planned, context)
