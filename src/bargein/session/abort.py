"""How a turn ends: from the request to stop it to the receipt. Read it from top to bottom.

The order of an abort, and where each step is:

1. Decide the cell, cancelled or ended: `land`, called by `Interrupt`, by a message that stops and
   by the end of the program. A turn that ends by itself decides it in `settle`.
2. Flags, sockets and signals: inside that cancel, in the calling thread (see `bargein.cancel`).
   The session learns of it by a `Stop` or `Send` command, which its loop decides.
3. Wait within the ladder: `run_turn` for the agent, `settle` for its calls.
4. Fence: `settle`. Everything that the turn says or writes later is dropped.
5. Repair the transcript: `repair`.
6. Commit: the `Settled` command. `rules.turns.turn_settled` decides it; the end of this turn, the
   messages that are taken next and the start of the next turn are one commit.
7. Announce and give the receipt, when that is durable: `announce`, then `Interrupt.receipt`.
8. Next: the `StartTurn` effect of the same decision, carried out by `turns`. If the turn was rolled
   back, the `RestoreFiles` effect comes first, carried out by `rolling_back`.

`recovery`, beside this file, settles a turn that a crash prevented the program from settling.

A caller that stops waiting for its receipt does not change the stop.
"""

import logging
from functools import partial, reduce
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.calls.words import hidden_note, stop_note
from bargein.cancel import Cause, Outcome, Reason
from bargein.contracts.budget import Spent
from bargein.contracts.event import AgentState, AnswerHeard, Event, TurnOutcome, TurnSettled
from bargein.contracts.mail import StopAsked
from bargein.contracts.message import HeardSoFar
from bargein.contracts.model import ToolCall
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StepKind, StoppedStep
from bargein.contracts.store import OwnedElsewhere, SessionUnreadable, StoreFailed
from bargein.contracts.tool import CallStatus
from bargein.errors import BargeinError
from bargein.session.budget import spent_after
from bargein.session.calls import ActiveCall, stopped_step
from bargein.session.commands import Announce, Refuse, Settled, Stop, StopBefore
from bargein.session.hooks import Hooks, run_bounded
from bargein.session.host import TurnHost
from bargein.session.journal import JournalBroken
from bargein.session.reply import Reply, SessionGone
from bargein.session.results import TurnResult
from bargein.session.rules.stopping import holds
from bargein.session.state import SessionState
from bargein.session.steps import ms_since_cancel
from bargein.session.turn import AgentFunction, Turn

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.children import ChildRun
    from bargein.session.engine import SessionEngine

_log = logging.getLogger("bargein.session")

ERROR_CHARACTERS_MAX = 4000
"""How much of an error's message the log stores."""


# 1. Decide the cell


class Landing(msgspec.Struct, frozen=True):
    """What a cancel of the running turn found. `landed`: it decided the turn's cell. `joined`: the
    turn was already being stopped."""

    turn: Turn | None = None
    landed: bool = False
    joined: bool = False

    @property
    def stops(self) -> bool:
        """Whether the turn is being stopped, by this cancel or by an earlier one."""
        return self.landed or self.joined

    @property
    def turn_id(self) -> str | None:
        return self.turn.id if self.turn is not None else None


def land(actor: "Actor", reason: Reason, expected_turn: str | None = None) -> Landing:
    """Cancel the running turn at once, unless another turn is expected. Any thread may call it.

    Only for the engine's own parts, which post the command that belongs to the cancel. All other
    code uses `Session.interrupt` or `Session.interrupt_now`.
    """
    turn = actor.turn
    if expected_turn is None:
        actor.titler.stop(reason)
    if turn is None or (expected_turn is not None and turn.id != expected_turn):
        return Landing()
    landed = turn.source.cancel(reason)
    return Landing(turn, landed, not landed and turn.token.cancelled)


def stopped_before(landing: Landing) -> StopBefore | None:
    """What had stopped the turn before this cancel of it, for the `Close` or `End` that follows."""
    turn = landing.turn
    if turn is None or not landing.joined or turn.stopped_by_cause is None:
        return None
    return StopBefore(turn.id, turn.stopped_by_cause, turn.stopped_by)


