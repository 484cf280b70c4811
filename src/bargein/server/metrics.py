"""The metrics of `/metrics`: counts since the start, and gauges of what goes on now.

`Metrics.observe` counts the changes of all sessions (`Observers`). The gauges are read when
somebody asks. No label names a session or a person, because their number has no bound, and because
more people may read metrics than sessions.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bargein.cancel import abandoned
from bargein.contracts.receipt import Receipt
from bargein.contracts.tool import CallResult, StopDetail
from bargein.session.state import SessionState
from bargein.view import (
    AnswerEnded,
    BackgroundClosed,
    CallResulted,
    Change,
    ChildOpened,
    MessageArrived,
    ShownTurn,
    TurnClosed,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST

# From a few milliseconds, where a stop should be, up to the bound of the ladder.
STOP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TURN_BUCKETS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)


Gauges = Mapping[tuple[str, str, str], Mapping[str, float]]
"""By name, help and the name of the one label: the values by label."""


class Now(msgspec.Struct, frozen=True):
    """What an engine is doing at this moment."""

    sessions: tuple[SessionState, ...]
    watchers: int = 0


class Metrics:
    content_type = CONTENT_TYPE

    def __init__(self) -> None:
        self._now = Now(())
        self._registry = CollectorRegistry()
        registry = self._registry
        self._turns = Counter(
            "bargein_turns", "Turns that have settled.", ["outcome"], registry=registry
        )
        self._turn_s = Histogram(
            "bargein_turn_seconds",
            "From the start of a turn until it settled.",
            buckets=TURN_BUCKETS_S,
            registry=registry,
        )
        self._stop_s = Histogram(
            "bargein_interrupt_seconds",
            "From an interrupt until everything it stopped had settled.",
            ["cause"],
            buckets=STOP_BUCKETS_S,
            registry=registry,
        )
        self._survivors = Counter(
            "bargein_survivors",
            "Processes that were seen alive after the stop of their call.",
            registry=registry,
        )
        self._unconfirmed = Counter(
            "bargein_stops_unconfirmed",
            "Stops of calls after which the kernel did not confirm that no process is left.",
            registry=registry,
        )
        self._abandoned = Counter(
            "bargein_abandoned",
            "Steps that did not stop within their bound.",
            ["kind"],
            registry=registry,
        )
        self._messages = Counter(
            "bargein_messages",
            "Messages that were accepted.",
            ["mode", "disposition"],
            registry=registry,
        )
        self._calls = Counter(
            "bargein_calls",
            "Tool calls that have ended; a detached call counts again when it ends.",
            ["status"],
            registry=registry,
        )
        self._children = Counter("bargein_children", "Sub-agents begun.", registry=registry)
        self._tokens = Counter(
            "bargein_model_tokens",
            "Tokens read and written by models.",
            ["kind"],
            registry=registry,
        )
        self._refusals = Counter(
            "bargein_refusals", "Requests that were not admitted.", ["code"], registry=registry
        )
        registry.register(_NowCollector(self))

    def observe(self, session: str, change: Change) -> None:
        match change:
            case TurnClosed(turn=turn):
                self._settled(turn)
            case MessageArrived(message=shown):
                self._messages.labels(shown.message.mode, shown.disposition).inc()
            case CallResulted(result=result):
                self._call_over(result)
            case BackgroundClosed(result=result):
                self._call_over(result)
                self._survived(result.stop)
            case ChildOpened():
                self._children.inc()
            case AnswerEnded(answer=answer):
                self._tokens.labels("input").inc(answer.usage.input_tokens)
                self._tokens.labels("output").inc(answer.usage.output_tokens)
            case _:
                pass

    def _call_over(self, result: CallResult) -> None:
        self._calls.labels("unsuccessful" if result.unsuccessful else result.status).inc()

    def add_gauges(self, read: Callable[[], Gauges]) -> None:
        """Shows gauges of another part, as they are when somebody asks."""
        self._registry.register(_GaugesCollector(read))

    def refused(self, code: str) -> None:
        self._refusals.labels(str(code)).inc()

    def render(self, now: Now) -> bytes:
        self._now = now
        return generate_latest(self._registry)

    @property
    def now(self) -> Now:
        return self._now

    def _settled(self, turn: ShownTurn) -> None:
        self._turns.labels(turn.outcome).inc()
        if turn.is_whole and turn.ended_at is not None:
            # The wall clock may have been set back meanwhile.
            self._turn_s.observe(max(0.0, turn.ended_at - turn.began_at))
        if turn.receipt is not None:
            self._stopped(turn.receipt)

    def _stopped(self, receipt: Receipt) -> None:
        cause = receipt.reason.root.cause if receipt.reason is not None else "unknown"
        self._stop_s.labels(cause).observe(receipt.elapsed_ms / 1e3)
        for step in receipt.abandoned:
            self._abandoned.labels(step.kind).inc()
        for step in receipt.steps:
            self._survived(step.detail)

    def _survived(self, detail: StopDetail | None) -> None:
        if detail is not None:
            self._survivors.inc(len(detail.survivors))
            self._unconfirmed.inc(not detail.confirmed)


class _NowCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        now = self._metrics.now
        yield GaugeMetricFamily(
            "bargein_sessions_in_memory", "Sessions in memory.", value=len(now.sessions)
        )
        yield GaugeMetricFamily(
            "bargein_turns_running",
            "Turns in flight.",
            value=sum(state.turn is not None for state in now.sessions),
        )
        yield GaugeMetricFamily(
            "bargein_background_calls",
            "Calls that go on in the background of their sessions.",
            value=sum(len(state.background) for state in now.sessions),
        )
        yield GaugeMetricFamily(
            "bargein_inbox_messages",
            "Messages that wait, held ones included.",
            value=sum(len(state.waiting) for state in now.sessions),
        )
        yield GaugeMetricFamily(
            "bargein_sessions_held",
            "Sessions whose queue is held until somebody continues.",
            value=sum(state.held for state in now.sessions),
        )
        yield GaugeMetricFamily("bargein_watchers", "Readers of events.", value=now.watchers)
        yield GaugeMetricFamily(
            "bargein_abandoned_running",
            "Threads and coroutines that were abandoned and have not ended since.",
            value=len(abandoned()),
        )


class _GaugesCollector(Collector):
    def __init__(self, read: Callable[[], Gauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        for (name, words, label), values in self._read().items():
            family = GaugeMetricFamily(name, words, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family
