"""One request to stop: a turn, all of a session, one call or one sub-agent, and the receipt of it.

The cancel goes out when the request is made, before anything is awaited. What follows is waiting,
within its bounds, for what was stopped to be over. Whoever stops waiting stops nothing by that.
"""

from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.cancel import Reason
from bargein.contracts.receipt import Receipt, ReceiptStatus, Scope, StoppedStep
from bargein.session.actor import Actor, Landing, SessionGone
from bargein.session.calls import Call, stopped_step
from bargein.session.children import ChildRun
from bargein.session.commands import Refuse, Stop
from bargein.session.reply import Reply
from bargein.session.rules.stopping import holds
from bargein.session.settle import receipt_of
from bargein.session.turn import Turn

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine


class Interrupt:
    """`reason` has the name of whoever asks as its detail. `landing` is of a cancel of the turn
    that was brought before, in another thread."""

    def __init__(
        self, engine: "SessionEngine", actor: Actor, reason: Reason, landing: Landing | None = None
    ) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._actor = actor
        self._reason = reason
        self._landing = landing
        self._began_at = actor.clock.now()

    async def of_turn(self, aim: str | None, scope: Scope = Scope.TURN) -> Receipt:
        """Stop the turn that runs, if it is the one aimed at, or whichever it is."""
        landing = self._landing or self._actor.land(self._reason, aim)
        landed = landing.landed or landing.joined
        turn = landing.turn_object
        if turn is not None and landed and turn.over.is_set:
            # The word of it comes after the end that it brought about.
            return await self._receipt(turn, scope)
        stop = Stop(landing.turn or aim, landed, self._reason.detail, str(self._reason.cause))
        told = self._actor.post(stop)
        if turn is not None and landed:
            return await self._receipt(turn, scope)
        return await self._held_or_too_late(told, landing.turn or aim or "", scope)

    async def of_session(self, aim: str | None) -> Receipt:
        """Stop the turn and all that lives as long as the session; nothing, if the turn that is
        aimed at is over."""
        landing = self._landing = self._landing or self._actor.land(self._reason, aim)
        if aim is not None and not (landing.landed or landing.joined):
            return await self.of_turn(aim, Scope.SESSION)
        background = tuple(self._actor.background.values())
        detached = self._actor.children.detached
        self._actor.renew_lifetime(self._reason)
        receipt = await self.of_turn(aim, Scope.SESSION)
        if not background and not detached:
            return receipt
        steps = [step for call in background for step in await self._steps_of(call)]
        for run in detached:
            steps += await self._steps_below(run)
        elapsed_ms = self._elapsed_ms
        stored = receipt.stored and await self._is_stored()
        state = self._actor.state
        return msgspec.structs.replace(
            receipt,
            status=ReceiptStatus.STOPPED,
            reason=receipt.reason or self._reason,
            elapsed_ms=elapsed_ms,
            steps=(*receipt.steps, *steps),
            held=tuple(each.message.id for each in state.waiting) if state.held else receipt.held,
            stored=stored,
        )

    async def of_call(self, call_id: str) -> Receipt:
        call = self._actor.find_call(call_id)
        if call is None or call.result is not None or not call.source.cancel(self._reason):
            return self._too_late(Scope.CALL, call_id)
        return await self._stopped(Scope.CALL, call_id, await self._steps_of(call))

    async def of_child(self, child: str) -> Receipt:
        """Stop a sub-agent, at any depth below this session, and leave all others alone."""
        parent = self._engine.actor_in_memory(child.rpartition("/")[0])
        below = parent is not None and f"{child}/".startswith(f"{self._actor.session_id}/")
        run = parent.children.find(child) if parent is not None and below else None
        if run is None or not run.source.cancel(self._reason):
            return self._too_late(Scope.CHILD, child)
        steps = await self._steps_below(run)
        if run.parent is not self._actor:
            # The call is one of another session, whose calls may have the same names.
            call_id = f"{run.parent.session_id}/{steps[0].call_id}"
            steps = (msgspec.structs.replace(steps[0], call_id=call_id), *steps[1:])
        return await self._stopped(Scope.CHILD, child, steps)

    async def _receipt(self, turn: Turn, scope: Scope) -> Receipt:
        """The turn's receipt; if the store does not answer in time, what is known without it."""
        limits = self._limits
        if not turn.over.is_set:
            await turn.over.wait(limits.receipt_s - limits.store_s)
        clock, began_at = self._actor.clock, self._actor.clock.now()
        try:
            result = await turn.settled.wait(limits.store_s)
            if result is not None and result.receipt is not None:
                return msgspec.structs.replace(result.receipt, scope=scope)
        except SessionGone:
            # The store failed. The turn is being ended all the same.
            with anyio.move_on_after(began_at + limits.store_s - clock.now()):
                await self._actor.work_over()
        return await self._unstored(turn, scope)

    async def _unstored(self, turn: Turn, scope: Scope) -> Receipt:
        """What is known without the store. It is kept beside the store if that is possible, so that
        nobody reads something else after a restart."""
        actor = self._actor
        receipt = turn.receipt or receipt_of(actor, turn)
        cause = receipt.reason.root.cause if receipt.reason is not None else None
        held = actor.durably_waiting() if holds(cause) else ()
        receipt = msgspec.structs.replace(receipt, scope=scope, held=held, stored=False)
        if turn.stopped_on_request:
            await self._engine.keep_stop(actor, turn.id, receipt)
        return receipt

    async def _held_or_too_late(self, told: Reply, target: str, scope: Scope) -> Receipt:
        """Nothing was running. If something was about to, an album, it is held."""
        answer = await told.wait(self._limits.receipt_s)
        if isinstance(answer, Refuse):
            return self._too_late(scope, target)
        return Receipt(
            ReceiptStatus.STOPPED,
            scope,
            self._actor.session_id,
            target,
            by=self._reason.detail,
            held=tuple(each.message.id for each in self._actor.state.waiting),
            stored=answer is not None,
        )

    async def _steps_of(self, call: Call) -> tuple[StoppedStep, ...]:
        """What became of a call that was cancelled, and of its sub-agents."""
        limits = self._limits
        longest_s = max(limits.children_s(self._actor.depth), limits.calls_s)
        await call.over.wait(limits.settle_s + longest_s)
        itself = stopped_step(call, self._elapsed_ms)
        return (itself, *(step for run in call.children for step in run.steps()))

    async def _steps_below(self, run: ChildRun) -> tuple[StoppedStep, ...]:
        await run.over.wait(self._limits.receipt_s)
        return run.steps()

    @property
    def _elapsed_ms(self) -> float:
        return (self._actor.clock.now() - self._began_at) * 1e3

    async def _is_stored(self) -> bool:
        """Whether what became of this is durable; False if the store does not say so in time."""
        with anyio.move_on_after(self._limits.store_s):
            return await self._actor.stored_so_far()
        return False

    async def _stopped(self, scope: Scope, target: str, steps: tuple[StoppedStep, ...]) -> Receipt:
        return Receipt(
            ReceiptStatus.STOPPED,
            scope,
            self._actor.session_id,
            target,
            self._reason,
            self._reason.detail,
            max(step.elapsed_ms for step in steps),
            steps,
            stored=await self._is_stored(),
        )

    def _too_late(self, scope: Scope, target: str) -> Receipt:
        by = self._reason.detail
        return Receipt(ReceiptStatus.TOO_LATE, scope, self._actor.session_id, target, by=by)