class Interrupt:
    """One request to stop something: a turn, a session, a call or a sub-agent.

    A turn is cancelled before the constructor returns, in any thread. `landed` is True if a turn is
    being stopped; `await receipt()` waits for the receipt.
    """

    def __init__(
        self,
        engine: "SessionEngine",
        session_id: str,
        reason: Reason,
        *,
        scope: Scope = Scope.TURN,
        target: str | None = None,
        expected_turn: str | None = None,
        heard: HeardSoFar | None = None,
    ) -> None:
        """The detail of `reason` is the name of the person who asks. `heard` is noted whatever
        becomes of the stop, unless the session has no such turn."""
        self._engine = engine
        self._limits = engine.limits
        self._session_id = session_id
        self._reason = reason
        self._scope = scope
        self._target = target or ""
        self._aim = expected_turn or (target if scope is Scope.TURN else None)
        self._landing: Landing | None = None
        self._told: Reply | None = None
        self._heard = heard
        self._noted: Reply | None = None
        self._clock = engine.parts.clock
        self._until = 0.0
        actor = engine.actor_in_memory(session_id)
        if actor is not None and scope in (Scope.TURN, Scope.SESSION):
            self._actor = actor
            self._landing = land(actor, reason, self._aim)

    @property
    def landed(self) -> bool:
        return self._landing is not None and self._landing.stops

    def tell(self) -> None:
        """Post the command that belongs to the cancel, once. Only in the session's loop."""
        landing = self._landing
        if landing is None or self._told is not None:
            return
        self._note_heard()
        if landing.turn is not None and landing.stops and landing.turn.over.is_set:
            return  # the turn settled first, and its end names who stopped it
        by, cause = self._reason.detail, str(self._reason.cause)
        self._told = self._actor.post(Stop(landing.turn_id or self._aim, landing.stops, by, cause))

    def _note_heard(self) -> None:
        """Log what the user heard, once; not yet if the session has left memory."""
        if self._heard is not None and not self._actor.gone.is_set:
            event = heard_event(self._actor, self._heard, self._reason.detail)
            self._noted = self._actor.write(event) if event is not None else None
            self._heard = None

    # 7. The receipt

    async def receipt(self) -> Receipt:
        """Wait, for `receipt_s` at most, until everything stopped is over. Returns the receipt."""
        self._until = self._clock.now() + self._limits.receipt_s
        receipt = await self._receipt()
        if receipt.stored and not await self._heard_is_stored():
            receipt = msgspec.structs.replace(receipt, stored=False)
        return receipt

    def _left_s(self, reserve_s: float = 0.0) -> float:
        """How long the receipt may still take, without a reserve for what comes later."""
        return max(0.0, self._until - self._clock.now() - reserve_s)

    async def _heard_is_stored(self) -> bool:
        """Whether the log has what the user heard, if that was given."""
        try:
            if self._heard is not None:
                self._actor = await self._engine.actor(self._session_id)
                self._note_heard()
            if self._noted is not None:
                return await self._noted.wait(self._left_s()) is not None
        except (SessionGone, JournalBroken, StoreFailed):
            return False
        return self._heard is None

    async def _receipt(self) -> Receipt:
        if self._landing is None:
            try:
                self._actor = await self._engine.actor(self._session_id)
            except SessionUnreadable:
                raise
            except OwnedElsewhere as elsewhere:
                receipt = await self._of_another(elsewhere)
                if receipt is not None:
                    self._heard = None  # the other node has noted it
                    return receipt
                self._actor = await self._engine.actor(self._session_id)
            except StoreFailed:
                # The store cannot bring the session into memory, so nothing of it runs.
                return self._too_late(self._target or self._aim or "", stored=False)
        self._note_heard()
        match self._scope:
            case Scope.CALL:
                return await self._of_call(self._target)
            case Scope.CHILD:
                return await self._of_child(self._target)
            case Scope.SESSION:
                return await self._of_session()
            case Scope.SIDE:
                return await self._of_side(self._target)
            case Scope.TURN:
                return await self._of_turn()

    async def _of_another(self, owner: OwnedElsewhere) -> Receipt | None:
        """The receipt of the node that has the session; None if this one has it now."""
        elsewhere = self._engine.elsewhere
        if elsewhere is None:
            raise owner
        asked = StopAsked(
            session=self._session_id,
            scope=self._scope,
            target=self._target,
            expected_turn=self._aim,
            seq=0,
            by=self._reason.detail,
            cause=self._reason.cause,
            heard=self._heard,
        )
        asked = await elsewhere.aim(asked)
        receipt = await elsewhere.stop(asked, owner)
        # The aim stays the same turn, even if this node has begun another one meanwhile.
        self._aim = await elsewhere.meant(asked) if receipt is None else None
        return receipt

    async def _of_turn(self) -> Receipt:
        if self._landing is None:
            self._landing = land(self._actor, self._reason, self._aim)
        landing = self._landing
        self.tell()
        if landing.turn is not None and landing.stops:
            return await self._when_settled(landing.turn)
        return await self._held_or_too_late(landing.turn_id or self._aim or "")

    async def _when_settled(self, turn: Turn) -> Receipt:
        """Return the turn's receipt; if the store does not answer in time, one made without it."""
        limits = self._limits
        if not turn.over.is_set:
            await turn.over.wait(limits.receipt_s - limits.store_s)
        clock, began_at = self._actor.clock, self._actor.clock.now()
        try:
            result = await turn.settled.wait(limits.store_s)
            if result is not None and result.receipt is not None:
                return msgspec.structs.replace(result.receipt, scope=self._scope)
        except SessionGone:
            # The store failed. The turn ends nevertheless.
            with anyio.move_on_after(began_at + limits.store_s - clock.now()):
                await self._actor.work_over()
        return await self._unstored(turn)

    async def _unstored(self, turn: Turn) -> Receipt:
        """Make a receipt without the store. The reserve keeps it, if there is one, so that a
        restart does not contradict it."""
        actor = self._actor
        receipt = turn.receipt or receipt_of(actor, turn)
        cause = receipt.reason.root.cause if receipt.reason is not None else None
        held = actor.durably_waiting() if holds(cause) else ()
        receipt = msgspec.structs.replace(receipt, scope=self._scope, held=held, stored=False)
        if turn.stopped_on_request:
            await self._engine.recovery.keep_stop(actor, turn.id, receipt)
        return receipt

    async def _held_or_too_late(self, target: str) -> Receipt:
        """Return the receipt if no turn was running. An album that was about to start one is
        held."""
        assert self._told is not None
        try:
            answer = await self._told.wait(self._left_s())
        except SessionGone:
            return self._too_late(target)
        except JournalBroken:
            answer = None
        if isinstance(answer, Refuse):
            return self._too_late(target)
        actor = self._actor
        waiting = tuple(each.message.id for each in actor.state.waiting)
        return Receipt(
            ReceiptStatus.STOPPED,
            self._scope,
            self._session_id,
            target,
            by=self._reason.detail,
            held=waiting if answer is not None else actor.durably_waiting(),
            stored=answer is not None,
        )

    async def _of_session(self) -> Receipt:
        """Stop the turn and everything that lives as long as the session. If a turn is expected and
        another one runs, stop nothing."""
        actor = self._actor
        landing = self._landing = self._landing or land(actor, self._reason, self._aim)
        if self._aim is not None and not landing.stops:
            return await self._of_turn()
        background = tuple(actor.background.values())
        detached = actor.children.detached
        lifetime = actor.lifetime.token
        actor.renew_lifetime(self._reason)
        receipt = await self._of_turn()
        if not background and not detached:
            return receipt
        steps = [step for call in background for step in await self._steps_of(call)]
        for run in detached:
            steps += await self._steps_below(run)
        elapsed_ms = ms_since_cancel(lifetime)
        also: tuple[ActiveCall | ChildRun, ...] = (*background, *detached)
        stored = receipt.stored and await self._is_stored()
        state = actor.state
        return msgspec.structs.replace(
            receipt,
            status=ReceiptStatus.STOPPED,
            reason=receipt.reason or self._reason,
            elapsed_ms=elapsed_ms,
            steps=(*receipt.steps, *steps),
            held=tuple(each.message.id for each in state.waiting) if state.held else receipt.held,
            stored=stored,
            spent=reduce(Spent.plus, (each.spent for each in also), receipt.spent or Spent()),
        )

    async def _of_call(self, call_id: str) -> Receipt:
        call = self._actor.find_call(call_id)
        if call is None or call.result is not None or not call.source.cancel(self._reason):
            return self._too_late(call_id)
        steps = await self._steps_of(call)
        return await self._stopped(call_id, steps, call.spent.with_call())

    async def _of_child(self, child: str) -> Receipt:
        """Stop a sub-agent, at any depth below this session, and no other."""
        parent = self._engine.actor_in_memory(child.rpartition("/")[0])
        below = parent is not None and f"{child}/".startswith(f"{self._session_id}/")
        run = parent.children.find(child) if parent is not None and below else None
        if run is None or not run.source.cancel(self._reason):
            return self._too_late(child)
        steps = await self._steps_below(run)
        if run.parent is not self._actor:
            # The call belongs to another session, whose calls may have the same ids.
            call_id = f"{run.parent.session_id}/{steps[0].call_id}"
            steps = (msgspec.structs.replace(steps[0], call_id=call_id), *steps[1:])
        return await self._stopped(child, steps, run.spent)

    async def _of_side(self, question: str) -> Receipt:
        run = self._engine.side_runs.get((self._session_id, question))
        if run is None or not run.source.cancel(self._reason):
            return self._too_late(question)
        await run.over.wait(self._left_s(self._limits.store_s))
        return await self._stopped(question, (run.step(),), run.spent)

    async def _steps_of(self, call: ActiveCall) -> tuple[StoppedStep, ...]:
        """Wait for a cancelled call. Returns its step and those of its sub-agents."""
        limits = self._limits
        longest_s = max(limits.children_s(self._actor.depth), limits.calls_s)
        await call.over.wait(min(limits.settle_s + longest_s, self._left_s(limits.store_s)))
        itself = stopped_step(call, ms_since_cancel(call.source.token))
        return (itself, *(step for run in call.children for step in run.steps()))

    async def _steps_below(self, run: "ChildRun") -> tuple[StoppedStep, ...]:
        await run.over.wait(self._left_s(self._limits.store_s))
        return run.steps()

    async def _is_stored(self) -> bool:
        """Whether the outcome is durable; False if the store does not confirm it in time."""
        with anyio.move_on_after(min(self._limits.store_s, self._left_s())):
            return await self._actor.stored_so_far()
        return False

    async def _stopped(self, target: str, steps: tuple[StoppedStep, ...], spent: Spent) -> Receipt:
        return Receipt(
            ReceiptStatus.STOPPED,
            self._scope,
            self._session_id,
            target,
            self._reason,
            self._reason.detail,
            max(step.elapsed_ms for step in steps),
            steps,
            stored=await self._is_stored(),
            spent=spent,
        )

    def _too_late(self, target: str, *, stored: bool = True) -> Receipt:
        status, by = ReceiptStatus.TOO_LATE, self._reason.detail
        return Receipt(status, self._scope, self._session_id, target, by=by, stored=stored)


