"""Any `async def agent(turn)` in place of the built-in one: what it is given, and what it may not
do to a session, whatever it tries."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import pytest

from bargein.calls.words import CUT_OFF
from bargein.cancel import Cancelled, CancelSource, current_token
from bargein.contracts.event import (
    AgentEvent,
    AgentState,
    AssistantSaid,
    CallEnded,
    TextCheckpoint,
    TurnOutcome,
)
from bargein.contracts.live import TextDelta
from bargein.contracts.message import Disposition
from bargein.contracts.model import (
    AssistantMessage,
    ModelRequest,
    Text,
    ToolCall,
    UserMessage,
)
from bargein.contracts.receipt import StepKind
from bargein.contracts.store import Commit
from bargein.contracts.tool import CallStatus
from bargein.errors import UserError
from bargein.models.errors import ModelError
from bargein.models.script import Call, Fail, Say, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.broadcast import Watched
from bargein.session.session import TurnFailed
from bargein.session.turn import Turn, TurnOver
from bargein.tools import ToolRegistry
from tests.session.laws import check_requests, events_of, said, statuses
from tests.session.world import (
    LIMITS,
    SOON,
    WITHIN_S,
    Gate,
    a_world,
    answered,
    completes,
    until,
    watching,
)

pytestmark = pytest.mark.anyio


async def test_what_it_returns_is_the_answer() -> None:
    async def agent(turn: Turn) -> str:
        return f"You said {turn.messages[0].text} in {turn.session}"

    async with a_world(agent=agent) as world:
        session = await world.session()
        result = await completes(session, "Hi")
        assert result.text == str(result) == "You said Hi in alice"
        assert said(await session.events()) == [result.text]
        assert len(await session.transcript()) == 2
        await world.check()


async def test_what_it_emits_is_shown_as_it_comes_and_is_the_answer_at_the_end() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> None:
        turn.emit("Hello, ")
        await gate()
        turn.emit("you")

    async with a_world(agent=agent) as world:
        session = await world.session()
        async with watching(session) as seen:
            sent = await session.send("Hi")
            await gate.reached.wait()
            await until(lambda: shown(seen) == ["Hello, "])
            gate.opened.set()
            await until(lambda: shown(seen) == ["Hello, ", "you"])
        assert (await answered(sent)).text == "Hello, you"
        assert said(await session.events()) == ["Hello, you"]
        await world.check()


def shown(seen: list[Watched]) -> list[str]:
    return [event.text for event in seen if isinstance(event, TextDelta)]


async def test_what_it_had_emitted_when_it_was_stopped_is_kept_and_marked() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> None:
        turn.emit("Hello, ")
        await gate()

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("Hi")
        await gate.reached.wait()
        await session.interrupt()
        result = await answered(sent)
        assert (result.outcome, result.text) == (TurnOutcome.STOPPED, "Hello, ")
        (last,) = [e for e in events_of(await session.events()) if isinstance(e, AssistantSaid)]
        assert last.partial
        assert (await session.transcript())[-1] == AssistantMessage((Text("Hello, "),))
        await world.check()


async def test_what_it_emits_is_checkpointed() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> None:
        turn.emit("one ")
        turn.emit("two ")
        await gate()

    async with a_world(agent=agent, checkpoint_s=0.0) as world:
        session = await world.session()
        await session.send("Hi")
        await gate.reached.wait()
        await until(lambda: len(checkpoints(world.held_store.commits)) == 2)
        assert checkpoints(world.held_store.commits) == ["one ", "two "]
        await session.interrupt()


def checkpoints(commits: list[Commit]) -> list[str]:
    events = [event for commit in commits for event in commit.events]
    return [event.text for event in events if isinstance(event, TextCheckpoint)]


async def test_finish_replaces_what_was_emitted() -> None:
    async def agent(turn: Turn) -> None:
        turn.emit("thinking aloud")
        turn.finish("The answer")

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert (await completes(session, "Hi")).text == "The answer"
        assert said(await session.events()) == ["The answer"]


async def test_returning_what_the_model_said_does_not_say_it_twice() -> None:
    model = ScriptedModel([[Say("Hello")]])

    async def agent(turn: Turn) -> str:
        await turn.ask_model(model, ModelRequest(turn.history()))
        return turn.text

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert (await completes(session, "Hi")).text == "Hello"
        assert said(await session.events()) == ["Hello"]


async def test_state_is_found_again_in_the_next_turn_and_after_a_restart() -> None:
    async def agent(turn: Turn) -> str:
        count = int(turn.state or b"0") + 1
        turn.state = str(count).encode()
        return str(count)

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert [(await completes(session, "Hi")).text for _ in range(3)] == ["1", "2", "3"]
        log = events_of(await session.events())
        assert [e.body for e in log if isinstance(e, AgentState)] == [b"1", b"2", b"3"]
    async with a_world(agent=agent, store=world.store) as world:
        assert (await completes(await world.session(), "Hi")).text == "4"
        assert (await completes(await world.session("bob"), "Hi")).text == "1"


async def test_state_has_a_bound() -> None:
    async def agent(turn: Turn) -> None:
        turn.state = b"x" * (LIMITS.agent_state_bytes_max + 1)

    async with a_world(agent=agent) as world:
        session = await world.session()
        with pytest.raises(TurnFailed, match="keep at most 262144 in it"):
            await answered(await session.send("Hi"))


async def test_events_of_its_own_are_kept_in_the_log() -> None:
    async def agent(turn: Turn) -> str:
        await turn.keep("plan", b"\x00\xff")
        return "kept"

    async with a_world(agent=agent) as world:
        session = await world.session()
        await completes(session, "Hi")
        log = events_of(await session.events())
        assert [e for e in log if isinstance(e, AgentEvent)] == [
            AgentEvent("t1", "plan", b"\x00\xff")
        ]


async def test_boundary_takes_what_steers_the_turn() -> None:
    gate = Gate()

    async def agent(turn: Turn) -> str:
        assert await turn.boundary() == ()
        await gate()
        (steer,) = await turn.boundary()
        return f"{turn.messages[0].text}, {steer.text}, {len(turn.messages)}"

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("one")
        await gate.reached.wait()
        steer = await session.send("two")
        assert steer.disposition is Disposition.STEERING
        gate.opened.set()
        assert (await answered(sent)).text == "one, two, 2"
        assert (await answered(steer)).turn == "t1"
        await world.check()


async def test_on_cancel_is_called_in_the_loop_and_a_failing_one_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    called = anyio.Event()

    def fail() -> None:
        raise LookupError("a bug in a callback")

    async def agent(turn: Turn) -> None:
        turn.on_cancel(fail)
        turn.on_cancel(called.set)
        removed = turn.on_cancel(lambda: pytest.fail("it was removed"))
        assert removed.remove()
        await gate()

    async with a_world(agent=agent) as world:
        session = await world.session()
        await session.send("Hi")
        await gate.reached.wait()
        with caplog.at_level(logging.ERROR, "bargein.session"):
            await session.interrupt()
            with anyio.fail_after(WITHIN_S):
                await called.wait()
    assert "a bug in a callback" in caplog.text


async def test_on_cancel_is_not_called_when_the_turn_ends_by_itself() -> None:
    called: list[str] = []

    async def agent(turn: Turn) -> str:
        turn.on_cancel(lambda: called.append(turn.id))
        return "done"

    async with a_world(agent=agent) as world:
        session = await world.session()
        await completes(session, "Hi")
        await session.interrupt()
    assert called == []


async def test_it_runs_under_the_token_of_its_turn() -> None:
    async def agent(turn: Turn) -> str:
        current = current_token()
        assert current is not None
        with turn.token.child("a helper") as source:
            return f"{turn.token.name} {source.token.cancelled} {current.cancelled}"

    async with a_world(agent=agent) as world:
        result = await completes(await world.session(), "Hi")
        assert result.text == "turn t1 of alice False False"


async def test_an_error_is_a_failed_turn_and_the_session_goes_on() -> None:
    async def agent(turn: Turn) -> str:
        if turn.id == "t1":
            turn.emit("so far ")
            raise LookupError("a bug in an agent")
        return "fine"

    async with a_world(agent=agent) as world:
        session = await world.session()
        with pytest.raises(TurnFailed, match="LookupError: a bug in an agent"):
            await answered(await session.send("Hi"))
        assert (await completes(session, "again")).text == "fine"
        assert said(await session.events()) == ["so far ", "fine"]
        await world.check()


@pytest.mark.parametrize("error", ["its own", "foreign"])
async def test_a_cancel_that_is_not_ours_is_a_failure_and_no_completion(error: str) -> None:
    async def agent(turn: Turn) -> str:
        if turn.id != "t1":
            return "fine"
        if error == "foreign":
            raise Cancelled(CancelSource("another").token)
        raise anyio.get_cancelled_exc_class()

    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("Hi")
        with pytest.raises(TurnFailed):
            await answered(sent)
        assert (await completes(session, "again")).text == "fine"
        await world.check()


async def test_an_agent_that_will_not_stop_is_abandoned_and_fenced() -> None:
    gate, ended = Gate(), anyio.Event()
    late: list[type[BaseException] | None] = []

    async def agent(turn: Turn) -> str:
        if turn.id != "t1":
            return "fine"
        turn.emit("before ")
        with anyio.CancelScope(shield=True):
            await gate()
        acts: list[Callable[[], object]] = [
            lambda: turn.emit("late"),
            lambda: turn.finish("late"),
            lambda: turn.tell("late"),
        ]
        for act in acts:
            try:
                act()
                late.append(None)
            except (Cancelled, TurnOver) as refusal:
                late.append(type(refusal))
        ended.set()
        return "late"

    async with a_world(agent=agent, limits=SOON) as world:
        session = await world.session()
        sent = await session.send("Hi")
        await gate.reached.wait()
        receipt = await session.interrupt()
        assert [(step.kind, step.status) for step in receipt.steps] == [
            (StepKind.AGENT, CallStatus.ABANDONED)
        ]
        assert (await completes(session, "again")).text == "fine"
        gate.opened.set()
        await ended.wait()
        assert late == [Cancelled] * 3
        assert (await answered(sent)).text == "before "
        assert said(await session.events()) == ["before ", "fine"]
        await world.check()


async def test_a_turn_that_is_over_can_do_nothing_more() -> None:
    kept: list[Turn] = []

    async def agent(turn: Turn) -> str:
        kept.append(turn)
        return "done"

    async with a_world(agent=agent) as world:
        session = await world.session()
        await completes(session, "Hi")
        (turn,) = kept
        acts: list[Callable[[], object]] = [
            lambda: turn.emit("x"),
            lambda: turn.finish("x"),
            lambda: turn.tell("x"),
            lambda: setattr(turn, "state", b"x"),
        ]
        for act in acts:
            with pytest.raises(TurnOver, match="t1 is over"):
                act()
        with pytest.raises(TurnOver):
            await turn.boundary()
        with pytest.raises(TurnOver):
            await turn.keep("x", b"")
        assert turn.text == "done"
        await world.check()


async def work() -> str:
    """Work."""
    return "worked"


async def test_calls_that_it_does_not_run_are_told_as_not_started() -> None:
    model = ScriptedModel([[Say("I work."), Call("work")], [Say("Well")], [Say("Next")]])

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        if asked.calls:
            await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        await completes(session, "Hi")
        assert statuses(await session.events()) == {"t1_1_1": CallStatus.NOT_STARTED}
        await completes(session, "Hi")
        await world.check()


async def test_a_model_that_fails_can_be_asked_again_and_what_it_had_said_is_kept() -> None:
    model = ScriptedModel([[Say("Half "), Fail(status=401)], [Say("Whole")]])

    async def agent(turn: Turn) -> None:
        try:
            await turn.ask_model(model, ModelRequest(turn.history()))
        except ModelError:
            turn.tell("[Once more.]")
            await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert (await completes(session, "Hi")).text == "Whole"
        assert said(await session.events()) == ["Half ", "Whole"]
        check_requests(model.requests)
        await world.check()


async def test_it_runs_tools_of_its_own_choice_and_sees_their_results() -> None:
    model = ScriptedModel([[Call("work"), Call("nothing")], [Say("Done")]])

    async def agent(turn: Turn) -> None:
        toolbox = ToolRegistry([work])
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        await turn.run_calls(toolbox, asked.calls)
        await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert (await completes(session, "Hi")).text == "Done"
        assert statuses(await session.events()) == {
            "t1_1_1": CallStatus.FINISHED,
            "t1_1_2": CallStatus.NOT_STARTED,
        }
        check_requests(model.requests)
        await world.check()


async def test_it_cannot_ask_the_model_while_calls_are_running() -> None:
    gate = Gate()
    model = ScriptedModel([[Call("slow")], [Say("Done")]])

    async def slow() -> str:
        """Be slow."""
        await gate()
        return "slow"

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        async with anyio.create_task_group() as group:
            group.start_soon(turn.run_calls, ToolRegistry([slow]), asked.calls)
            await gate.reached.wait()
            with pytest.raises(UserError, match="await `run_calls` first"):
                await turn.ask_model(model, ModelRequest(turn.history()))
            gate.opened.set()
        await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        assert (await completes(session, "Hi")).text == "Done"
        check_requests(model.requests)
        await world.check()


async def test_calls_left_running_by_an_agent_that_returns_are_stopped_with_its_turn() -> None:
    gate = Gate()

    async def slow() -> str:
        """Be slow."""
        await gate()
        return "slow"

    model = ScriptedModel([[Call("slow")]])
    strays = anyio.Event()

    async def agent(turn: Turn) -> str:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))

        async def stray() -> None:
            await turn.run_calls(ToolRegistry([slow]), asked.calls)
            strays.set()

        outside.start_soon(stray)
        await gate.reached.wait()
        return "I leave"

    async with anyio.create_task_group() as outside, a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("Hi")
        with pytest.raises(TurnFailed, match="calls of this turn are still running"):
            await answered(sent)
        await strays.wait()
        assert statuses(await session.events()) == {"t1_1_1": CallStatus.STOPPED}
        await world.check()


async def test_a_toolbox_that_breaks_its_contract_fails_the_call_and_not_the_session() -> None:
    class Broken:
        def schemas(self) -> tuple[()]:
            return ()

        def plan(self, call: ToolCall) -> object:
            raise LookupError("a bug in a toolbox")

    model = ScriptedModel([[Call("a"), Call("b")], [Say("Done")]])

    async def agent(turn: Turn) -> None:
        asked = await turn.ask_model(model, ModelRequest(turn.history()))
        await turn.run_calls(Broken(), asked.calls)  # type: ignore[arg-type]
        await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        # Without waiting for what never began: that would take as long as it may take to settle.
        with anyio.fail_after(LIMITS.call_grace_s):
            assert (await completes(session, "Hi")).text == "Done"
        results = [e for e in events_of(await session.events()) if isinstance(e, CallEnded)]
        assert {e.result.status for e in results} == {CallStatus.FAILED}
        assert "a bug in a toolbox" in str(results[0].result.content)
        await world.check()


async def test_an_interrupt_while_the_model_waits_ends_the_request() -> None:
    model = ScriptedModel([[Say("One "), Wait("hold")], [Say("fine")]])

    async def agent(turn: Turn) -> None:
        await turn.ask_model(model, ModelRequest(turn.history()))

    async with a_world(agent=agent) as world:
        session = await world.session()
        await session.send("Hi")
        await model.gate("hold").reached()
        receipt = await session.interrupt()
        assert [(s.kind, s.status) for s in receipt.steps] == [(StepKind.MODEL, CallStatus.STOPPED)]
        assert model.plays[0].outcome == "cancelled"
        assert (await completes(session, "again")).text == "fine"
        _, cut, again, _ = await session.transcript()
        assert cut == AssistantMessage((Text("One "),))
        assert isinstance(again, UserMessage)
        assert again.content[0] == Text(CUT_OFF)
        await world.check()
