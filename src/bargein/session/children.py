"""Sub-agents: each is a session with one turn, under its root's ownership.

The token of a sub-agent's session is below that of the call that started it, or, if detached, below
its parent session's lifetime. So anything that stops the parent stops it at the same moment, at any
depth; besides that only a stop of its own does. A call is not over before its sub-agents are:
whatever its tool does, they are stopped with it, awaited within their bound, and reported.

The parent's log has a sub-agent before it starts, so that recovery after a crash always finds it.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from bargein.cancel import Cause, Reason, Token, bridge
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cancel.latch import Latch
from bargein.contracts.budget import Purpose, Spent
from bargein.contracts.event import (
    ChildEnded,
    ChildStarted,
    ModelUsed,
    Recorded,
    SessionCreated,
    TurnOutcome,
)
from bargein.contracts.live import ChildState, ChildView
from bargein.contracts.message import Message, Mode
from bargein.contracts.model import Text
from bargein.contracts.permission import PermissionMode
from bargein.contracts.receipt import StoppedStep
from bargein.contracts.tool import CallResult, CallStatus, ChildReport, ChildTask
from bargein.errors import BargeinError, ModelMisbehaved
from bargein.session import child_report
from bargein.session.calls import stopped_step
from bargein.session.commands import ChildBegan, ChildOver, End, Pause, Refuse, Send, Stop
from bargein.session.reply import Reply
from bargein.session.results import TurnResult
from bargein.session.state import Phase
from bargein.session.steps import ms_since_cancel
from bargein.session.turn import AgentFunction, Turn

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.calls import ActiveCall

_CHILD_ID = re.compile(r".+/[^/]+\.\d+\Z", re.DOTALL)

PARENT = "parent"
"""The sender of a sub-agent's task."""


class Below(Protocol):
    """Makes a sub-agent for a task; `may_delegate`: it may have sub-agents itself. Raises
    `ModelMisbehaved` if there is no such sub-agent."""

    def __call__(self, task: ChildTask, may_delegate: bool, /) -> "AgentKind": ...


class AgentKind(msgspec.Struct, frozen=True):
    """An agent, and the sub-agents it can have. `mode` is its loosest permission mode; None means
    its parent's."""

    agent: AgentFunction
    below: Below
    mode: PermissionMode | None = None


def like(agent: AgentFunction) -> Below:
    """Make every sub-agent the same agent as its parent."""

    def below(task: ChildTask, may_delegate: bool) -> AgentKind:
        if task.agent or task.model or task.tools is not None or task.instructions:
            raise ModelMisbehaved(
                "a sub-agent here is like its parent; give a task, and no agent, model, tools or "
                "instructions"
            )
        return AgentKind(agent, below)

    return below


def is_child(session_id: str) -> bool:
    """Whether this is the name of a sub-agent's session."""
    return _CHILD_ID.search(session_id) is not None


def views(log: Sequence[Recorded]) -> tuple[ChildView, ...]:
    """Return the sub-agents of a session, from its log."""
    found: dict[str, ChildView] = {}
    for recorded in log:
        event = recorded.event
        if isinstance(event, ChildStarted):
            found[event.child] = ChildView(
                event.child, event.task, ChildState.RUNNING, event.detached, event.call_id
            )
        elif isinstance(event, ChildEnded):
            found[event.child] = msgspec.structs.replace(
                found[event.child],
                state=ChildState.ENDED,
                outcome=event.outcome,
                summary=event.summary,
            )
    return tuple(found.values())


class Tree:
    """Counts the sub-agents of one root session, at any depth. `lost` is set when one of them
    notices that another owner has claimed the root."""

    def __init__(self) -> None:
        self.lost: BargeinError | None = None
        self.running = 0
        self.begun_in_turn = 0

    def turn_began(self) -> None:
        self.begun_in_turn = self.running


