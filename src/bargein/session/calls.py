"""The calls of one turn, each a task of the engine under its own token.

`bargein.calls.pipeline` takes a call from its plan to its result. This module adds the session's
part: a call is a step that watchers see, its start and end are in the log, and its token is linked
below the turn's, so that a running call can move to the session's background. The turn waits for a
call's result, never for its work: work that does not stop within its grace is abandoned, and its
later output is dropped.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING

import anyio
import msgspec

from bargein.calls import words
from bargein.calls.pipeline import run_planned
from bargein.cancel import CancelSource, Cause, Reason, Token
from bargein.cancel.latch import Latch
from bargein.contracts.budget import Spent
from bargein.contracts.event import CallEnded, CallNoted, CallStarted
from bargein.contracts.live import CallOutput, OutputSoFar, StepBegan, StepOver
from bargein.contracts.message import Message
from bargein.contracts.model import AssistantMessage, ToolCall, Usage
from bargein.contracts.receipt import StepKind, StoppedStep
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    ChildReport,
    ChildTask,
    Effect,
    PlannedCall,
    Question,
    Refused,
    Toolbox,
)
from bargein.session.commands import BackgroundOver, Detached
from bargein.session.hooks import BoundedCallHooks
from bargein.session.host import TurnHost
from bargein.session.reply import Reply
from bargein.session.steps import OpenStep, StepBook

if TYPE_CHECKING:
    from bargein.session.children import ChildRun

OUTPUT_TAIL_CHARACTERS = 16_384


class OutputTail:
    """The end of a call's output, kept for watchers that join while it runs."""

    def __init__(self, turn_id: str, call_id: str) -> None:
        self._turn_id = turn_id
        self._call_id = call_id
        self._pieces: deque[str] = deque()
        self._kept = 0
        self._skipped = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._kept += len(text)
        while self._kept - len(self._pieces[0]) >= OUTPUT_TAIL_CHARACTERS:
            dropped = len(self._pieces.popleft())
            self._kept -= dropped
            self._skipped += dropped

    def so_far(self) -> OutputSoFar:
        text = "".join(self._pieces)
        cut = max(len(text) - OUTPUT_TAIL_CHARACTERS, 0)
        return OutputSoFar(self._turn_id, self._call_id, text[cut:], self._skipped + cut)


class ActiveCall:
    def __init__(
        self, planned: PlannedCall, source: CancelSource, turn: Token, turn_id: str
    ) -> None:
        self.id = planned.call.id
        self.planned = planned
        self.source = source
        self.turn_link = source.link(turn)
        self.began_at = source.token.clock.now()
        self.step: OpenStep | None = None
        self.has_place = False
        self.started = False
        self.detached = False
        self.outcome_is_known = False
        self.output = OutputTail(turn_id, self.id)
        self.result: CallResult | None = None
        """Set once the call is over."""
        self.children: list[ChildRun] = []
        self.child_numbers = count(1)
        self.over = Latch()
        self.over_or_detached = Latch()

    @property
    def spent(self) -> Spent:
        """What its sub-agents have used so far."""
        return reduce(Spent.plus, (run.spent for run in self.children), Spent())

    def usage(self) -> Usage | None:
        return self.spent.usage if self.children else None