def heard_event(actor: "Actor", heard: HeardSoFar, by: str) -> AnswerHeard | None:
    """Return the event for how much of a turn the user heard; None if there is no such turn."""
    if not _is_turn_of(actor.state, heard.turn):
        return None
    turn = actor.turn
    so_far = turn.speech.so_far if turn is not None and turn.id == heard.turn else None
    streaming = so_far is not None and bool(so_far.text.strip())
    return AnswerHeard(heard.turn, heard.characters, by, streaming)


def _is_turn_of(state: SessionState, turn: str) -> bool:
    number = turn[1:]
    if len(number) > len(str(state.turns)) or not (number.isascii() and number.isdigit()):
        return False
    return turn == f"t{int(number)}" and 1 <= int(number) <= state.turns


# 3. Wait within the ladder


async def run_turn(host: TurnHost, turn: Turn, agent: AgentFunction) -> None:
    """Run a turn to its end, whatever happens. Runs as a task of the engine; never raises."""
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
    except Exception as error:  # boundary: the agent could not be started, so the turn fails
        failure = error
    await settle(host, turn, outcome, failure)


async def settle(
    host: TurnHost, turn: Turn, outcome: Outcome[None] | None, failure: BaseException | None
) -> None:
    """Do steps 3 to 6 for every turn: stopped, failed or completed."""
    turn.source.seal()
    stopped = turn.token.cancelled
    if not stopped:
        turn.calls.stop_running(Reason(Cause.SHUTDOWN, f"{turn.id} has ended"))
    if turn.calls.running:
        with anyio.move_on_after(turn.calls.settle_s, shield=True):
            await turn.calls.all_over()
    # 4. Fence
    turn.fence()
    turn.book.abandon_open()
    if outcome is not None and outcome.status == "abandoned":
        since_ms = turn.book.since_cancel_ms
        turn.book.record(StoppedStep(StepKind.AGENT, "agent", CallStatus.ABANDONED, since_ms))
    # 5. Repair
    result, error = _outcome_of(turn, failure)
    events = turn.last_events = repair(host, turn, whole=result is TurnOutcome.COMPLETED)
    receipt = turn.receipt = receipt_of(host, turn) if stopped else None
    turn.over.set()
    # 6. Commit
    host.post(
        Settled(
            turn=turn.id,
            outcome=result,
            events=events,
            error=error,
            receipt=receipt,
            note=stop_note(receipt) if receipt is not None and turn.messages else turn.note(),
            effects=turn.book.effects,
            note_if_hidden=hidden_note((*turn.book.effects, *turn.book.stopped)),
            has_files=host.files.may_have_changed(turn.id),
        )
    )


