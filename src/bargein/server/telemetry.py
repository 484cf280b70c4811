"""Traces for OpenTelemetry: one span for each turn, each of its steps and each interrupt.

`Traces.observe` takes the changes of all sessions (`Observers`). The spans of steps and interrupts
are children of their turn's span; the turn of a sub-agent is a child of the call that delegated to
it. Spans carry ids, names, outcomes and figures, and never the words of a message.

The exporter is OpenTelemetry's own, set up by its environment variables, such as
`OTEL_EXPORTER_OTLP_ENDPOINT`. It sends from its own thread, and drops what it cannot send.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, Status, StatusCode

from bargein.contracts.event import TurnOutcome
from bargein.contracts.receipt import StepKind
from bargein.view import (
    AnswerEnded,
    BackgroundClosed,
    CallClosed,
    CallMoved,
    CallOpened,
    Change,
    ShownAnswer,
    ShownCall,
    ShownStep,
    ShownTurn,
    StepClosed,
    StepOpened,
    TurnClosed,
    TurnOpened,
    TurnStopping,
)

Value = str | bool | int | float


@dataclass(slots=True)
class _OpenTurn:
    span: Span
    steps: dict[tuple[str, str], Span] = field(default_factory=dict)
    """The running steps, by kind and the id of the call."""
    interrupt: Span | None = None


class Traces:
    def __init__(self, exporter: SpanExporter) -> None:
        # A provider of our own, because the program around Bargein may have another.
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "bargein"}), shutdown_on_exit=False
        )
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        tracer = self._provider.get_tracer("bargein")
        assert isinstance(tracer, Tracer)
        self._tracer = tracer
        self._turns: dict[tuple[str, str], _OpenTurn] = {}
        self._calls: dict[tuple[str, str], Span] = {}
        """Running calls, including those in the background that outlive their turn."""

    def observe(self, session: str, change: Change) -> None:
        match change:
            case TurnOpened(turn=turn):
                self._begin(session, turn.id)
            case StepOpened(step=step):
                self._begin_step(session, step)
            case StepClosed(step=step):
                self._end_step(session, step)
            case CallOpened(call=call):
                self._begin_call(session, call)
            case CallMoved(call=call):
                if (session, call.turn) in self._turns:
                    self._turns[session, call.turn].steps.pop((StepKind.TOOL, call.id), None)
            case CallClosed(call=call) | BackgroundClosed(call=call):
                self._end_call(session, call)
            case TurnStopping(turn=turn):
                self._begin_interrupt(session, turn.id)
            case AnswerEnded(answer=answer):
                self._count(session, answer)
            case TurnClosed(turn=turn):
                self._settle(session, turn)
            case _:
                pass

    def close(self, timeout_s: float) -> None:
        """Sends what is left, for at most so long. It blocks: call it in a thread."""
        self._provider.force_flush(int(timeout_s * 1e3))
        self._provider.shutdown()

    def _span(self, name: str, under: Span | None, values: Mapping[str, Value]) -> Span:
        context = trace.set_span_in_context(under) if under is not None else None
        return self._tracer.start_span(name, context=context, attributes=values)

    def _begin(self, session: str, turn: str) -> None:
        # A child's id is its parent's id, a slash, and the call's id with a number.
        parent, _, place = session.rpartition("/")
        under = self._calls.get((parent, place.rpartition(".")[0]))
        values = {"bargein.session": session, "bargein.turn": turn}
        self._turns[session, turn] = _OpenTurn(self._span("turn", under, values))

    def _begin_step(self, session: str, step: ShownStep) -> None:
        self._open_step(session, step.turn, step.kind, step.name)

    def _begin_call(self, session: str, call: ShownCall) -> None:
        span = self._open_step(session, call.turn, StepKind.TOOL, call.name, call.id)
        if span is not None:
            self._calls[session, call.id] = span

    def _open_step(
        self, session: str, turn: str, kind: str, name: str, call_id: str = ""
    ) -> Span | None:
        open_turn = self._turns.get((session, turn))
        if open_turn is None:
            return None
        values = {"bargein.session": session, "bargein.turn": turn, "bargein.step": kind}
        if call_id:
            values["bargein.call"] = call_id
        span = self._span(f"{kind} {name}", open_turn.span, values)
        open_turn.steps[kind, call_id] = span
        return span

    def _end_step(self, session: str, step: ShownStep) -> None:
        open_turn = self._turns.get((session, step.turn))
        span = open_turn.steps.pop((step.kind, ""), None) if open_turn is not None else None
        if span is not None:
            _end(span, step.status, failed=step.status == "failed")

    def _end_call(self, session: str, call: ShownCall) -> None:
        if (session, call.turn) in self._turns:
            self._turns[session, call.turn].steps.pop((StepKind.TOOL, call.id), None)
        span = self._calls.pop((session, call.id), None)
        if span is not None:
            failed = call.status == "failed" or call.unsuccessful
            _end(span, str(call.status), failed=failed)

    def _begin_interrupt(self, session: str, turn: str) -> None:
        open_turn = self._turns.get((session, turn))
        if open_turn is not None and open_turn.interrupt is None:
            values = {"bargein.session": session, "bargein.turn": turn}
            open_turn.interrupt = self._span("interrupt", open_turn.span, values)

    def _count(self, session: str, said: ShownAnswer) -> None:
        open_turn = self._turns.get((session, said.turn))
        if open_turn is not None and said.said:
            open_turn.span.add_event(
                "answer",
                {
                    "bargein.model": said.model,
                    "bargein.input_tokens": said.usage.input_tokens,
                    "bargein.output_tokens": said.usage.output_tokens,
                    "bargein.partial": said.partial,
                },
            )

    def _settle(self, session: str, settled: ShownTurn) -> None:
        open_turn = self._turns.pop((session, settled.id), None)
        if open_turn is None:
            return
        for (kind, call_id), span in open_turn.steps.items():
            # Abandoned with the turn; what it does later has no span.
            span.set_attribute("bargein.status", "abandoned")
            span.end()
            if kind == StepKind.TOOL:
                self._calls.pop((session, call_id), None)
        receipt = settled.receipt
        if open_turn.interrupt is not None:
            if receipt is not None:
                cause = receipt.reason.root.cause if receipt.reason is not None else "unknown"
                open_turn.interrupt.set_attribute("bargein.cause", cause)
                open_turn.interrupt.set_attribute("bargein.elapsed_ms", receipt.elapsed_ms)
                open_turn.interrupt.set_attribute("bargein.abandoned", len(receipt.abandoned))
            open_turn.interrupt.end()
        open_turn.span.set_attribute("bargein.outcome", str(settled.outcome))
        if settled.outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED):
            open_turn.span.set_status(Status(StatusCode.ERROR))
        open_turn.span.end()


def _end(span: Span, status: str, *, failed: bool) -> None:
    span.set_attribute("bargein.status", status)
    if failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end()