class Calls:
    def __init__(self, host: TurnHost, turn_id: str, token: Token, book: StepBook) -> None:
        self._host = host
        self._taken: tuple[Message, ...] = ()
        self._used: set[str] = set()
        self._turn_id = turn_id
        self._token = token
        self._book = book
        self._calls: dict[str, ActiveCall] = {}
        self._places = anyio.Semaphore(host.limits.calls_at_once_max)
        self._ended: set[str] = set()
        self.fenced = False

    @property
    def all(self) -> tuple[ActiveCall, ...]:
        return tuple(self._calls.values())

    def find(self, call_id: str) -> ActiveCall | None:
        return self._calls.get(call_id)

    def has_end(self, call_id: str) -> bool:
        """Whether the end of a call of this turn is in the log, or on its way there."""
        return call_id in self._ended

    @property
    def running(self) -> tuple[ActiveCall, ...]:
        return tuple(
            call for call in self._calls.values() if call.result is None and not call.detached
        )

    async def run(
        self, toolbox: Toolbox, calls: Sequence[ToolCall], *, taken: tuple[Message, ...]
    ) -> None:
        """Run calls concurrently. Returns when each has a result or moved to the background.
        `taken` are the messages of the turn: one of them may already approve a call."""
        self._taken = taken
        begun = [call for call in map(partial(self._begin, toolbox), calls) if call is not None]
        for call in begun:
            self._host.spawn(partial(self._main, toolbox, call))
        for call in begun:
            await call.over_or_detached.wait()

    @property
    def settle_s(self) -> float:
        """How long the turn waits for stopped calls: longer if they have sub-agents, or if a tool
        asked for longer."""
        limits, running = self._host.limits, self.running
        longest_s = limits.settle_s
        if any(self._grace_s(call) > limits.call_grace_s for call in running):
            longest_s = limits.calls_s
        if any(call.children for call in running):
            children_s = limits.children_s(self._host.depth) + limits.child_margin_s / 2
            longest_s = max(longest_s, children_s)
        return longest_s

    def _grace_s(self, call: ActiveCall) -> float:
        # Calls of a sub-agent never get more than the default: its parent's wait relies on that.
        grace_s = self._host.limits.grace_of(call.planned.grace_s)
        return grace_s if self._host.depth == 0 else min(grace_s, self._host.limits.call_grace_s)

    async def all_over(self) -> None:
        for call in self.running:
            await call.over_or_detached.wait()

    def stop_running(self, reason: Reason) -> None:
        for call in self.running:
            call.source.cancel(reason)

    def detach(self, call: ActiveCall, told: CallResult | None = None) -> Reply | None:
        """Move a running call to the session's background. The model gets `told` as its result.
        Returns None if the call is over, being stopped, or already in the background."""
        lifetime = self._host.lifetime.token
        over = call.result is not None or call.source.token.cancelled
        if over or call.detached or lifetime.cancelled:
            return None
        link = call.source.link(lifetime)
        if not call.turn_link.unlink():
            link.unlink()
            return None
        call.detached = True
        if call.step is not None:
            # No longer a step of this turn: a stop of the turn does not touch it.
            self._book.close(call.step, CallStatus.DETACHED)
        self._free_place(call)
        self._host.files.after(call.id)
        self._host.background[call.id] = call
        self._ended.add(call.id)
        reply = self._host.post(Detached(self._turn_id, call.id, told or words.moved(call.id)))
        call.over_or_detached.set()
        return reply

    def _begin(self, toolbox: Toolbox, asked: ToolCall) -> ActiveCall | None:
        try:
            planned = toolbox.plan(asked)
        except Exception as error:  # boundary: the toolbox broke its contract; the model reads it
            self._log_end(asked.id, words.failed(error))
            return None
        if isinstance(planned, Refused):
            self._log_end(asked.id, words.refused(planned.content, planned.why))
            return None
        source = CancelSource(f"call {asked.id}", clock=self._host.clock)
        call = ActiveCall(planned, source, self._token, self._turn_id)
        self._calls[call.id] = call
        return call

    def _log_end(self, call_id: str, result: CallResult) -> None:
        self._ended.add(call_id)
        self._host.log(CallEnded(self._turn_id, call_id, result))

    async def _main(self, toolbox: Toolbox, call: ActiveCall) -> None:
        name = call.planned.call.name
        effect = call.planned.effect
        step = call.step = self._book.open(
            StepKind.TOOL, name, call_id=call.id, effect=effect, usage=call.usage
        )
        began = StepBegan(self._turn_id, StepKind.TOOL, name, call.id, call.planned.title)
        self._host.emit(began)
        try:
            result = await self._work(toolbox, call)
        except Exception as error:  # boundary: the call could not be run; the model reads why
            result = words.failed(error)
        if call.children:
            result = await self._host.end_children(call, result)
            self._record_children(call)
        self._book.close(
            step,
            result.status,
            summary=result.summary,
            detail=result.stop,
            unsuccessful=result.unsuccessful,
        )
        over = StepOver(
            self._turn_id,
            StepKind.TOOL,
            name,
            result.status,
            call.id,
            result.summary,
            result.unsuccessful,
        )
        self._host.emit(over)
        self._over(call, result)

    def _record_children(self, call: ActiveCall) -> None:
        """Put the sub-agents that a stop of the turn found into its receipt."""
        stopped_at, detached = self._book.cancelled_at, call.detached
        if stopped_at is None or detached:
            return
        for run in call.children:
            if run.over_at is None or run.over_at >= stopped_at:
                for step in run.steps():
                    elapsed_ms = min(step.elapsed_ms, self._book.since_cancel_ms)
                    self._book.record(msgspec.structs.replace(step, elapsed_ms=elapsed_ms))

    async def _work(self, toolbox: Toolbox, call: ActiveCall) -> CallResult:
        token = call.source.token
        try:
            with token.scope():
                await self._places.acquire()
                call.has_place = True
            return await run_planned(
                toolbox,
                call.planned,
                self._context(call),
                approved=self._was_allowed(toolbox, call.planned),
                start=partial(self._start, call),
                grace_s=self._grace_s(call),
            )
        finally:
            self._free_place(call)

    async def _start(self, call: ActiveCall, planned: PlannedCall) -> None:
        if planned.effect is not Effect.NONE:
            await self._host.files.before(self._turn_id, call.id)
            started = CallStarted(self._turn_id, planned.call, planned.effect, planned.title)
            await self._host.write(started).wait()
        call.started = True

    def _free_place(self, call: ActiveCall) -> None:
        """Release the call's place, so that a background call takes none from the turn's others."""
        if call.has_place:
            call.has_place = False
            self._places.release()

    def _was_allowed(self, toolbox: Toolbox, planned: PlannedCall) -> bool:
        """Whether the user approved exactly this call, too late for the turn that first asked. One
        approval is for one call. It does not count if the model no longer sees the first call, if
        the question about it would read differently today, or if a sub-agent made it."""
        if planned.approval is None:
            return False
        for message in self._taken:
            given = message.allows
            if given is None or given.id in self._used:
                continue
            asked = self._said(given.call_id)
            if asked is None or not _is_same(asked, planned.call):
                continue
            before = toolbox.plan(asked)
            if isinstance(before, PlannedCall) and _asks_the_same(before, given.question):
                self._used.add(given.id)
                return True
        return False

    def _said(self, call_id: str) -> ToolCall | None:
        for message in self._host.logbook.transcript.messages():
            for part in message.content if isinstance(message, AssistantMessage) else ():
                if isinstance(part, ToolCall) and part.id == call_id:
                    return part
        return None

    def _context(self, call: ActiveCall) -> CallContext:
        def emit(text: str) -> None:
            call.output.add(text)
            self._host.emit(CallOutput(self._turn_id, call.id, text))

        async def ask(question: Question, token: Token) -> str:
            return await self._host.ask(self._turn_id, call.id, question, token)

        async def delegate(
            tasks: Sequence[ChildTask], token: Token, *, detached: bool = False
        ) -> tuple[ChildReport, ...]:
            return await self._host.delegate(call, self._turn_id, tasks, token, detached=detached)

        async def keep_note(note: str) -> None:
            await self._host.write(CallNoted(self._turn_id, call.id, note)).wait()

        return CallContext(
            call_id=call.id,
            session_id=self._host.session_id,
            token=call.source.token,
            session_token=self._host.lifetime.token,
            emit=emit,
            ask=ask,
            delegate=delegate,
            background=_WayOut(self, call),
            hooks=BoundedCallHooks.of(self._host),
            owner=self._host.owner,
            permits=self._host.permits,
            keep_note=keep_note,
        )

    def _over(self, call: ActiveCall, result: CallResult) -> None:
        call.result = result
        call.source.seal()
        self._host.files.after(call.id)
        if call.detached:
            self._over_in_background(call, result)
        elif not self.fenced:
            self._log_end(call.id, result)
        call.over.set()
        call.over_or_detached.set()

    def _over_in_background(self, call: ActiveCall, result: CallResult) -> None:
        host = self._host
        host.background.pop(call.id, None)
        reason = call.source.token.reason
        if host.depth and reason is not None and reason.cause is Cause.PARENT:
            host.stopped_beside += (call,)
        news = None
        if not call.outcome_is_known:
            news = words.background_news(call.id, call.planned.title, result)
        # The token decides: a call that finished despite a stop still counts as stopped.
        over = BackgroundOver(call.id, result, news, begins_turn=reason is None)
        host.post(over)


