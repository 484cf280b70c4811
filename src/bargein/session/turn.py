"""A turn, as its agent sees it: read the messages, ask a model, run tools, and end.

Any `async def agent(turn)` can be the agent. It runs in its own task, under `turn.token`. A cancel
reaches it at its next await. An agent that does not stop within its grace is abandoned and the turn
is fenced: from then on, everything it says or writes is dropped.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar, TypeVarTuple

import anyio
import msgspec

from bargein.calls import words
from bargein.cancel import Cancelled, CancelSource, Cause, Reason, Registration, Token, bridge
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cancel.latch import Latch
from bargein.contracts.budget import Budget, Purpose, Spent
from bargein.contracts.event import (
    AgentEvent,
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
from bargein.contracts.output_type import OutputType, plain_output_type
from bargein.contracts.permission import PermissionMode
from bargein.contracts.receipt import Receipt, StepKind
from bargein.contracts.tool import CallResult, CallStatus, Toolbox
from bargein.errors import BargeinError, UserError
from bargein.session.budget import Meter
from bargein.session.calls import Calls
from bargein.session.commands import Boundary, GiveSteers
from bargein.session.hooks import run_bounded, shown_as_it_is
from bargein.session.host import TurnHost
from bargein.session.reply import Promise
from bargein.session.results import TurnResult
from bargein.session.side_request import OpenRequest, make_side_request
from bargein.session.speech import Speech, StreamedAnswer
from bargein.session.steps import StepBook
from bargein.session.token_estimate import ratio_after, tokens_besides, whole
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

# Causes whose detail is the name of the person who asked for the stop.
_BY_SOMEBODY = (Cause.USER_STOP, Cause.REDIRECT, Cause.ROLLBACK, Cause.CLIENT_GONE)

_log = logging.getLogger("bargein.session")

AgentFunction = Callable[["Turn"], Awaitable[str | None]]


class TurnOver(BargeinError):
    """The turn has ended; an agent that still holds it can no longer use it."""


class Asked(msgspec.Struct, frozen=True):
    """The outcome of one model request. `cut`: a steer ended it; the text so far is kept."""

    message: AssistantMessage
    calls: tuple[ToolCall, ...]
    cut: bool
    usage: Usage


class Turn:
    def __init__(
        self, host: TurnHost, turn_id: str, source: CancelSource, messages: tuple[Message, ...]
    ) -> None:
        self.id = turn_id
        self.source = source
        self.token: Token = source.token
        self.messages = messages
        self.book = StepBook(source.token)
        self.calls = Calls(host, turn_id, source.token, self.book)
        self.meter = Meter(
            turn_id,
            source,
            host.clock,
            accounts=lambda: host.logbook.accounts,
            spent=lambda: host.logbook.turn_spent,
            log=host.log,
        )
        self.stop_shown = False
        self.begun = False
        self.over = Latch()
        """Set when everything that the turn started is over and its end is on the way to the
        store."""
        self.settled = Promise[TurnResult]()
        self.receipt: Receipt | None = None
        """Lists what was stopped, once all of it is over, even if the store cannot write it."""
        self.last_events: tuple[Event, ...] = ()
        self.speech = Speech(host, turn_id)
        self._host = host
        self._fenced = False
        self._asked = 0
        self.uncounted_request: OpenRequest | None = None
        self._model_source: CancelSource | None = None
        self._cut_by: str | None = None
        """The last steer that ended a request."""
        self.state_changed = False
        self.undoing: tuple[ToolCall, ...] = ()
        """In a turn that undoes calls: the calls that do it."""
        self.note: Callable[[], str] = str
        """Returns what the model is told of a turn without messages, when all of it is over."""

    # For agents

    @property
    def session(self) -> str:
        return self._host.session_id

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.speech.text

    @property
    def usage(self) -> Usage:
        """The tokens of the last model request."""
        return self.speech.usage

    @property
    def spent(self) -> Spent:
        """The steps, tokens and cost of this turn so far."""
        return self.meter.spent

    @property
    def state(self) -> bytes:
        """Bytes that an agent keeps for its next turn. Stored when the turn ends."""
        return self._host.logbook.agent_state

    @state.setter
    def state(self, body: bytes) -> None:
        self._refuse_if_over()
        if len(body) > self._host.limits.agent_state_bytes_max:
            limit = self._host.limits.agent_state_bytes_max
            raise UserError(f"turn.state has {len(body)} bytes; keep at most {limit} in it")
        self._host.logbook.agent_state = body
        self.state_changed = True

    @property
    def instructions(self) -> str:
        """The instructions that came with an imported history."""
        return self._host.logbook.transcript.instructions

    @property
    def mode(self) -> PermissionMode:
        """The permission mode for the next call."""
        return self._host.permits.mode

    @property
    def output_type(self) -> OutputType[Any] | None:
        """What a message of this turn says that the answer must be; the last one to say so counts.
        None if none does."""
        for message in reversed(self.messages):
            if message.output is not None:
                known = self._host.results.output_type(message.id)
                return known or plain_output_type(message.output)
        return None

    def history(self) -> tuple[ModelMessage, ...]:
        """Return the messages for the next request, including those of this turn."""
        return self._host.logbook.transcript.messages()

    def shown(self) -> tuple[str, tuple[tuple[ModelMessage, int], ...]]:
        """Return the history in its parts: the summary of the older part, and the messages after
        it, each with its place in the log."""
        return self._host.logbook.transcript.shown()

    def expected_tokens(self, request: ModelRequest) -> int:
        """Estimate the tokens of a request, corrected by the provider's count of the last one."""
        return whole(self._tokens_of(request) * self._host.logbook.token_ratio)

    def limit(self, budget: Budget, session_budget: Budget | None = None) -> None:
        """Set what this turn may use. Time becomes a deadline, counted from the turn's start.
        `check_budget`, called between two steps, checks the rest."""
        self._refuse_if_over()
        self.meter.limit(budget, session_budget or Budget())

    def check_budget(self) -> None:
        """End the turn by raising `Cancelled` if a budget is used up. Call it between two steps."""
        self._refuse_if_over()
        self.meter.check()
        self.token.check()

    def emit(self, text: str) -> None:
        """Say something to the user as part of the answer. If the turn ends without another answer,
        the emitted text is kept as the answer."""
        self._refuse_if_over()
        self.speech.emit(text)

    async def keep(self, name: str, body: bytes) -> None:
        """Add an event of the agent to the log. Durable when it returns."""
        self._refuse_if_over()
        await self._host.write(AgentEvent(self.id, name, body)).wait()

    def finish(self, text: str) -> None:
        """Give the final answer, for an agent that does not ask a model through the turn."""
        self._refuse_if_over()
        self._close_open_calls()
        self.speech.finish(text)

    def tell(self, text: str) -> None:
        """Tell the model something, in the place of the user's words."""
        self._refuse_if_over()
        self._host.log(UserSaid(self.id, (Text(text),)))

    def on_cancel(self, callback: Callable[[], object]) -> Registration:
        """Call `callback` in the turn's loop when the turn is cancelled."""
        caller = loop_caller()

        def call() -> None:
            try:
                callback()
            except Exception as error:  # boundary: a user's callback must not break the loop
                _log.error("an on_cancel callback of %s failed", self.id, exc_info=error)

        return bridge(self.token, lambda: call_if_open(caller, call))

    async def boundary(self) -> tuple[Message, ...]:
        """Wait while paused, and take the messages that steer this turn. Call it between two
        steps."""
        self._refuse_if_over()
        answer = await self._host.post(Boundary(self.id)).wait()
        if isinstance(answer, GiveSteers):
            self.messages += answer.messages
            await self._enrich(answer.messages)
            return answer.messages
        raise Cancelled(self.token)

    async def ask_model(self, model: Model, request: ModelRequest) -> Asked:
        """Stream one answer. A steer ends it, and this returns the text so far; a stop raises
        `Cancelled`. A steer that came before, while no request was in flight, ends it at once:
        otherwise the model would answer at length without having read the steer."""
        self._refuse_if_over()
        if self._steer_is_new():
            return Asked(AssistantMessage(()), (), cut=True, usage=Usage())
        shown = self.history()
        self._close_open_calls()
        if request.messages is shown:
            request = msgspec.structs.replace(request, messages=self.history())
        self._asked += 1
        answer = StreamedAnswer(f"{self.id}_{self._asked}")
        self.speech.begin(answer, model.name)
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
        """Make a side request for a summary, as a step. The reply is not part of the answer, and a
        message that arrives meanwhile does not cut it."""
        self._refuse_if_over()
        open_request = OpenRequest(self.id, model, Purpose.SUMMARY)
        step = self._model_step(StepKind.COMPRESSION, model.name, open_request)
        with step, self.token.child("summary") as source:
            return await make_side_request(model, request, source.token, open_request)

    async def compress(self, compressed: Compressed) -> None:
        """From now on show the model a summary in place of the older part. Durable when it
        returns."""
        self._refuse_if_over()
        await self._host.write(compressed).wait()

    async def read_context(self, read: Callable[[Token], Awaitable[str]]) -> str | None:
        """Call `read` for text from outside, as a step, under the turn's token and within a bound.
        Returns None if it failed or took too long."""
        self._refuse_if_over()
        return await self._run_hook("context", self._host.limits.hook_s, read, self.token)

    async def prepare_tools(self, prepare: Callable[[str, Token], Awaitable[None]]) -> None:
        """Have tools made ready, as a step, under the turn's token and within a bound."""
        self._refuse_if_over()
        bound_s = self._host.limits.prepare_s
        await self._run_hook("tools", bound_s, prepare, self._host.session_id, self.token)

    async def run_calls(self, toolbox: Toolbox, calls: Sequence[ToolCall]) -> None:
        """Run the model's calls concurrently; afterwards their results are in the history."""
        self._refuse_if_over()
        await self.calls.run(toolbox, calls, taken=self.messages)

    def result_of(self, call_id: str) -> CallResult | None:
        """The result of a call of this turn; None while it has none."""
        call = self.calls.find(call_id)
        if call is None:
            return None
        return words.moved(call_id) if call.detached else call.result

    # For the engine

    async def main(self, agent: AgentFunction) -> None:
        """Do the turn's work. The cell of its source decides between its end and a cancel."""
        await self._host.logbook.load_transcript(self.token)
        await self._run_start_hooks()
        await self._enrich(self.messages)
        self.token.check()
        said = await agent(self)
        if said is not None and not self._fenced:
            self.finish(said)
        # What the user changes after the end of a turn must not be taken for its doing.
        await self._host.files.idle(self._host.limits.files_s)
        self.source.seal()

    @property
    def stopped_by(self) -> str:
        """The name of the person who stopped the turn, from the reason of the cancel; "" if nobody
        did."""
        reason = self.token.reason
        by_somebody = reason is not None and reason.root.cause in _BY_SOMEBODY
        return reason.root.detail if reason is not None and by_somebody else ""

    @property
    def stopped_on_request(self) -> bool:
        """Whether somebody asked for a stop and gets its receipt. False for a redirect: its sender
        gets the result of the message."""
        return self.stopped_by_cause is Cause.USER_STOP

    @property
    def stopped_by_cause(self) -> Cause | None:
        reason = self.token.reason
        return reason.root.cause if reason is not None else None

    def cut_model(self) -> None:
        """End the model request in flight, because a steer has arrived."""
        if self._model_source is not None and self._steer_is_new():
            self._model_source.cancel(Reason(Cause.REDIRECT, "steered"))

    def _steer_is_new(self) -> bool:
        """Whether a steer waits that has not ended a request yet. Each steer ends at most one, so
        an agent that never takes steers still gets its answer."""
        newest = self._host.newest_steer
        is_new = newest is not None and newest != self._cut_by
        self._cut_by = newest
        return is_new

    def so_far(self) -> tuple[Live, ...]:
        """Return the work in progress, for a watcher that joins in the middle of the turn."""
        answer = self.speech.so_far
        outputs = tuple(call.output.so_far() for call in self.calls.running)
        return (() if answer is None else (answer,)) + outputs

    @property
    def uncounted(self) -> Spent:
        """What the turn has used and the log does not have yet: a request that is in flight or was
        stopped, and sub-agents that are not over."""
        request = self.uncounted_request
        spent = Spent() if request is None else Spent().with_request(request.usage)
        runs = (run for call in self.calls.all if not call.detached for run in call.children)
        return reduce(Spent.plus, (run.spent for run in runs if run.over_at is None), spent)

    def fence(self) -> None:
        self._fenced = True
        self.meter.close()
        self.calls.fenced = True

    def end_of(self, call: ToolCall) -> CallEnded:
        """Make the end event of a call that has none in the log."""
        begun = self.calls.find(call.id)
        result = begun.result if begun is not None else None
        if result is None:
            unseen = begun is not None and begun.started
            result = words.left_behind() if unseen else words.never_started()
        return CallEnded(self.id, call.id, result)

    def _close_open_calls(self) -> None:
        """Give a result to calls that the agent did not run. A provider refuses every request that
        contains a call without a result."""
        if self.calls.running:
            raise UserError("calls of this turn are still running; await `run_calls` first")
        for call in self._host.logbook.transcript.open_calls:
            self._host.log(self.end_of(call))

    def _tokens_of(self, request: ModelRequest) -> float:
        return tokens_besides(request) + self._host.logbook.transcript.tokens_of(request.messages)

    @contextmanager
    def _model_step(self, kind: StepKind, name: str, request: OpenRequest) -> Iterator[None]:
        """Run a model request as a step: watchers see it, a receipt lists it if a stop finds it,
        and its usage is counted."""
        step = self.book.open(kind, name, usage=lambda: request.usage)
        self._host.emit(StepBegan(self.id, kind, name))
        if self.uncounted_request is not None and not self._fenced:
            # A stop ended that request, and the agent nevertheless makes another one.
            self._host.log(self.uncounted_request.used)
        self.uncounted_request = request
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
            # The usage of a stopped request is logged with the end of the turn, which is near.
            if not self._fenced and not self.token.cancelled:
                self._host.log(request.used)
                self.uncounted_request = None

    async def _read(self, stream: ModelStream, open_request: OpenRequest) -> None:
        try:
            async for part in stream:
                if isinstance(part, RetryingPart):
                    open_request.retried = True
                self.speech.add(part)
        finally:
            self.speech.usage = stream.usage

    def _said(self, answer: StreamedAnswer) -> Asked:
        self.speech.flush()
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
            found: tuple[Text | Image, ...] = shown_as_it_is(attachment)
            if hooks is not None:
                enriched = await self._run_hook(
                    "enrich", limit_s, hooks.enrich, self.session, attachment
                )
                found = enriched or (Text(words.not_described(attachment.name)),)
            self._refuse_if_over()
            self._host.log(UserSaid(self.id, found))

    async def _run_hook(
        self,
        name: str,
        timeout_s: float,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
    ) -> T | None:
        """Run a hook as a step of the turn. The hook's own token ends it, so that its outcome is
        known; then a stop of the turn continues."""
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
            raise TurnOver(f"{self.id} is over; its agent must return")