class ChildRun:
    """A parent's handle on one sub-agent, from its start to its end."""

    def __init__(
        self,
        parent: "Actor",
        call: "ActiveCall",
        turn_id: str,
        task: ChildTask,
        above: Token | None,
    ) -> None:
        """`above` is the parent token; None means the lifetime of the parent session."""
        self.parent = parent
        self.call = call
        self.turn_id = turn_id
        self.task = task
        self.id = f"{parent.session_id}/{call.id}.{next(call.child_numbers)}"
        self.depth = parent.depth + 1
        self.mode: PermissionMode | None = None
        self.detached = above is None
        self.told = False
        """Whether the tool got the report, and so includes it in its own result."""
        above = above or parent.lifetime.token
        self.source = above.child(f"sub-agent {self.id}", timeout_s=task.timeout_s)
        self.actor: Actor | None = None
        self.turn: Turn | None = None
        self.over_at: float | None = None
        self.result: CallResult | None = None
        self.stopped_steps: tuple[StoppedStep, ...] = ()
        self.over = Latch()

    @property
    def report(self) -> ChildReport:
        return ChildReport(self.id, self.task.task, self.result or child_report.given_up(self.id))

    @property
    def _cancelled(self) -> Token | None:
        """The cancelled token, its own or that of its turn; None if there was no stop."""
        tokens = (self.source.token, self.turn.token if self.turn is not None else None)
        return next((each for each in tokens if each is not None and each.cancelled), None)

    def steps(self) -> tuple[StoppedStep, ...]:
        """Return the steps for the receipt of a stop; empty if no stop found the sub-agent."""
        cancelled = self._cancelled
        if cancelled is None and self.result is not None:
            return ()
        since_ms = ms_since_cancel(cancelled) if cancelled is not None else 0.0
        return self.stopped_steps or child_report.steps(
            self.id, self.call.id, self.report.result, (), since_ms, self.spent.usage
        )

    @property
    def spent(self) -> Spent:
        """What it and its own sub-agents have used so far, with a request in flight."""
        if self.actor is None:
            return Spent()
        spent = self.actor.logbook.accounts.spent
        return spent if self.turn is None else spent.plus(self.turn.uncounted)

    async def main(self, begun: Reply, kind: AgentKind) -> None:
        """Run the sub-agent to its end. A task of the engine; never raises."""
        outcome = TurnOutcome.STOPPED
        stop_told = None
        try:
            refused = await self._refused(begun)
            if refused:
                self.result = child_report.not_begun(self.id, refused)
            else:
                actor = await self.parent.make_child(self, kind)
                caller = loop_caller()
                self._begin(actor)
                stop_told = bridge(
                    self.source.token, lambda: call_if_open(caller, partial(self._tell_stop, actor))
                )
                outcome = await self._end_of(actor)
        except Exception as error:  # boundary: the report says that it could not be started
            outcome = TurnOutcome.FAILED
            self.result = child_report.not_begun(self.id, str(error) or repr(error))
        finally:
            if stop_told is not None:
                stop_told.remove()
            self._ended(outcome)

    async def _refused(self, begun: Reply) -> str:
        answer = await begun.wait()
        if isinstance(answer, Refuse):
            return answer.why
        reason = self.source.token.reason
        return str(reason.root) if reason is not None else ""

    def _begin(self, actor: "Actor") -> None:
        self.actor = actor
        actor.log(SessionCreated(parent=self.parent.session_id))
        if self.source.token.cancelled:
            return
        words = (Text(self.task.task),)
        actor.post(Send(Message("m1", PARENT, Mode.STEER, words)))
        self.turn = actor.turn
        if self.parent.state.phase is Phase.PAUSED and not (self.detached or self.call.detached):
            actor.post(Pause())

    def _tell_stop(self, actor: "Actor") -> None:
        """Post the command for a cancel that came through the tree, for the sub-agent's log."""
        turn, reason = actor.turn, self.source.token.reason
        if turn is not None and reason is not None:
            root = reason.root
            actor.post(Stop(turn.id, turn.token.cancelled, root.detail, str(root.cause)))

    async def _end_of(self, actor: "Actor") -> TurnOutcome:
        turn = self.turn
        if turn is None:
            actor.post(End(PARENT))
            await self._left(actor)
            self.result = child_report.not_begun(self.id, str(self.source.token.reason))
            return TurnOutcome.STOPPED
        try:
            result = await turn.settled.wait()
        except BargeinError as error:
            # Its end could not be stored. Its effects are uncertain, and it is not run again.
            await actor.work_over()
            result = TurnResult(turn.id, TurnOutcome.CRASHED, turn.text, str(error))
        # Its background work ends with it, and belongs in its report.
        left_behind = actor.children.running
        await self._left(actor)
        met = result.receipt.steps if result.receipt is not None else ()
        met += tuple(step for run in left_behind for step in run.steps())
        beside = tuple(map(stopped_step, actor.stopped_beside))
        met += beside
        self.result = child_report.report(
            self.id,
            result,
            reason=turn.token.reason,
            did=(*turn.book.effects, *met),
            beside=beside,
            unheard=actor.unheard,
        )
        cancelled = self._cancelled
        if cancelled is not None:
            self.stopped_steps = child_report.steps(
                self.id,
                self.call.id,
                self.result,
                met,
                ms_since_cancel(cancelled),
                self.spent.usage,
            )
        return result.outcome

    async def _left(self, actor: "Actor") -> None:
        with anyio.move_on_after(actor.limits.receipt_s):
            await actor.gone.wait()
            return
        actor.give_up(BargeinError(f"{self.id} did not end in time"))

    def _count(self) -> None:
        """Count the sub-agent's usage for its parent too."""
        if self.actor is None or self.parent.gone.is_set:
            return
        usage = self.actor.logbook.accounts.spent.usage
        self.parent.log(ModelUsed(self.turn_id, self.id, usage, Purpose.CHILD))

    def _ended(self, outcome: TurnOutcome) -> None:
        self.source.seal()
        self.over_at = self.parent.clock.now()
        result = self.result or child_report.given_up(self.id)
        message = child_report.news(self.id, self.task.task, result) if self.detached else None
        self.parent.children.forget(self)
        self._count()
        self.parent.post(ChildOver(self.id, outcome, result.summary, message))
        self.over.set()


