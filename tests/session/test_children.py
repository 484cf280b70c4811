"""Sub-agents: sessions of their own under their parent's token, told of, bounded, never lost."""

from __future__ import annotations

import threading
from contextlib import aclosing

import anyio
import msgspec
import pytest

from bargein.contracts.event import (
    ChildEnded,
    ChildStarted,
    InterruptLanded,
    MessageWithdrawn,
    Recorded,
    SessionCreated,
    SessionEnded,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.live import ChildState, TextDelta
from bargein.contracts.model import ModelRequest, Text, ToolCall, ToolMessage
from bargein.contracts.receipt import ReceiptStatus, StepKind
from bargein.contracts.tool import CallStatus, ChildTask
from bargein.errors import UserError
from bargein.models.script import Answer, Call, Expect, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.session import Session, TooLate
from bargein.session.turn import Turn
from bargein.testing.seeded import Backend
from bargein.tools import ToolContext, ToolRegistry, tool
from bargein.tools.delegate import delegate_tool
from tests.session.family import check_family, delegating, held, holding, saying, started
from tests.session.laws import check_log, events_of
from tests.session.world import (
    LIMITS,
    SOON,
    WITHIN_S,
    a_while,
    a_world,
    answered,
    completes,
    on_virtual_time,
    until,
    wait_for,
)

pytestmark = pytest.mark.anyio

DELEGATE = delegate_tool()
DONE = saying("go", Say("All done."))


def results(request: ModelRequest) -> str:
    """What the model was told by tools last."""
    last = [m for m in request.messages if isinstance(m, ToolMessage)][-1]
    parts = [part for result in last.results for part in result.content]
    return "\n".join(part.text for part in parts if isinstance(part, Text))


async def test_several_work_at_once_and_what_each_said_comes_back() -> None:
    script = [delegating("go", "ann", "ben"), holding("ann"), holding("ben"), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben")
        first, second = await started(session, 2)
        assert (first, second) == ("alice/t1_1_1.1", "alice/t1_1_1.2")
        views = await session.children()
        assert [(v.task, v.state) for v in views] == [("ann", "running"), ("ben", "running")]
        assert {first, second} <= set(world.in_memory)
        world.model.gate("ann").open()
        world.model.gate("ben").open()
        assert (await answered(sent)).text == "All done."
        told = results(world.model.requests[-1])
        assert "ann began. ann done." in told
        assert "ben began. ben done." in told
        await until(lambda: world.in_memory == ("alice",))
        logs = await check_family(world)
        events = events_of(logs[first])
        assert events[0] == SessionCreated(parent="alice")
        assert isinstance(events[-1], SessionEnded)


async def test_a_stop_of_the_parent_reaches_all_of_them_at_any_depth() -> None:
    script = [
        delegating("go", "middle", "ann"),
        delegating("middle", "ben", "cat"),
        *map(holding, ("ann", "ben", "cat")),
        DONE,
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben", "cat")
        receipt = await session.interrupt()
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        children = {s.name: s for s in receipt.steps if s.kind is StepKind.CHILD}
        assert sorted(children) == [
            "alice/t1_1_1.1",
            "alice/t1_1_1.1/t1_1_1.1",
            "alice/t1_1_1.1/t1_1_1.2",
            "alice/t1_1_1.2",
        ]
        assert {step.status for step in children.values()} == {CallStatus.STOPPED}
        # The calls of two sessions may have the same name: that of another one says whose it is.
        assert children["alice/t1_1_1.1"].call_id == "t1_1_1"
        assert children["alice/t1_1_1.1/t1_1_1.2"].call_id == "alice/t1_1_1.1/t1_1_1"
        assert not receipt.abandoned
        assert "scripted stopped" in children["alice/t1_1_1.2"].summary
        assert receipt.elapsed_ms < 1000 * LIMITS.settle_s
        playing = [play.outcome for play in world.model.plays if play.outcome == "playing"]
        assert playing == []
        await completes(session, "go")
        assert "ann began." in results(world.model.requests[-1])
        logs = await check_family(world)
        landed = [e for e in events_of(logs["alice/t1_1_1.2"]) if isinstance(e, InterruptLanded)]
        assert [(e.reason, e.by) for e in landed] == [("user_stop", "user")]


async def test_a_stop_of_one_does_not_reach_its_relatives() -> None:
    script = [
        delegating("go", "middle", "ann"),
        delegating("middle", "ben", "cat"),
        *map(holding, ("ann", "ben", "cat")),
        saying("middle", Say("Middle done.")),
        DONE,
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben", "cat")
        target = "alice/t1_1_1.1/t1_1_1.1"
        receipt = await session.interrupt(scope="child", target=target)
        assert (receipt.status, receipt.target) == (ReceiptStatus.STOPPED, target)
        assert [(step.name, step.call_id) for step in receipt.steps] == [
            (target, "alice/t1_1_1.1/t1_1_1")
        ]
        late = await session.interrupt(scope="child", target=target)
        assert late.status is ReceiptStatus.TOO_LATE
        await a_while()
        outcomes = {play.outcome for play in world.model.plays}
        assert "playing" in outcomes
        for gate in ("ann", "ben", "cat"):
            world.model.gate(gate).open()
        assert (await answered(sent)).text == "All done."
        assert "ann began. ann done." in results(world.model.requests[-1])
        told = "\n".join(map(results, [r for r in world.model.requests if _has_results(r)]))
        assert "stopped (user_stop, user)" in told
        assert "ben began." in told
        assert "cat began. cat done." in told
        await check_family(world)


def _has_results(request: ModelRequest) -> bool:
    return any(isinstance(message, ToolMessage) for message in request.messages)


async def test_through_its_own_handle_one_is_watched_steered_and_stopped() -> None:
    script = [
        delegating("go", "ann"),
        holding("ann"),
        Answer([Expect(user="rather"), Say("Rather then."), Wait("more")], when="rather"),
        DONE,
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann")
        (child,) = await started(session, 1)
        handle = await world.engine.session(child)
        steer = await handle.send("do it rather so")
        await held(world, "more")
        receipt = await handle.interrupt(by="anna")
        async with aclosing(handle.watch(after=0)) as watched:
            seen = [each.event async for each in watched if isinstance(each, Recorded)]
        assert isinstance(seen[-1], SessionEnded)
        assert (receipt.session, receipt.by) == (child, "anna")
        assert (await answered(steer)).text == "Rather then."
        assert (await answered(sent)).text == "All done."
        assert "Rather then." in results(world.model.requests[-1])
        await check_family(world)


async def test_after_its_end_it_takes_no_message_and_says_so() -> None:
    script = [delegating("go", "ann"), saying("ann", Say("Short.")), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        await completes(session, "go")
        child = await world.engine.session("alice/t1_1_1.1")
        with pytest.raises(TooLate, match="tell its parent"):
            await child.send("more")
        assert (await child.interrupt()).status is ReceiptStatus.TOO_LATE
        with pytest.raises(UserError, match="no sub-agent"):
            await world.engine.session("alice/t1_1_1.7")
        await check_family(world)


@pytest.mark.parametrize("mode", ["interrupt", "rollback", "queue"])
async def test_one_has_a_single_turn_and_no_message_makes_another(mode: str) -> None:
    script = [delegating("go", "ann"), holding("ann"), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann")
        child = await world.engine.session("alice/t1_1_1.1")
        with pytest.raises(UserError, match="one turn"):
            await child.send("instead", mode=mode)
        world.model.gate("ann").open()
        assert (await answered(sent)).text == "All done."
        assert "ann done." in results(world.model.requests[-1])


async def test_what_came_too_late_for_it_goes_back_in_plain_sight() -> None:
    async def agent(turn: Turn) -> str:
        if turn.session == "alice":
            await turn.run_calls(toolbox, [call])
            return str(turn.history()[-1])
        gate.set()
        await on.wait()
        return "done"

    gate, on = anyio.Event(), anyio.Event()
    toolbox = ToolRegistry([DELEGATE])
    call = ToolCall("c1", "delegate", '{"tasks": [{"task": "ann"}]}')

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("go")
        await gate.wait()
        (child,) = await started(session, 1)
        assert child == "alice/c1.1"
        handle = await world.engine.session(child)
        steer = await handle.send("too late")
        on.set()
        result = await answered(sent)
        assert result.outcome is TurnOutcome.COMPLETED
        with pytest.raises(UserError, match="withdrawn"):
            await answered(steer)
        log = events_of(await world.log(child))
        assert [e.message for e in log if isinstance(e, MessageWithdrawn)] == ["m2"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_time_limit_stops_one_and_says_so(backend: Backend) -> None:
    async def play(session: Session, model: ScriptedModel) -> None:
        assert (await completes(session, "go")).text == "All done."
        told = results(model.requests[-1])
        assert "its time limit of 0.05 s was over" in told
        assert "ann began." in told
        (view,) = await session.children()
        assert view.state is ChildState.ENDED
        check_log(await session.events())

    script = [delegating("go", {"task": "ann", "timeout_s": 0.05}), holding("ann"), DONE]
    on_virtual_time(play, script, backend=backend, tools=[DELEGATE])


async def test_tools_instructions_and_the_model_can_be_chosen_for_each() -> None:
    @tool
    def other(text: str) -> str:
        """Another tool."""
        return text

    task = {"task": "ann", "tools": ["other"], "instructions": "Be brief."}
    script = [
        delegating("go", task),
        Answer([Expect(system="Be brief."), Say("Brief.")], when="ann"),
        delegating("bad", {"task": "ben", "tools": ["nothing"]}),
        saying("bad", Say("Refused.")),
        delegating("model", {"task": "ben", "model": "openai:x"}),
        saying("model", Say("No model.")),
        delegating("kind", {"task": "ben", "agent": "reader"}),
        saying("kind", Say("No kind.")),
    ]
    async with a_world([*script[:2], DONE, *script[2:]], tools=[DELEGATE, other]) as world:
        session = await world.session()
        await completes(session, "go")
        asked = next(r for r in world.model.requests if "Be brief." in r.system)
        assert [each.name for each in asked.tools] == ["other"]
        for words, why in (
            ("bad", "no tool named 'nothing'"),
            ("model", "is not available"),
            ("kind", "no sub-agent named 'reader'"),
        ):
            await completes(session, words)
            assert why in results(world.model.requests[-1])
        assert len(await session.children()) == 1
        await check_family(world)


async def test_depth_and_number_have_bounds_that_the_model_is_told() -> None:
    script = [
        delegating("go", "deep"),
        delegating("deep", "deeper"),
        saying("deeper", Say("At the bottom.")),
        saying("deep", Say("Up.")),
        DONE,
        delegating("many", "a", "b", "c"),
        saying("many", Say("Too many.")),
    ]
    async with a_world(
        script, tools=[DELEGATE], children_deep_max=2, children_at_once_max=2
    ) as world:
        session = await world.session()
        await completes(session, "go")
        by_task = {str(r.messages[0]): [t.name for t in r.tools] for r in world.model.requests}
        assert [names for words, names in by_task.items() if "deeper" in words] == [[]]
        await completes(session, "many")
        assert "at most 2 may be at once" in results(world.model.requests[-1])
        await check_family(world)


async def test_a_turn_begins_no_more_than_it_may() -> None:
    script = [
        delegating("go", "ann"),
        saying("ann", Say("A.")),
        delegating("go", "ben"),
        DONE,
        delegating("again", "cat"),
        saying("cat", Say("C.")),
        saying("again", Say("Fine.")),
    ]
    async with a_world(script, tools=[DELEGATE], children_per_turn_max=1) as world:
        session = await world.session()
        await completes(session, "go")
        assert "do the rest yourself" in results(world.model.requests[-1])
        await completes(session, "again")
        assert "C." in results(world.model.requests[-1])


async def test_one_in_a_tool_that_never_looks_is_abandoned_and_the_parent_settles_in_time() -> None:
    begun, release = threading.Event(), threading.Event()

    @tool
    def stubborn() -> str:
        """Never looks at its token."""
        begun.set()
        release.wait(50)
        return "late"

    script = [
        delegating("go", "middle", "ann"),
        delegating("middle", "deep"),
        Answer([Call("stubborn")], when="deep"),
        holding("ann"),
        DONE,
    ]
    try:
        async with a_world(script, tools=[DELEGATE, stubborn]) as world:
            session = await world.session()
            sent = await session.send("go")
            await held(world, "ann")
            deep = "alice/t1_1_1.1/t1_1_1.1"
            await until(begun.is_set)
            with anyio.fail_after(WITHIN_S):
                receipt = await session.interrupt()
            assert (await answered(sent)).outcome is TurnOutcome.STOPPED
            named = {(step.kind, step.name): step.status for step in receipt.steps}
            assert named[StepKind.TOOL, "stubborn"] is CallStatus.ABANDONED
            assert named[StepKind.CHILD, deep] is CallStatus.STOPPED
            assert [step.call_id for step in receipt.abandoned] == [f"{deep}/t1_1_1"]
            await check_family(world)
    finally:
        release.set()


async def test_an_interrupt_of_the_call_alone_stops_its_sub_agents_and_the_turn_goes_on() -> None:
    script = [delegating("go", "ann", "ben"), holding("ann"), holding("ben"), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben")
        receipt = await session.interrupt(scope="call", target="t1_1_1")
        kinds = [step.kind for step in receipt.steps]
        assert kinds == [StepKind.TOOL, StepKind.CHILD, StepKind.CHILD]
        assert (await answered(sent)).text == "All done."
        told = results(world.model.requests[-1])
        assert "ann began." in told
        assert "ben began." in told
        await check_family(world)


async def test_a_detached_one_survives_the_turn_and_its_outcome_is_a_message() -> None:
    script = [
        delegating("go", "ann", mode="detach"),
        holding("ann"),
        saying("go", Say("Started."), Wait("turn")),
        Answer([Expect(user="ann began. ann done."), Say("Heard.")], when="sub-agent"),
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "turn")
        receipt = await session.interrupt()
        assert not [step for step in receipt.steps if step.kind is StepKind.CHILD]
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        (view,) = await session.children()
        assert (view.detached, view.state) == (True, ChildState.RUNNING)
        world.model.gate("ann").open()
        await wait_for(session, TurnSettled, 2)
        await check_family(world)


async def test_a_stop_of_the_session_stops_detached_ones_too_and_tells() -> None:
    script = [
        delegating("go", "ann", mode="detach"),
        holding("ann"),
        DONE,
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        await completes(session, "go")
        await held(world, "ann")
        receipt = await session.interrupt(scope="session")
        assert receipt.status is ReceiptStatus.STOPPED
        assert [step.name for step in receipt.steps] == ["alice/t1_1_1.1"]
        await wait_for(session, ChildEnded)
        # Nobody goes on by himself after a stop: the news is held.
        assert (await session.state()).held


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stop_tells_of_what_a_sub_agent_has_left_in_the_background(backend: Backend) -> None:
    """That ends with it. What of it does not end in time is still running, and must be told."""
    busy: list[bool] = []

    @tool
    async def stubborn() -> str:
        """Never looks at its token."""
        busy.append(True)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(100)
        return "late"

    async def play(session: Session, model: ScriptedModel) -> None:
        sent = await session.send("go")
        await model.gate("middle").reached()
        await until(lambda: bool(busy))
        middle = await session._engine.session("alice/t1_1_1.1")
        model.gate("middle").open()
        await wait_for(middle, TurnSettled)
        receipt = await session.interrupt(scope="child", target=middle.id)
        assert [step.call_id for step in receipt.abandoned] == [f"{middle.id}/t1_1_1.1/t1_1_1"]
        assert (await answered(sent)).text == "All done."

    script = [
        delegating("go", "middle"),
        delegating("middle", "deep", mode="detach"),
        saying("deep", Call("stubborn")),
        saying("middle", Say("Middle "), Wait("middle"), Say("done.")),
        DONE,
    ]
    on_virtual_time(play, script, backend=backend, tools=[DELEGATE, stubborn])


async def test_a_session_with_a_detached_one_stays_in_memory() -> None:
    script = [delegating("go", "ann", mode="detach"), holding("ann"), DONE, saying(".", Say("x"))]
    async with a_world(script, tools=[DELEGATE], idle_s=0.02) as world:
        session = await world.session()
        await completes(session, "go")
        await held(world, "ann")
        with anyio.move_on_after(0.15):
            await anyio.sleep_forever()
        assert "alice" in world.in_memory
        world.model.gate("ann").open()
        await wait_for(session, TurnSettled, 2)
        await until(lambda: world.in_memory == ())


async def test_the_end_of_the_program_settles_all_of_them() -> None:
    script = [
        delegating("go", "middle"),
        delegating("middle", "ann"),
        holding("ann"),
        delegating("later", "ben", mode="detach"),
        holding("ben"),
    ]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        await session.send("go")
        await held(world, "ann")
        store = world.store
    async with a_world([DONE], tools=[DELEGATE], store=store) as world:
        logs = await check_family(world)
        outcomes = {
            name: [e.outcome for e in events_of(log) if isinstance(e, TurnSettled)]
            for name, log in logs.items()
        }
        assert list(outcomes.values()) == [[TurnOutcome.STOPPED]] * 3


async def test_a_pause_of_the_parent_holds_its_sub_agents_and_a_resume_lets_them_on() -> None:
    @tool
    async def step() -> str:
        """One step."""
        return "stepped"

    script = [
        delegating("go", "ann"),
        Answer([Wait("first"), Call("step")], when="ann"),
        saying("ann", Say("Went on.")),
        DONE,
    ]
    async with a_world(script, tools=[DELEGATE, step]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "first")
        await session.pause()
        child = await world.engine.session("alice/t1_1_1.1")
        assert (await child.state()).phase == "paused"
        world.model.gate("first").open()
        await until(lambda: world.engine.state("alice/t1_1_1.1").boundary)  # type: ignore[union-attr]
        assert len(world.model.requests) == 2
        await session.resume()
        assert (await answered(sent)).text == "All done."
        assert "Went on." in results(world.model.requests[-1])


async def test_a_tool_of_ones_own_that_leaves_its_sub_agents_behind_stops_them() -> None:
    @tool
    async def careless(context: ToolContext) -> str:
        """Begins one and does not wait for it."""
        async with anyio.create_task_group() as group:
            group.start_soon(context.delegate, [ChildTask("ann")])
            await begun.wait()
            group.cancel_scope.cancel()
        return "left"

    begun = anyio.Event()
    script = [Answer([Call("careless")], when="go"), holding("ann"), DONE]
    async with a_world(script, tools=[careless]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann")
        begun.set()
        assert (await answered(sent)).text == "All done."
        told = results(world.model.requests[-1])
        assert "left" in told
        assert "ann began." in told
        await check_family(world)


async def test_a_stop_from_another_thread_lands_on_a_sub_agent_alone() -> None:
    script = [delegating("go", "ann", "ben"), holding("ann"), holding("ben"), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        sent = await session.send("go")
        await held(world, "ann", "ben")
        child = await world.engine.session("alice/t1_1_1.1")
        thread = threading.Thread(target=child.interrupt_now)
        thread.start()
        await wait_for(session, ChildEnded)
        thread.join()
        world.model.gate("ben").open()
        assert (await answered(sent)).text == "All done."
        assert "ben began. ben done." in results(world.model.requests[-1])


async def test_what_one_says_is_seen_by_who_watches_it_and_not_by_who_watches_its_parent() -> None:
    script = [delegating("go", "ann"), holding("ann"), DONE]
    async with a_world(script, tools=[DELEGATE]) as world:
        session = await world.session()
        await session.send("go")
        await held(world, "ann")
        child = await world.engine.session("alice/t1_1_1.1")
        async with aclosing(child.watch()) as events:
            world.model.gate("ann").open()
            said = [e.text async for e in events if isinstance(e, TextDelta)]
        assert "".join(said) == "ann done."


async def test_a_receipt_for_a_child_comes_in_time_while_the_store_is_silent() -> None:
    """The wait for the child and the wait for the store share the bound (seed 91001856)."""
    limits = msgspec.structs.replace(SOON, store_s=0.5)
    script = [delegating("go", "dig")]
    async with a_world(script, tools=[delegate_tool()], limits=limits) as world:
        session = await world.session()
        world.held_store.hold(ChildStarted)
        await session.send("go")
        await world.held_store.reached.wait()
        began_at = anyio.current_time()
        receipt = await session.interrupt(scope="child", target="alice/t1_1_1.1")
        took_s = anyio.current_time() - began_at
        assert (receipt.status, receipt.stored) == (ReceiptStatus.STOPPED, False)
        assert took_s < limits.receipt_s + limits.store_s / 2
        world.held_store.release()
