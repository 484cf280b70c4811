"""How the users of a simulated world stop things, and how they check the receipts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from bargein.contracts.receipt import Receipt, Scope
from bargein.session.session import Session
from bargein.testing.simulation import plan as plans
from bargein.testing.simulation.record import RequestedStop

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life
    from bargein.testing.simulation.users import User

T = TypeVar("T")


class Stops:
    """The part of a deed that stops things."""

    def __init__(self, user: "User", life: "Life", name: str, session: str) -> None:
        assert life.engine is not None
        self._user = user
        self._world = life.world
        self._record = life.record
        self._life = life
        self._engine = life.engine
        self._name = name
        self._session = session
        self._laws = self._record.laws_of(session)

    async def _open(self) -> Session:
        return await self._engine.session(self._session)

    async def stop_turn(self, action: plans.StopTurn) -> None:
        await self._stop(Scope.TURN, expected=self._aim(action.aim))

    async def stop_session(self, action: plans.StopSession) -> None:
        await self._stop(Scope.SESSION)

    async def stop_call(self, action: plans.StopCall) -> None:
        call = self._choose_call(action.which)
        if call is not None:
            await self._stop(Scope.CALL, target=call)

    async def stop_child(self, action: plans.StopChild) -> None:
        family = [
            laws
            for name, laws in self._record.laws.items()
            if f"{name}/".startswith(f"{self._session}/")
        ]
        running = [child for laws in family for child in laws.running_children]
        child = choose(
            running or [child for laws in family for child in laws.children], action.which
        )
        if child is not None:
            await self._stop(Scope.CHILD, target=child)

    async def stop_from_a_thread(self, action: plans.StopFromAThread) -> None:
        await self._open()
        expected = self._aim(action.aim)
        stopping = self._stopping(Scope.TURN, expected=expected)
        stop = Session(self._engine, self._session).interrupt_now(
            expected_turn=expected, by=self._name
        )
        self._life.note(self._name, "stops at once", stop.landed)
        await self._life.sleep(action.later_s)
        stopping.began_at = self._world.now()
        self._take(stopping, await stop.receipt())

    async def _stop(
        self, scope: Scope, *, target: str | None = None, expected: str | None = None
    ) -> None:
        await self._open()
        await self._receive(self._stopping(scope, target=target, expected=expected))

    def _stopping(
        self, scope: Scope, *, target: str | None = None, expected: str | None = None
    ) -> RequestedStop:
        actor = self._engine.actor_in_memory(self._session)
        turn = actor.state.turn if actor is not None else None
        detached = self._laws.detached
        seen = self._laws.turns.get(turn or "")
        told = set(seen.ended) if seen is not None else set()
        # A receipt may report an abandoned call a moment before the log does.
        for before in self._record.stoppings.values():
            of_call = before.session == self._session and before.scope is Scope.CALL
            if of_call and before.receipt is not None:
                told.add(before.receipt.target)
        open_work = [w for w in self._record.work_of(self._session, turn or "") if w.open]
        stopping = RequestedStop(
            self._name,
            self._session,
            scope,
            target,
            expected,
            turn,
            self._world.now(),
            in_memory=actor is not None,
            life=self._life.number,
            open_calls=tuple(
                w.call_id for w in open_work if w.call_id not in ("", *detached, *told)
            ),
            given_up=tuple(w.call_id for w in open_work if w.call_id in told),
            background=tuple(actor.background) if actor is not None else (),
            left=tuple(self._record.left_running()),
            asking=any(work.name == "simulated" for work in open_work),
        )
        self._record.stoppings[self._name] = stopping
        return stopping

    async def _receive(self, stopping: RequestedStop) -> None:
        session = Session(self._engine, self._session)
        receipt = await session.interrupt(
            scope=stopping.scope,
            target=stopping.target,
            expected_turn=stopping.expected,
            by=self._name,
        )
        self._take(stopping, receipt)

    def _take(self, stopping: RequestedStop, receipt: Receipt) -> None:
        if not self._life.dead:
            self._life.note(self._name, "is given", receipt)
            now, bound_s = self._world.now(), self._world.limits.receipt_s
            self._record.received(stopping, receipt, now, bound_s)

    def _aim(self, aim: plans.Aim) -> str | None:
        if aim is plans.Aim.ANY:
            return None
        actor = self._engine.actor_in_memory(self._session)
        current = actor.state.turn if actor is not None else None
        if aim is plans.Aim.CURRENT:
            return current
        before = [turn.id for turn in self._laws.turns.values() if turn.id != current]
        return before[-1] if before else "t0"

    def _choose_call(self, which: float) -> str | None:
        runs = [run for run in self._record.runs.values() if run.session == self._session]
        running = [run for run in runs if run.open]
        chosen = choose(running or runs, which)
        return chosen.call_id if chosen is not None else None


def choose(among: Sequence[T], which: float) -> T | None:
    return among[int(which * len(among)) % len(among)] if among else None
