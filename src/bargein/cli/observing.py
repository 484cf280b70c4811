"""Connects an engine to the gateway's metrics, failure log and traces."""

from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bargein.cancel import CancelSource, run_thread
from bargein.errors import UserError
from bargein.runtime.config import Config
from bargein.session.broadcast import Observe

if TYPE_CHECKING:
    from bargein.server.metrics import Metrics
    from bargein.server.telemetry import Traces

TRACES_TO = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_S = 2.0


def observe_with(metrics: "Metrics", config: Config, stack: AsyncExitStack) -> Observe:
    """Returns an observer for an engine: it always counts and logs failures, and sends traces if
    OpenTelemetry's variables say where."""
    from bargein.server.failures import Failures
    from bargein.server.observing import Observers

    observers = [metrics.observe, Failures().observe]
    traces = _traces(config, stack)
    if traces is not None:
        observers.append(traces.observe)
    return Observers(*observers)


def _traces(config: Config, stack: AsyncExitStack) -> "Traces | None":
    if not any(config.environment.get(name) for name in TRACES_TO):
        return None
    if find_spec("opentelemetry") is None:
        raise UserError(
            f"{TRACES_TO[0]} is set, but traces are not installed; run  "
            "pip install 'bargein[telemetry]', or unset it"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from bargein.server.telemetry import Traces

    traces = Traces(OTLPSpanExporter())

    async def close() -> None:
        with CancelSource("traces") as source:
            await run_thread(
                traces.close, FLUSH_S, token=source.token, grace_s=FLUSH_S, name="traces"
            )

    stack.push_async_callback(close)
    return traces