def _outcome_of(turn: Turn, failure: BaseException | None) -> tuple[TurnOutcome, str]:
    """Return how the turn ended, and the message of its error."""
    if turn.token.cancelled:
        return TurnOutcome.STOPPED, ""
    if failure is None:
        return TurnOutcome.COMPLETED, ""
    words = str(failure)
    if not isinstance(failure, BargeinError):
        _log.error("the agent of %s failed", turn.id, exc_info=failure)
        words = f"{type(failure).__name__}: {failure}"
    return TurnOutcome.FAILED, words[:ERROR_CHARACTERS_MAX]


# 5. Repair the transcript


def repair(host: TurnHost, turn: Turn, *, whole: bool) -> tuple[Event, ...]:
    """Return the last events of a turn. They make its transcript well formed again after a stop or
    a failure. `whole`: the turn ended by itself."""
    events: list[Event] = [turn.end_of(call) for call in host.logbook.transcript.open_calls]
    events += [turn.end_of(call) for call in turn.undoing if not turn.calls.has_end(call.id)]
    unsaid = turn.speech.unsaid(whole=whole)
    if unsaid is not None:
        events.append(unsaid)
        calls = (part for part in unsaid.message.content if isinstance(part, ToolCall))
        events += [turn.end_of(call) for call in calls]
    if turn.uncounted_request is not None:
        events.append(turn.uncounted_request.used)
        turn.uncounted_request = None
    if turn.meter.ended_by is not None:
        events.append(turn.meter.ended_by)
    if turn.state_changed:
        events.append(AgentState(turn.id, host.logbook.agent_state))
    return tuple(events)


