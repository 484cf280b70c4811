"""What everybody outside the engine saw of a simulated world: users, model, tools, disk.

Everything is recorded when it happens, and checked against the laws at once where possible.
`verdict` checks the rest at the end. Nobody sees what a life does after its crash, so that is not
recorded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

import anyio

from bargein.cancel import Cause, Reason, Token
from bargein.contracts.event import BackgroundEnded, MessageAccepted, Recorded, TurnStarted
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.tool import Approval, CallResult, CallStatus, Effect
from bargein.session.limits import Limits
from bargein.testing.engine_invariants import SessionLaws
from bargein.testing.invariants import LawBroken


class Fate(StrEnum):
    """What the sender of a message knows about it."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The sender was told that it was not taken: it must be nowhere."""
    UNKNOWN = "unknown"
    """An error, a crash, or a sender who did not wait: it is there once, or not at all."""


@dataclass(slots=True)
class Sending:
    """One call of `send`. Sendings with the same `words` are the same message, sent again."""

    session: str
    sender: str
    words: str
    client_id: str | None
    fate: Fate = Fate.PENDING
    message: str | None = None
    group: str | None = None


@dataclass(slots=True)
class RequestedStop:
    """One call of `interrupt`. `by` is unique, so that its effects can be identified. `left` is
    work that was abandoned before and still runs; its log says so."""

    by: str
    session: str
    scope: Scope
    target: str | None
    expected: str | None
    turn: str | None
    began_at: float
    in_memory: bool
    life: int
    open_calls: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    left: "tuple[Work, ...]" = ()
    asking: bool = False
    receipt: Receipt | None = None


@dataclass(slots=True)
class Work:
    """Something that runs for a turn: its agent, an attempt at the model, or a tool."""

    life: int
    session: str
    turn: str
    token: Token
    name: str
    call_id: str = ""
    effect: Effect = Effect.NONE
    grace_s: float = 0.0
    effects: int = 0
    open: bool = True
    crashed: bool = False
    said: list[str] = field(default_factory=list)
    result: CallResult | None = None

    def is_given_up(self, grace_s: float) -> bool:
        """Whether it has used up its time to stop."""
        cancelled_at = self.token.cancelled_at
        return cancelled_at is not None and anyio.current_time() - cancelled_at >= grace_s - 1e-6


Happening = tuple[float, int, tuple[object, ...]]
"""When, in which life, and what."""


