"""`/metrics` and traces report what really happened in a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from bargein.models.script import Call, Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.runtime.engine import Engine
from bargein.server.metrics import Metrics, Now
from bargein.server.observing import Observers
from bargein.server.telemetry import Traces
from bargein.session.broadcast import Watched
from bargein.tools import ToolContext
from tests.session.world import CONFIG, LIMITS, Script, answered, completes

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


class Scene:
    def __init__(self, engine: Engine, model: ScriptedModel) -> None:
        self.engine = engine
        self.model = model
        self.begun = anyio.Event()
        """A tool is at work."""
        self.call_id = ""
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(self.exporter)
        self.metrics = Metrics()
        self.observers = Observers(self.metrics.observe, self.traces.observe)

    def look(self) -> Now:
        state = self.engine.state("alice")
        return Now((state,) if state is not None else ())

    def observe(self, session: str, shown: Watched) -> None:
        self.observers(session, shown)

    def figures(self) -> dict[str, float]:
        """Each figure by its name and the values of its labels."""
        return {
            " ".join(
                [sample.name, *(value for _, value in sorted(sample.labels.items()))]
            ): sample.value
            for family in text_string_to_metric_families(self.metrics.render(self.look()).decode())
            for sample in family.samples
        }

    def spans(self) -> dict[str, ReadableSpan]:
        self.traces.close(5.0)
        return {span.name: span for span in self.exporter.get_finished_spans()}


@asynccontextmanager
async def a_scene(script: Script) -> AsyncIterator[Scene]:
    model = ScriptedModel(script)
    scene: Scene

    def observe(session: str, shown: Watched) -> None:
        scene.observe(session, shown)

    async def never_looks() -> str:
        """Goes on whatever it is told."""
        scene.begun.set()
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
        return ""

    async def waits(context: ToolContext) -> str:
        """Ends when it is told to."""
        scene.call_id = context.call_id
        scene.begun.set()
        await context.token.wait_async()
        return "told to stop"

    agent = Agent(model=model, tools=[never_looks, waits])
    engine = Engine(agent, store="memory", config=CONFIG, limits=LIMITS, observe=observe)
    scene = Scene(engine, model)
    async with engine:
        yield scene


async def test_a_turn_that_was_stopped_is_counted_with_the_time_it_took() -> None:
    async with a_scene([HOLD, [Say("again")]]) as scene:
        session = await scene.engine.session("alice")
        await session.send("Go", mode="queue")
        await scene.model.gate("hold").reached()
        assert scene.figures()["bargein_turns_running"] == 1
        receipt = await session.interrupt()
        await completes(session, "Again")
        figures = scene.figures()
        assert figures["bargein_turns_total stopped"] == 1
        assert figures["bargein_turns_total completed"] == 1
        assert figures["bargein_turn_seconds_count"] == 2
        assert figures["bargein_interrupt_seconds_count user_stop"] == 1
        told_s = receipt.elapsed_ms / 1e3
        assert figures["bargein_interrupt_seconds_sum user_stop"] == pytest.approx(told_s)
        assert figures["bargein_messages_total started queue"] == 1
        assert figures["bargein_turns_running"] == 0
        assert not any("alice" in name for name in figures)


async def test_what_was_abandoned_and_what_waits_is_counted() -> None:
    async with a_scene([[Call("never_looks", {})], [Say("after")]]) as scene:
        session = await scene.engine.session("alice")
        await session.send("Go")
        await scene.begun.wait()
        await session.send("later", mode="queue")
        await session.interrupt()
        figures = scene.figures()
        assert figures["bargein_abandoned_total tool"] == 1
        assert figures["bargein_calls_total abandoned"] == 1
        assert figures["bargein_inbox_messages"] == 1
        assert figures["bargein_sessions_held"] == 1
        assert figures["bargein_abandoned_running"] >= 1


async def test_what_goes_on_in_the_background_is_counted_until_it_ends() -> None:
    async with a_scene([[Call("waits", {})], [Say("done")]]) as scene:
        session = await scene.engine.session("alice")
        sent = await session.send("Go")
        await scene.begun.wait()
        await session.detach(scene.call_id)
        await answered(sent)
        assert scene.figures()["bargein_background_calls"] == 1
        assert scene.figures()["bargein_calls_total detached"] == 1
        receipt = await session.interrupt(scope="session")
        await session.settled()
        assert scene.figures()["bargein_background_calls"] == 0
        assert scene.figures()[f"bargein_calls_total {receipt.steps[0].status}"] == 1


async def test_spans_of_a_turn_stand_under_it_and_say_how_it_ended() -> None:
    async with a_scene([[Call("waits", {})]]) as scene:
        session = await scene.engine.session("alice")
        sent = await session.send("A secret")
        await scene.begun.wait()
        await session.interrupt()
        await answered(sent)
        spans = scene.spans()
        turn = spans["turn"]
        assert turn.attributes is not None
        assert turn.attributes["bargein.outcome"] == "stopped"
        assert turn.attributes["bargein.session"] == "alice"
        for name in ("model scripted", "tool waits", "interrupt"):
            assert spans[name].parent == turn.context
        assert "A secret" not in "".join(span.to_json() for span in spans.values())


async def test_a_call_in_the_background_has_a_span_until_its_own_end() -> None:
    async with a_scene([[Call("waits", {})], [Say("done")], [Say("heard")]]) as scene:
        session = await scene.engine.session("alice")
        sent = await session.send("Go")
        await scene.begun.wait()
        await session.detach(scene.call_id)
        await answered(sent)
        await session.interrupt(scope="session")
        await session.settled()
        span = scene.spans()["tool waits"]
        assert span.attributes is not None
        assert span.attributes["bargein.status"] in ("finished", "stopped")
