"""Engines with a fault that real agents have had, each a world that differs in one part.

None of them changes the engine's own code: they give it another `decide`, another store, model or
toolbox, through the seams that are there for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel
import msgspec

from bargein.cancel import Cancelled, CancelSource, Cause, Reason, Token, bridge
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    Event,
    QueueHeld,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.message import Mode
from bargein.contracts.model import (
    EndPart,
    Model,
    ModelRequest,
    ModelStream,
    Part,
    StopReason,
    Usage,
)
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope
from bargein.contracts.store import AcceptKey, Commit, Store
from bargein.contracts.tool import CallContext, CallResult, PlannedCall, Toolbox
from bargein.session.commands import (
    Announce,
    BackgroundOver,
    Command,
    Effect,
    Log,
    Send,
    Settled,
    StartTurn,
    Stop,
)
from bargein.session.decide import decide
from bargein.session.rules.moves import Decision
from bargein.session.state import Lane, Phase, SessionState, WaitingMessage
from bargein.session.turn import Turn
from bargein.testing.seeded import Seeded
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.model import SimulatedEndpoint
from bargein.testing.simulation.plan import Plan
from bargein.testing.simulation.store import Disk, LifeStore
from bargein.testing.simulation.tools import SimulatedToolbox
from bargein.testing.simulation.world import World

change = msgspec.structs.replace


def without(kind: type[Event], effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """The effects without the events of one kind."""
    return tuple(
        Log(tuple(event for event in effect.events if not isinstance(event, kind)))
        if isinstance(effect, Log)
        else effect
        for effect in effects
    )


# What a session decides


class OnePendingSlot(World):
    """The second message overwrites the first."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        if isinstance(command, Send):
            pending = [each for each in state.waiting if each.lane is Lane.NEXT]
            state = change(state, waiting=tuple(w for w in state.waiting if w not in pending[:-1]))
        return state, effects


class StopErasesTheQueue(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        if isinstance(command, Stop) and command.landed:
            return change(state, waiting=(), held=False), without(QueueHeld, effects)
        return state, effects


class SteerAfterTheLastStepIsStranded(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Settled):
            left = tuple(each for each in state.waiting if each.lane is not Lane.STEER)
            state = change(state, waiting=left)
        return decide(state, command)


class MessageOfALateInterruptIsDropped(World):
    """It travelled inside the interrupt, and the turn ended by itself at the same moment."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        after, effects = decide(state, command)
        interrupts = isinstance(command, Send) and command.message.mode is Mode.INTERRUPT
        if interrupts and state.phase is Phase.RUNNING and after.phase is Phase.RUNNING:
            return change(after, waiting=state.waiting), effects
        return after, effects


class BothMessagesStartATurn(World):
    """Between the check "is it running?" and the registration there is a gap."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Send) and state.phase is Phase.RUNNING:
            state = change(state, phase=Phase.IDLE, turn=None)
        return decide(state, command)


class StoppedIsShownWhileWorkGoesOn(World):
    """The receipt is given when the stop is asked for, not when it is done."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        if isinstance(command, Stop) and command.landed and state.turn is not None:
            receipt = Receipt(ReceiptStatus.STOPPED, Scope.TURN, "", state.turn)
            early = Announce(state.turn, TurnOutcome.STOPPED, "", receipt)
            return state, (early, *effects)
        return state, effects


class QueueGoesOnAfterAStop(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        if isinstance(command, Stop):
            return change(state, held=False), without(QueueHeld, effects)
        return state, effects


class OnlyTheFirstOpenCallIsRepaired(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Settled):
            repaired = [each for each in command.events if isinstance(each, CallEnded)]
            events = tuple(each for each in command.events if each not in repaired[1:])
            command = change(command, events=events)
        return decide(state, command)


class PartialTextIsThrownAway(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Settled) and command.outcome is TurnOutcome.STOPPED:
            events = tuple(each for each in command.events if not isinstance(each, AssistantSaid))
            command = change(command, events=events)
        return decide(state, command)


class AnAlbumInterruptsItself(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        return change(state, turn_groups=()), effects


class ACrashedTurnIsRunAgain(World):
    """After a restart its messages are taken once more, and its effects happen twice."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self._started: dict[str, StartTurn] = {}

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Settled) and command.outcome is TurnOutcome.CRASHED:
            again = self._started.get(command.turn)
            messages = again.messages if again is not None else ()
            waiting = tuple(WaitingMessage(message, Lane.NEXT) for message in messages)
            state = change(state, waiting=(*waiting, *state.waiting))
        state, effects = decide(state, command)
        self._started.update({e.turn: e for e in effects if isinstance(e, StartTurn)})
        return state, effects


class ARolledBackTurnIsStillShown(World):
    def decide(self, state: SessionState, command: Command) -> Decision:
        state, effects = decide(state, command)
        return state, tuple(self._shown(effect) for effect in effects)

    def _shown(self, effect: Effect) -> Effect:
        if not isinstance(effect, Log):
            return effect
        events = tuple(
            change(event, hidden=False) if isinstance(event, TurnSettled) else event
            for event in effect.events
        )
        return Log(events)


# How long it waits


class StopWaitsForTheTool(World):
    """An interrupt comes back when the tool is good enough to end."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self.engine_limits = change(self.limits, settle_s=60.0, call_grace_s=50.0)


class StopReleasesTheSession(World):
    """The session is free for the next turn at once, though the old one still runs."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self.engine_limits = change(self.limits, settle_s=0.0, call_grace_s=0.0)


# The store