class Children:
    """The sub-agents of one session."""

    def __init__(self, actor: "Actor", tree: Tree, below: Below) -> None:
        self._actor = actor
        self._tree = tree
        self.below = below
        self._runs: dict[str, ChildRun] = {}

    @property
    def running(self) -> tuple[ChildRun, ...]:
        return tuple(self._runs.values())

    @property
    def detached(self) -> tuple[ChildRun, ...]:
        return tuple(run for run in self._runs.values() if run.detached)

    @property
    def of_the_turn(self) -> tuple[ChildRun, ...]:
        """The sub-agents that stop and pause with the turn."""
        runs = self._runs.values()
        return tuple(run for run in runs if not (run.detached or run.call.detached))

    def find(self, child: str) -> ChildRun | None:
        return self._runs.get(child)

    def forget(self, run: ChildRun) -> None:
        if self._runs.pop(run.id, None) is not None:
            self._tree.running -= 1

    async def delegate(
        self,
        call: "ActiveCall",
        turn_id: str,
        tasks: Sequence[ChildTask],
        token: Token,
        *,
        detached: bool,
    ) -> tuple[ChildReport, ...]:
        """Start sub-agents for a call and wait for them. If this is cancelled, `end` ends them."""
        token.check()
        self._refuse_too_many(tasks)
        deepest = self._actor.depth + 1 >= self._actor.limits.children_deep_max
        kinds = [self.below(task, not deepest) for task in tasks]
        above = None if detached else token
        runs = [ChildRun(self._actor, call, turn_id, task, above) for task in tasks]
        for run, kind in zip(runs, kinds, strict=True):
            self._begin(run, kind)
        if detached:
            return tuple(
                ChildReport(run.id, run.task.task, child_report.begun_detached(run.id))
                for run in runs
            )
        for run in runs:
            await run.over.wait()
        for run in runs:
            run.told = True
        return tuple(run.report for run in runs)

    def _begin(self, run: ChildRun, kind: AgentKind) -> None:
        run.mode = kind.mode
        self._runs[run.id] = run
        self._tree.running += 1
        self._tree.begun_in_turn += 1
        if not run.detached:
            run.call.children.append(run)
        began = ChildBegan(run.turn_id, run.call.id, run.id, run.task.task, run.detached)
        self._actor.spawn(partial(run.main, self._actor.post(began), kind))

    def _refuse_too_many(self, tasks: Sequence[ChildTask]) -> None:
        limits, tree = self._actor.limits, self._tree
        if not tasks:
            raise ModelMisbehaved("no task was given; give at least one")
        if any(task.timeout_s is not None and not task.timeout_s > 0 for task in tasks):
            raise ModelMisbehaved("a time limit must be more than 0 seconds")
        if any(not task.task.strip() for task in tasks):
            raise ModelMisbehaved("a task is empty; say what the sub-agent should do")
        if self._actor.depth >= limits.children_deep_max:
            raise ModelMisbehaved(
                f"sub-agents can be nested at most {limits.children_deep_max} deep, and this one "
                "is at that depth; do it yourself"
            )
        if tree.running + len(tasks) > limits.children_at_once_max:
            raise ModelMisbehaved(
                f"{tree.running} sub-agents are at work, and at most {limits.children_at_once_max} "
                f"may be at once; {len(tasks)} more cannot start now: give fewer tasks, or do it "
                "yourself"
            )
        if tree.begun_in_turn + len(tasks) > limits.children_per_turn_max:
            raise ModelMisbehaved(
                f"{tree.begun_in_turn} sub-agents were started since the user's last message, and "
                f"{limits.children_per_turn_max} is the limit; do the rest yourself"
            )

    async def end(self, call: "ActiveCall", result: CallResult) -> CallResult:
        """Stop the sub-agents of a call that is over or being stopped, and wait for them. Returns
        the call's result, with the reports that its tool did not include."""
        reason = call.source.token.reason or Reason(Cause.SHUTDOWN, f"{call.id} has ended")
        for run in call.children:
            run.source.cancel(reason.root)
        with anyio.move_on_after(self._actor.limits.children_s(self._actor.depth), shield=True):
            for run in call.children:
                await run.over.wait()
        untold = [run for run in call.children if not run.told]
        content = tuple(part for run in untold for part in run.report.result.content)
        lost = any(run.result is None for run in untold)
        status = CallStatus.ABANDONED if lost else result.status
        return msgspec.structs.replace(result, status=status, content=result.content + content)