class _WayOut:
    """One call's `contracts.tool.Background`."""

    def __init__(self, calls: Calls, call: ActiveCall) -> None:
        self._calls = calls
        self._call = call

    def enter(self, told: CallResult) -> bool:
        return self._calls.detach(self._call, told) is not None

    def outcome_is_known(self) -> None:
        self._call.outcome_is_known = True


def stopped_step(call: ActiveCall, elapsed_ms: float | None = None) -> StoppedStep:
    """Make the step of a stopped call for a receipt. Without `elapsed_ms` it is the time that the
    call's processes took to end."""
    result = call.result or words.left_behind()
    if elapsed_ms is None:
        elapsed_ms = result.stop.elapsed_ms if result.stop is not None else 0.0
    return StoppedStep(
        StepKind.TOOL,
        call.planned.call.name,
        result.status,
        elapsed_ms,
        call.id,
        call.planned.effect,
        result.summary,
        result.stop,
        result.unsuccessful,
        call.usage(),
    )


def _asks_the_same(planned: PlannedCall, asked: Question) -> bool:
    """Whether the user would read the same question."""
    now = planned.approval
    return now is not None and (now.text, now.detail) == (asked.text, asked.detail)


def _is_same(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls mean the same: JSON may be written in more than one way."""
    return one.name == other.name and _plain(one.arguments) == _plain(other.arguments)


def _plain(arguments: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except msgspec.DecodeError:
        return arguments.encode()