class Record:
    """`on_broken` is called when the first law is broken."""

    def __init__(self, limits: Limits, on_broken: Callable[[], object]) -> None:
        self._limits = limits
        self.history: list[Happening] = []
        self.laws: dict[str, SessionLaws] = {}
        self.sendings: list[Sending] = []
        self.stoppings: dict[str, RequestedStop] = {}
        self.agents: list[Work] = []
        self.attempts: list[Work] = []
        self.titlings: list[Work] = []
        self.runs: dict[str, Work] = {}
        self.planned: dict[str, str] = {}
        self.cancels: dict[Token, Reason] = {}
        self.disturbed: set[str] = set()
        self.stolen: set[str] = set()
        self.owners: dict[str, int] = {}
        self.refused: set[tuple[int, str]] = set()
        self.failing: set[tuple[str, str]] = set()
        self.looping: set[tuple[str, str]] = set()
        self.broken: LawBroken | None = None
        self._on_broken = on_broken

    def blame(self, law: int, words: str) -> NoReturn:
        self.breaks(LawBroken(law, words))

    def breaks(self, broken: LawBroken) -> NoReturn:
        """Records the first broken law, which ends the world."""
        if self.broken is None:
            self.broken = broken
            self._on_broken()
        raise broken

    def laws_of(self, session: str) -> SessionLaws:
        if session not in self.laws:
            self.laws[session] = SessionLaws(session)
        return self.laws[session]

    def durable(self, session: str, recorded: Recorded) -> None:
        try:
            self.laws_of(session).feed(recorded)
        except LawBroken as broken:
            self.breaks(broken)
        if isinstance(recorded.event, TurnStarted):
            self._check_who_began(session, recorded.event)

    def _check_who_began(self, session: str, started: TurnStarted) -> None:
        """Law 9: the end of a background call begins no turn if somebody stopped the call, or a
        restart lost it. The turn that a call's end begins is written together with it. Other
        messages that wait begin a turn all the same."""
        laws = self.laws_of(session)
        match [each.event for each in laws.log[-3:-1]]:
            case [BackgroundEnded() as ended, MessageAccepted(message=message)]:
                if started.messages != (message.id,) or laws.waiting:
                    return  # other messages waited
                if message.id != f"bg-{ended.call_id}":
                    return  # the user's own next message
                run = self.runs.get(f"{session} {ended.call_id}")
                lost = ended.result.status is CallStatus.UNKNOWN
                if lost or (run is not None and run.token.cancelled):
                    stopped = f"{ended.call_id} was stopped or lost"
                    self.blame(9, f"{stopped}, and its end began {started.turn}")

    # Work

    def agent_begins(self, work: Work) -> None:
        """Law 4: an agent never runs beside another turn's work, unless that was told to stop and
        abandoned, or moved to the background."""
        self._check_owner(work)
        detached = self.laws_of(work.session).detached
        for other in (*self.agents, *self.runs.values()):
            limits = self._limits
            grace_s = limits.grace_of(other.grace_s) if other.call_id else limits.settle_s
            if (
                other.open
                and (other.session, other.life) == (work.session, work.life)
                and other.call_id not in detached
                and not other.is_given_up(grace_s)
            ):
                self.blame(4, f"{work.session}: {work.turn} starts, {other} has not ended")
        for title in self.titlings:
            same = (title.session, title.life) == (work.session, work.life)
            if same and title.open and not title.token.cancelled:
                self.blame(4, f"{work.session}: {work.turn} starts beside the making of a title")
        self.agents.append(work)

    def attempt_begins(self, work: Work) -> None:
        """Law 8: nothing is asked on behalf of cancelled work."""
        self._check_owner(work)
        if work.token.cancelled:
            self.blame(8, f"{work.session} {work.turn}: the model is asked after the stop")
        self.attempts.append(work)

    def title_begins(self, work: Work) -> None:
        self._check_owner(work)
        if work.token.cancelled:
            self.blame(8, f"{work.session}: a title is asked for after its stop")
        self.titlings.append(work)

    def title_ends(self, work: Work) -> None:
        """Law 1: whoever stops a title meant its session, or something in it."""
        work.open = False
        reason = work.token.reason
        if reason is None:
            return
        self.cancels[work.token] = reason
        stopping = self.stoppings.get(reason.root.detail)
        aims = stopping is not None and stopping.scope in (Scope.TURN, Scope.SESSION)
        if stopping is not None and work.session and (not aims or stopping.session != work.session):
            self.blame(1, f"the title of {work.session} was stopped by {stopping.by}")

    def run_begins(self, work: Work) -> None:
        """Law 3: a call runs once in all lives, and only after its start is durable."""
        self._check_owner(work)
        key = f"{work.session} {work.call_id}"
        if key in self.runs:
            self.blame(3, f"{key} runs a second time")
        self.runs[key] = work
        laws = self.laws_of(work.session)
        turn = laws.turns.get(work.turn)
        if work.effect is not Effect.NONE and (turn is None or work.call_id not in turn.started):
            self.blame(3, f"{key} runs, and that it started is not durable")
        if work.name == "approval" and not self._is_approved(work, laws):
            self.blame(9, f"{key} runs, and nobody has approved it")
        if work.token.cancelled:
            self.blame(2, f"{key} is started after its stop")

    def _is_approved(self, work: Work, laws: SessionLaws) -> bool:
        """Whether it was approved: by the answer to its own question, or else by a late answer,
        which counts once, in the turn that took it."""
        if work.call_id in laws.asked.values():
            return work.effect is Effect.NONE or laws.answers.get(work.call_id) == Approval.ALLOW
        taken = [laws.messages[each] for each, turn in laws.taken.items() if turn == work.turn]
        unasked = [
            run
            for run in self.runs.values()
            if (run.session, run.turn, run.name) == (work.session, work.turn, work.name)
            and run.call_id not in laws.asked.values()
        ]
        return len(unasked) <= sum(message.allows is not None for message in taken)

    def _check_owner(self, work: Work) -> None:
        """Law 4: an owner that was told that another has the session begins nothing more in or
        below it."""
        if (work.life, work.session.partition("/")[0]) in self.refused:
            self.blame(4, f"life {work.life} lost {work.session}, and {work.name} goes on in it")

    def ends(self, work: Work) -> None:
        work.open = False
        if work.token.cancelled:
            self.saw_cancel(work)
        elif work.result is not None and work.result.status is CallStatus.STOPPED:
            self.blame(1, f"{work.session} {work.call_id} was stopped, and nobody had asked for it")

    def crash(self, life: int) -> None:
        for work in (*self.agents, *self.attempts, *self.titlings, *self.runs.values()):
            if work.life == life and work.open:
                work.open, work.crashed = False, True
        for sending in self.sendings:
            if sending.fate is Fate.PENDING:
                sending.fate = Fate.UNKNOWN

    def saw_cancel(self, work: Work) -> None:
        """Law 1: everything that is cancelled was the target, or is below the target."""
        reason = work.token.reason
        assert reason is not None
        self.cancels[work.token] = reason
        root = reason.root
        where = f"{work.session} {work.turn} {work.call_id or work.name}"
        by_turn = root.cause in (Cause.REDIRECT, Cause.ROLLBACK)
        if root.cause is Cause.USER_STOP:
            stopping = self.stoppings.get(root.detail)
            by_turn = stopping is not None and stopping.scope is Scope.TURN
            if stopping is not None and work.session.startswith(f"{stopping.session}/"):
                self._check_below(stopping, work, where)
                return
            if stopping is None or stopping.session != work.session:
                self.blame(1, f"{where} was cancelled by {root.detail}, who meant another")
            elif stopping.scope is Scope.CHILD:
                self.blame(1, f"{where} was cancelled by {root.detail}, who meant a sub-agent")
            elif stopping.scope is Scope.CALL and stopping.target != work.call_id:
                self.blame(1, f"{where} was cancelled by {root.detail}, who meant another call")
            elif stopping.scope is Scope.TURN and stopping.turn != work.turn:
                self.blame(1, f"{where} was cancelled by {root.detail}, who meant {stopping.turn}")
            elif stopping.expected not in (None, work.turn):
                self.blame(9, f"{where} was cancelled by {root.detail}, aimed at another turn")
        elif root.cause is Cause.LEASE_LOST and not self.is_disturbed(work.session):
            self.blame(1, f"{where} lost its session, and nothing had happened to it")
        if by_turn and work.call_id in self.laws_of(work.session).detached:
            self.blame(1, f"{where} was in the background, and was stopped with its turn")

    def _check_below(self, stopping: RequestedStop, work: Work, where: str) -> None:
        """Law 1: a stop reaches the sub-agents of its target; detached ones only if the target is
        the session."""
        if stopping.scope is Scope.CHILD:
            if not f"{work.session}/".startswith(f"{stopping.target}/"):
                self.blame(1, f"{where} was cancelled by {stopping.by}, who meant another child")
            return
        below = work.session.removeprefix(f"{stopping.session}/").split("/")
        if stopping.scope is Scope.CALL and not below[0].startswith(f"{stopping.target}."):
            self.blame(1, f"{where} was cancelled by {stopping.by}, who meant another call")
        child = self.laws_of(stopping.session).children[f"{stopping.session}/{below[0]}"]
        if child.detached and stopping.scope is not Scope.SESSION:
            self.blame(1, f"{where} is detached, and was stopped by {stopping.by}")

    def is_disturbed(self, session: str) -> bool:
        return any(session == each or session.startswith(f"{each}/") for each in self.disturbed)

    def work_of(self, session: str, turn: str) -> Iterator[Work]:
        for work in (*self.agents, *self.attempts, *self.runs.values()):
            if work.session == session and work.turn == turn and not work.crashed:
                yield work

    def left_running(self) -> Iterator[Work]:
        """Yields work that still runs although its log says that it has ended."""
        for work in (*self.agents, *self.attempts, *self.runs.values()):
            laws = self.laws_of(work.session)
            turn = laws.turns.get(work.turn)
            if not work.open or turn is None or work.call_id in laws.detached:
                continue
            if turn.settled is not None or work.call_id in turn.ended:
                yield work

    # Receipts

    def received(
        self, stopping: RequestedStop, receipt: Receipt, now: float, bound_s: float
    ) -> None:
        stopping.receipt = receipt
        if stopping.in_memory and now - stopping.began_at > bound_s + 1e-6:
            late_s = now - stopping.began_at
            self.blame(
                6, f"{stopping.by} waited {late_s:.3f} s for the receipt of {receipt.target}"
            )
        if receipt.status == "too_late":
            if receipt.steps:
                self.blame(9, f"{stopping.by} was too late, and stopped {receipt.steps}")
            return
        if stopping.scope is Scope.CALL:
            self._check_call_receipt(stopping, receipt)
        elif stopping.scope is Scope.CHILD:
            self._check_child_receipt(stopping, receipt)
        else:
            self._check_turn_receipt(stopping, receipt)

    def _check_call_receipt(self, stopping: RequestedStop, receipt: Receipt) -> None:
        run = self.runs.get(f"{stopping.session} {receipt.target}")
        listed = {step.call_id: step.status for step in receipt.steps}
        if run is not None and run.open and listed.get(run.call_id) is not CallStatus.ABANDONED:
            self.blame(10, f"{run.call_id} still runs, and its receipt says {listed}")

    def _check_child_receipt(self, stopping: RequestedStop, receipt: Receipt) -> None:
        """Law 10: everything of the sub-agent has ended, or is named as abandoned."""
        given_up = {s.call_id or s.name for s in receipt.steps if s.status is CallStatus.ABANDONED}
        for work in (*self.agents, *self.attempts, *self.runs.values()):
            below = f"{work.session}/".startswith(f"{stopping.target}/")
            left = any(work is each for each in stopping.left)
            if below and work.open and not left and not given_up:
                self.blame(10, f"{work} still runs, and the receipt says {receipt.steps}")

    def _check_background(self, stopping: RequestedStop, receipt: Receipt) -> None:
        listed = {step.call_id: step.status for step in receipt.steps}
        for call in stopping.background:
            run = self.runs.get(f"{stopping.session} {call}")
            runs_on = run is not None and run.open and not run.crashed
            if call not in listed or (runs_on and listed[call] is not CallStatus.ABANDONED):
                self.blame(10, f"{call} in the background, and the receipt says {receipt.steps}")

    def _check_turn_receipt(self, stopping: RequestedStop, receipt: Receipt) -> None:
        """Law 10: everything of the turn has ended, or is named as abandoned, and everything that
        was open is listed."""
        if stopping.expected not in (None, receipt.target):
            self.blame(9, f"{stopping.by} expected {stopping.expected}, got {receipt.target}")
        detached = self.laws_of(stopping.session).detached
        if stopping.scope is Scope.SESSION:
            self._check_background(stopping, receipt)
        listed = {step.call_id: step.status for step in receipt.steps if step.call_id}
        names = {step.name: step.status for step in receipt.steps if not step.call_id}
        for call in stopping.open_calls:
            if call not in listed and call not in detached:
                self.blame(10, f"{call} was open, and is not in the receipt of {receipt.target}")
        if stopping.asking and "simulated" not in names:
            self.blame(10, f"the model was being asked, and the receipt says {receipt.steps}")
        for work in self.work_of(stopping.session, receipt.target):
            if work.call_id in stopping.given_up:
                # A stop of that call alone has already reported it.
                continue
            if work.life > stopping.life and not receipt.stored:
                # The turn of a later owner, which got the id of one that could not be stored here.
                continue
            status = listed.get(work.call_id) if work.call_id else names.get(work.name)
            if work.open and status is not CallStatus.ABANDONED and work.call_id not in detached:
                self.blame(10, f"{work.name} of {receipt.target} still runs; {receipt.steps}")
            if work.effects and status is CallStatus.NOT_STARTED:
                self.blame(10, f"{work.call_id} had its effect, and is reported as not started")
