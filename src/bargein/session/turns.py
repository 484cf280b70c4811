"""The turns of one session: the turn that a stop would cancel, and turns whose end is not
durable."""

from functools import partial
from typing import TYPE_CHECKING

from bargein.cancel import Cause, Reason
from bargein.cancel.latch import Latch
from bargein.errors import BargeinError
from bargein.session.abort import announce, run_turn
from bargein.session.commands import Announce, StartTurn
from bargein.session.staging import refreshing
from bargein.session.turn import AgentFunction, Turn
from bargein.session.undoing_calls import undoes_calls

if TYPE_CHECKING:
    from bargein.session.actor import Actor, Parts


class Turns:
    """`current` is the turn that a stop would cancel; any thread may read it. Turns without
    messages undo calls, or `parts.compact` is their agent."""

    def __init__(self, actor: "Actor", parts: "Parts") -> None:
        self.current: Turn | None = None
        self._actor = actor
        self._parts = parts
        self._turns: dict[str, Turn] = {}
        self._at_work = 0
        self._work_over = Latch()

    @property
    def can_compact(self) -> bool:
        return self._parts.compact is not None

    def work_with(self, parts: "Parts") -> None:
        self._parts = parts

    def change(self, turn_id: str | None) -> None:
        """Follow a change of the state's turn. Makes the turn's source before anything else, so
        that an interrupt always has something to land on."""
        if turn_id is None:
            self.current = None
            return
        actor = self._actor
        actor.titler.stop(Reason(Cause.REDIRECT, f"{turn_id} begins"))
        source = actor.source.token.child(f"turn {turn_id} of {actor.session_id}")
        self.current = self._turns[turn_id] = Turn(actor, turn_id, source, ())

    def start(self, start: StartTurn) -> None:
        turn = self._turns[start.turn]
        turn.messages = start.messages
        turn.undoing = tuple(each.undo for each in start.undo)
        turn.begun = True
        self._at_work += 1
        if self._actor.run is None:
            self._actor.tree.turn_began()
        self._actor.files.turn_begins()
        agent = self._agent_of(start)
        if self._parts.stage is not None and start.messages and self._actor.run is None:
            agent = refreshing(self._actor, self._parts.stage, agent)
        self._actor.spawn(partial(self._run, turn, agent))

    def _agent_of(self, start: StartTurn) -> AgentFunction:
        parts = self._parts
        if start.undo and parts.toolbox is not None:
            return undoes_calls(parts.toolbox, start.undo)
        return parts.agent if start.messages or parts.compact is None else parts.compact

    async def _run(self, turn: Turn, agent: AgentFunction) -> None:
        try:
            await run_turn(self._actor, turn, agent)
        finally:
            self._at_work -= 1
            self._work_over.set()

    async def work_over(self) -> None:
        """Wait until no turn is in flight. Each has a bound once it is cancelled."""
        while self._at_work:
            if self._work_over.is_set:
                self._work_over = Latch()
            await self._work_over.wait()

    def announce(self, over: Announce) -> None:
        """Announce the durable end of a turn."""
        announce(self._actor, self._turns.pop(over.turn, None), over)

    def seconds_of(self, turn_id: str) -> float:
        """Return how many seconds this turn has taken."""
        turn = self._turns.get(turn_id)
        return turn.meter.elapsed_s if turn is not None else 0.0

    @property
    def unsettled(self) -> tuple[Turn, ...]:
        """The turns whose ends are not durable."""
        return tuple(self._turns.values())

    def lose(self, gone: BargeinError) -> None:
        """Fail the waiters for the end of a turn, because the session leaves memory."""
        for turn in self._turns.values():
            turn.settled.fail(gone)
            if not turn.begun:
                # Its start could not be stored, so there is nothing to wait for.
                turn.over.set()