class ARedeliveredMessageIsAnsweredTwice(World):
    def make_store(self, life: Life, disk: Disk) -> Store:
        return _ForgetsKeys(life, disk)


class _ForgetsKeys(LifeStore):
    async def commit_one(self, commit: Commit) -> None:
        await super().commit_one(change(commit, keys=()))

    async def find_key(self, session: str, sender: str, client_id: str) -> AcceptKey | None:
        await super().find_key(session, sender, client_id)
        return None


class AcknowledgedBeforeDurable(World):
    def make_store(self, life: Life, disk: Disk) -> Store:
        return _WritesLater(life, disk)


class _WritesLater(LifeStore):
    """It says that it has written, and does so a moment later."""

    async def commit_one(self, commit: Commit) -> None:
        group = self._life.world.group
        group.start_soon(super().commit_one, commit)
        await anyio.lowlevel.checkpoint()


class AStaleOwnerWritesOn(World):
    """Nobody checks the epoch: every former owner of the session may write to it."""

    def make_store(self, life: Life, disk: Disk) -> Store:
        return _KnowsNoEpoch(life, disk)


class _KnowsNoEpoch(LifeStore):
    async def commit_one(self, commit: Commit) -> None:
        head = await self._disk.head(commit.session)
        assert head is not None
        await super().commit_one(change(commit, epoch=head.epoch, expected_seq=head.seq))

    def _check_epoch(self, commit: Commit) -> None:
        pass


# The model


class AStoppedRequestIsTriedAgain(World):
    """The client was closed to stop the stream; that was taken for a fault of the network."""

    def make_model(self, life: Life, turn: Turn) -> Model:
        return _TriesAgain(super().make_model(life, turn), SimulatedEndpoint(life, turn))


class _TriesAgain:
    context_tokens = None

    def __init__(self, model: Model, endpoint: SimulatedEndpoint) -> None:
        self.name = model.name
        self._model = model
        self._endpoint = endpoint

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:
        async with self._model.open(request, token) as stream:
            yield _StreamThatTriesAgain(stream, self._endpoint, request, token)

    async def aclose(self) -> None: ...


class _StreamThatTriesAgain:
    def __init__(
        self, stream: ModelStream, endpoint: SimulatedEndpoint, request: ModelRequest, token: Token
    ) -> None:
        self._stream = stream
        self._endpoint = endpoint
        self._request = request
        self._token = token
        self.usage = Usage()

    async def __aiter__(self) -> AsyncIterator[Part]:
        try:
            async for part in self._stream:
                yield part
        except Cancelled:
            again = self._endpoint.attempt(self._request, self._token)
            await again.aclose()
            raise


class AStopSurvivesIntoTheNextTurn(World):
    """A flag that was set after its last check ends the next turn, which asks nothing."""

    stopped = False

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Stop) and not command.landed:
            self.stopped = True
        return decide(state, command)

    def make_model(self, life: Life, turn: Turn) -> Model:
        return _HeedsAFlag(super().make_model(life, turn), self)


class _HeedsAFlag:
    context_tokens = None

    def __init__(self, model: Model, world: AStopSurvivesIntoTheNextTurn) -> None:
        self.name = model.name
        self._model = model
        self._world = world

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:
        if self._world.stopped:
            self._world.stopped = False
            yield _NothingToSay()
        else:
            async with self._model.open(request, token) as stream:
                yield stream

    async def aclose(self) -> None: ...


class _NothingToSay:
    usage = Usage()

    async def __aiter__(self) -> AsyncIterator[Part]:
        yield EndPart(StopReason.END)


# The tools


class AStopKillsEveryCommand(World):
    """One flag for the whole process: a stop of one session ends the tools of all."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        super().__init__(plan, run)
        self.flag = CancelSource("every tool", clock=run.clock)

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, Stop) and command.landed:
            self.flag.cancel(Reason(Cause.USER_STOP, command.by))
            self.flag = CancelSource("every tool", clock=self.clock)
        return decide(state, command)

    def make_toolbox(self, life: Life, turn: Turn) -> Toolbox:
        return _SharesAFlag(life, turn, self)


class _SharesAFlag(SimulatedToolbox):
    def __init__(self, life: Life, turn: Turn, world: AStopKillsEveryCommand) -> None:
        super().__init__(life, turn)
        self._world = world

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        return await super().run(planned, change(context, token=self._world.flag.token))


class ADetachedCallDiesWithItsTurn(World):
    """Its token is the turn's: moved to the background, it is still stopped with the turn."""

    def make_toolbox(self, life: Life, turn: Turn) -> Toolbox:
        return _UnderTheTurn(life, turn)


class _UnderTheTurn(SimulatedToolbox):
    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        return await super().run(planned, change(context, token=self._turn.token))


class TheEndOfAStoppedCallBeginsATurn(World):
    """The news of what was stopped in the background wakes the session."""

    def decide(self, state: SessionState, command: Command) -> Decision:
        if isinstance(command, BackgroundOver):
            command = change(command, begins_turn=True)
        return decide(state, command)


class AStopOfOneCallStopsItsSiblings(World):
    """The calls of a turn share one token."""

    def make_toolbox(self, life: Life, turn: Turn) -> Toolbox:
        return _StopsItsSiblings(life, turn)


class _StopsItsSiblings(SimulatedToolbox):
    def __init__(self, life: Life, turn: Turn) -> None:
        super().__init__(life, turn)
        self._shared = turn.token.child("all calls")

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        def pass_on() -> None:
            reason = context.token.reason
            assert reason is not None
            self._shared.cancel(reason.root)

        bridge(context.token, pass_on)
        return await super().run(planned, change(context, token=self._shared.token))