def receipt_of(host: TurnHost, turn: Turn) -> Receipt:
    """Make the receipt of a stopped turn. `turn_settled` adds the held and queued messages."""
    return Receipt(
        status=ReceiptStatus.STOPPED,
        scope=Scope.TURN,
        session=host.session_id,
        target=turn.id,
        reason=turn.token.reason,
        by=turn.stopped_by,
        elapsed_ms=turn.book.since_cancel_ms,
        steps=turn.book.stopped,
        spent=spent_by(turn),
    )


def spent_by(turn: Turn) -> Spent:
    """Return what a stopped turn has used in all. Its last events are not in the log yet."""
    spent = reduce(spent_after, turn.last_events, turn.spent)
    return spent.plus(turn.uncounted).with_time(turn.meter.elapsed_s)


# 7. Announce


def announce(actor: "Actor", turn: Turn | None, over: Announce) -> None:
    """Give the durable end of a turn to the waiters for its result or receipt."""
    text = turn.text if turn is not None else ""
    result = TurnResult(over.turn, over.outcome, text, over.error, over.receipt)
    actor.results.settled(result)
    if turn is not None:
        turn.settled.give(result)
    actor.titler.turn_settled(over.outcome)
    if actor.hooks is not None:
        settled = TurnSettled(over.turn, over.outcome, over.receipt, over.error)
        actor.spawn(partial(_run_settled_hook, actor, actor.hooks, settled))


async def _run_settled_hook(actor: "Actor", hooks: Hooks, settled: TurnSettled) -> None:
    await run_bounded(
        actor.owner,
        hooks.turn_settled,
        actor.session_id,
        settled,
        # The stop may have cancelled the sub-agent's own token, so use its parent's.
        token=(actor.run.parent if actor.run is not None else actor).source.token,
        timeout_s=actor.limits.hook_s,
        name="turn_settled",
    )
