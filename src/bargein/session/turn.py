"""A turn, as its agent sees it: what was asked, how to ask a model, run tools, and end.

Any `async def agent(turn)` can be the agent. It runs in a task of its own, under `turn.token`. A
cancel reaches it at its next await; what it does not notice within its grace is abandoned, and
from then on the turn is fenced: nothing it says or writes counts any more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import anyio
import msgspec

from bargein.calls import words
from bargein.cancel import Cancelled, CancelSource, Cause, Reason, Registration, Token, bridge
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cancel.latch import Latch
from bargein.contracts.budget import Budget, Purpose, Spent
from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    CallEnded,
    Compressed,
    Event,
    UserSaid,
)
from bargein.contracts.live import Live, StepBegan, StepOver
from bargein.contracts.message import Message
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    Model,
    ModelMessage,
    ModelRequest,
    ModelStream,
    RetryingPart,
    Text,
    ToolCall,
    Usage,
)
from bargein.contracts.permission import PermissionMode
from bargein.contracts.receipt import Receipt, StepKind
from bargein.contracts.tool import CallStatus, Toolbox
from bargein.errors import BargeinError, UserError
from bargein.session.answer import Answer
from bargein.session.aside import OpenRequest, ask_aside
from bargein.session.budget import Meter
from bargein.session.calls import CallDesk
from bargein.session.commands import Boundary, GiveSteers
from bargein.session.hooks import run_bounded
from bargein.session.host import Host
from bargein.session.results import TurnResult
from bargein.session.slot import Slot
from bargein.session.speech import Speech
from bargein.session.steps import StepBook
from bargein.session.tokens import ratio_after, tokens_besides, whole
from bargein.session.transcript import kept_of

__all__ = [
    "AgentFunction",
    "Asked",
    "Turn",
    "TurnOver",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_STATUS_OF = {
    "finished": CallStatus.FINISHED,
    "failed": CallStatus.FAILED,
    "cancelled": CallStatus.STOPPED,
    "abandoned": CallStatus.ABANDONED,
}

# Causes whose detail is the name of whoever asked for it.
_BY_SOMEBODY = (Cause.USER_STOP, Cause.REDIRECT, Cause.ROLLBACK, Cause.CLIENT_GONE)

_log = logging.getLogger("bargein.session")

AgentFunction = Callable[["Turn"], Awaitable[str | None]]


class TurnOver(BargeinError):
    """The turn has ended; whoever still holds it can do nothing with it any more."""


class Asked(msgspec.Struct, frozen=True):
    """What came of asking the model. `cut`: a steer ended it; what it had said is kept."""

    message: AssistantMessage
    calls: tuple[ToolCall, ...]
    cut: bool
    usage: Usage


class Turn:
    def __init__(
        self, host: Host, turn_id: str, source: CancelSource, messages: tuple[Message, ...]
    ) -> None:
        self.id = turn_id
        self.source = source
        self.token: Token = source.token
        self.messages = messages
        self.book = StepBook(host.clock)
        self.calls = CallDesk(host, turn_id, source.token, self.book)
        self.meter = Meter(turn_id, source, host.clock, lambda: host.logbook.accounts)
        self.stop_shown = False
        self.begun = False
        self.over = Latch()
        """All it started is over; that is then on its way to the store."""
        self.settled = Slot[TurnResult]()
        self.receipt: Receipt | None = None
        """What was stopped, once all of it is over; whether or not it can be stored."""
        self.last_events: tuple[Event, ...] = ()
        self._speech = Speech(host, turn_id)
        self._host = host
        self._fenced = False
        self._asked = 0
        self._request: OpenRequest | None = None
        self._model_source: CancelSource | None = None
        self._state_changed = False
        bridge(source.token, self.book.note_cancel)

    # For agents

    @property
    def session(self) -> str:
        return self._host.session_id

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._speech.text

    @property
    def usage(self) -> Usage:
        """What the last model request has cost."""
        return self._speech.usage

    @property
    def spent(self) -> Spent:
        """What this turn has used so far: steps, tokens, cost."""
        return self.meter.spent

    @property
    def state(self) -> bytes:
        """Whatever an agent wants to find again in its next turn. Stored when the turn ends."""
        return self._host.logbook.agent_state

    @state.setter
    def state(self, body: bytes) -> None:
        self._refuse_if_over()
        if len(body) > self._host.limits.agent_state_bytes_max:
            limit = self._host.limits.agent_state_bytes_max
            raise UserError(f"turn.state has {len(body)} bytes; at most {limit} can be kept")
        self._host.logbook.agent_state = body
        self._state_changed = True

    @property
    def instructions(self) -> str:
        """What came along with the history that the session began with."""
        return self._host.logbook.transcript.instructions

    @property
    def mode(self) -> PermissionMode:
        """The permission mode that the next call is decided by."""
        return self._host.permits.mode

    def history(self) -> tuple[ModelMessage, ...]:
        """All that the model is to be shown, this turn's messages included."""
        return self._host.logbook.transcript.messages()

    def shown(self) -> tuple[str, tuple[tuple[ModelMessage, int], ...]]:
        """The same in its parts: a summary of what is not shown any more, and what is, each message
        with its place in the log."""
        return self._host.logbook.transcript.shown()

    def expected_tokens(self, request: ModelRequest) -> int:
        """How long a request will be: an estimate, corrected by the last one."""
        return whole(self._tokens_of(request) * self._host.logbook.token_ratio)

    def limit(self, budget: Budget, session_budget: Budget | None = None) -> None:
        """Set what this turn may use. Time is a deadline from now on; for the rest the turn is to
        be asked, between two steps, by `check_budget`."""
        self._refuse_if_over()
        self.meter.limit(budget, session_budget or Budget())

    def check_budget(self) -> None:
        """Between two steps: end the turn, by raising `Cancelled`, if a budget is used up."""
        self._refuse_if_over()
        self.meter.check()
        self.token.check()

    def emit(self, text: str) -> None:
        """Say something to the user as part of the answer. What is said so is kept as the answer
        if the turn ends without another."""
        self._refuse_if_over()
        self._speech.emit(text)

    async def keep(self, name: str, body: bytes) -> None:
        """Keep an event of the agent's own in the log. Durable when it returns."""
        self._refuse_if_over()
        await self._host.write(AgentEvent(self.id, name, body)).wait()

    def finish(self, text: str) -> None:
        """The final answer, for an agent that does not ask a model through the turn."""
        self._refuse_if_over()
        self._close_open_calls()
        self._speech.finish(text)

    def tell(self, text: str) -> None:
        """Tell the model something, where the user's words stand."""
        self._refuse_if_over()
        self._host.log(UserSaid(self.id, (Text(text),)))

    def on_cancel(self, callback: Callable[[], object]) -> Registration:
        """Have `callback` called in the turn's loop when it is cancelled."""
        caller = loop_caller()

        def call() -> None:
            try:
                callback()
            except Exception as error:  # boundary: a user's callback must not break the loop
                _log.error("an on_cancel callback of %s failed", self.id, exc_info=error)

        return bridge(self.token, lambda: call_if_open(caller, call))

    async def boundary(self) -> tuple[Message, ...]:
        """Between two steps: wait while paused, and take the messages that steer this turn."""
        self._refuse_if_over()
        answer = await self._host.post(Boundary(self.id)).wait()
        if isinstance(answer, GiveSteers):
            self.messages += answer.messages
            await self._enrich(answer.messages)
            return answer.messages
        raise Cancelled(self.token)

    async def ask_model(self, model: Model, request: ModelRequest) -> Asked:
        """Stream one answer. Ended by a steer it gives what was said; by a stop, `Cancelled`."""
        self._refuse_if_over()
        shown = self.history()
        self._close_open_calls()
        if request.messages is shown:
            request = msgspec.structs.replace(request, messages=self.history())
        self._asked += 1
        answer = Answer(f"{self.id}_{self._asked}")
        self._speech.begin(answer, model.name)
        estimate = self._tokens_of(request)
        open_request = OpenRequest(self.id, model, Purpose.ANSWER)
        with self.token.child("model request") as source:
            self._model_source = source
            try:
                with self._model_step(StepKind.MODEL, model.name, open_request):
                    async with model.open(request, source.token) as stream:
                        open_request.stream = stream
                        await self._read(stream, open_request)
            except Cancelled:
                if self.token.cancelled or not source.token.cancelled:
                    raise
            finally:
                self._model_source = None
        if not open_request.retried:
            ratio = ratio_after(estimate, open_request.usage)
            self._host.logbook.token_ratio = ratio or self._host.logbook.token_ratio
        return self._said(answer)

    async def ask_for_summary(self, model: Model, request: ModelRequest) -> str:
        """Ask beside the conversation, as a step. What it says is not part of the answer; a message
        that comes meanwhile does not cut it."""
        self._refuse_if_over()
        open_request = OpenRequest(self.id, model, Purpose.SUMMARY)
        step = self._model_step(StepKind.COMPRESSION, model.name, open_request)
        with step, self.token.child("summary") as source:
            return await ask_aside(model, request, source.token, open_request)

    async def compress(self, compressed: Compressed) -> None:
        """Show a summary in place of the older part, from now on. Durable when it returns."""
        self._refuse_if_over()
        await self._host.write(compressed).wait()

    async def read_context(self, read: Callable[[Token], Awaitable[str]]) -> str | None:
        """Have something read from outside, as a step, under the turn's token and within a bound;
        None if it failed or took too long."""
        self._refuse_if_over()
        return await self._run_hook("context", self._host.limits.hook_s, read, self.token)

    async def run_calls(self, toolbox: Toolbox, calls: Sequence[ToolCall]) -> None:
        """Run the model's calls side by side; their results are then in the history."""
        self._refuse_if_over()
        await self.calls.run(toolbox, calls, taken=self.messages)

    # For the engine

    async def main(self, agent: AgentFunction) -> None:
        """The whole of the turn's own work. Its end and a cancel meet in the source's cell."""
        await self._host.logbook.load_transcript(self.token)
        await self._run_start_hooks()
        await self._enrich(self.messages)
        self.token.check()
        said = await agent(self)
        if said is not None and not self._fenced:
            self.finish(said)
        self.source.seal()

    @property
    def stopped_by(self) -> str:
        """Who stopped it. The reason says it, which is there before any command tells of it."""
        reason = self.token.reason
        by_somebody = reason is not None and reason.root.cause in _BY_SOMEBODY
        return reason.root.detail if reason is not None and by_somebody else ""

    @property
    def stopped_on_request(self) -> bool:
        """Whether somebody has asked for just that, and is told what came of it. Who redirects is
        told what became of the message."""
        return self.stopped_by_cause is Cause.USER_STOP

    @property
    def stopped_by_cause(self) -> Cause | None:
        reason = self.token.reason
        return reason.root.cause if reason is not None else None

    def cut_model(self) -> None:
        """A steer has come: end the request in flight."""
        if self._model_source is not None:
            self._model_source.cancel(Reason(Cause.REDIRECT, "steered"))

    def so_far(self) -> tuple[Live, ...]:
        """What one who begins to watch now has missed of what is going on in this turn."""
        answer = self._speech.so_far
        outputs = tuple(call.output.so_far() for call in self.calls.running)
        return (() if answer is None else (answer,)) + outputs

    def fence(self) -> None:
        self._fenced = True
        self.meter.close()
        self.calls.fenced = True

    def repair(self, *, whole: bool) -> tuple[Event, ...]:
        """The events that make the transcript whole again after a stop or a failure. `whole`: the
        turn has come to its own end."""
        open_calls = self._host.logbook.transcript.open_calls
        events: list[Event] = [self._end_of(call) for call in open_calls]
        unsaid = self._speech.unsaid(whole=whole)
        if unsaid is not None:
            events.append(unsaid)
            calls = (part for part in unsaid.message.content if isinstance(part, ToolCall))
            events += map(self._end_of, calls)
        if self._request is not None:
            events.append(self._request.used)
        if self.meter.ended_by is not None:
            events.append(self.meter.ended_by)
        if self._state_changed:
            events.append(AgentState(self.id, self._host.logbook.agent_state))
        return tuple(events)

    def _end_of(self, call: ToolCall) -> CallEnded:
        begun = self.calls.find(call.id)
        result = begun.result if begun is not None else None
        if result is None:
            unseen = begun is not None and begun.started
            result = words.left_behind() if unseen else words.never_started()
        return CallEnded(self.id, call.id, result)

    def _close_open_calls(self) -> None:
        """Calls that the agent was given and did not run: the model is told, or it would be asked
        with a call that has no result, which providers refuse for ever."""
        if self.calls.running:
            raise UserError("calls of this turn are running; wait for `run_calls` first")
        for call in self._host.logbook.transcript.open_calls:
            self._host.log(self._end_of(call))

    def _tokens_of(self, request: ModelRequest) -> float:
        return tokens_besides(request) + self._host.logbook.transcript.tokens_of(request.messages)

    @contextmanager
    def _model_step(self, kind: StepKind, name: str, request: OpenRequest) -> Iterator[None]:
        """A request as a step: shown, in the receipt if a stop meets it, and counted."""
        step = self.book.open(kind, name)
        self._host.emit(StepBegan(self.id, kind, name))
        if self._request is not None and not self._fenced:
            # A stop has met it, and the agent asks once more all the same.
            self._host.log(self._request.used)
        self._request = request
        status = CallStatus.FAILED
        try:
            yield
            status = CallStatus.FINISHED
        except Cancelled:
            status = CallStatus.STOPPED
            raise
        finally:
            if self.token.cancelled and status is CallStatus.FAILED:
                status = CallStatus.STOPPED
            closed = "stream closed" if status is CallStatus.STOPPED else ""
            self.book.close(step, status, summary=closed)
            self._host.emit(StepOver(self.id, kind, name, status))
            # What a stop has met is told with the end of the turn, which is near.
            if not self._fenced and not self.token.cancelled:
                self._host.log(request.used)
                self._request = None

    async def _read(self, stream: ModelStream, open_request: OpenRequest) -> None:
        try:
            async for part in stream:
                if isinstance(part, RetryingPart):
                    open_request.retried = True
                self._speech.add(part)
        finally:
            self._speech.usage = stream.usage

    def _said(self, answer: Answer) -> Asked:
        self._speech.flush()
        cut = not answer.whole
        message = kept_of(answer.message()) if cut else answer.message()
        calls = tuple(part for part in message.content if isinstance(part, ToolCall))
        return Asked(message, calls, cut, self.usage)

    async def _run_start_hooks(self) -> None:
        hooks, limit_s = self._host.hooks, self._host.limits.hook_s
        if hooks is None:
            return
        for message in self.messages:
            await self._run_hook("message", limit_s, hooks.message, self.session, message)
        await self._run_hook("turn_started", limit_s, hooks.turn_started, self.session, self.id)

    async def _enrich(self, messages: tuple[Message, ...]) -> None:
        hooks, limit_s = self._host.hooks, self._host.limits.enrich_s
        attachments = [each for message in messages for each in message.attachments]
        for attachment in attachments:
            found: tuple[Text | Image, ...] = ()
            if hooks is not None:
                enriched = await self._run_hook(
                    "enrich", limit_s, hooks.enrich, self.session, attachment
                )
                found = enriched or ()
            if not found:
                found = (Text(words.not_described(attachment.name)),)
            self._refuse_if_over()
            self._host.log(UserSaid(self.id, found))

    async def _run_hook(
        self,
        name: str,
        timeout_s: float,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
    ) -> T | None:
        """A hook as a step of the turn. Its own token ends it, so that what became of it is known;
        the turn's stop goes on after it."""
        step = self.book.open(StepKind.HOOK, name)
        with anyio.CancelScope(shield=True):
            outcome = await run_bounded(
                self._host.owner, function, *args, token=self.token, timeout_s=timeout_s, name=name
            )
        self.book.close(step, _STATUS_OF[outcome.status])
        self.token.check()
        return outcome.value

    def _refuse_if_over(self) -> None:
        self.token.check()
        if self._fenced:
            raise TurnOver(f"{self.id} is over; an agent can do nothing more in it")
