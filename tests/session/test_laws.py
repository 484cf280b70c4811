"""Failures that users of other agents met, by the law they broke. Each through the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import msgspec
import pytest

from bargein.cancel import Cause, Reason, Token, current_token
from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    InterruptLanded,
    MessageAccepted,
    QuestionAsked,
    TurnOutcome,
    TurnSettled,
)
from bargein.contracts.live import AnswerVoid
from bargein.contracts.message import Attachment
from bargein.contracts.model import Image, ModelRequest, ModelStream, Text
from bargein.contracts.receipt import ReceiptStatus, Scope, StepKind
from bargein.contracts.tool import CallStatus, Effect
from bargein.models.retry import RetryPolicy
from bargein.models.script import Answer, Call, Fail, Say, Step, Think, Wait
from bargein.models.scripted import ScriptedModel
from bargein.session.agent import LoopSettings, loop_agent
from bargein.session.hooks import Hooks
from bargein.session.session import TurnFailed
from bargein.session.turn import Turn
from bargein.tools import Decision, Policy, Rule, ToolRegistry, tool
from tests.session.laws import check_requests, events_of, outcomes, said, statuses
from tests.session.world import (
    LIMITS,
    Gate,
    Script,
    a_while,
    a_world,
    answered,
    completes,
    until,
    until_idle,
    wait_for,
    watching,
)

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


# 1. Isolation


async def test_a_stop_of_one_session_touches_no_other() -> None:
    gates = {"a": Gate(), "b": Gate()}

    async def work(name: str) -> str:
        """Work."""
        await gates[name]()
        return f"{name} is done"

    script: Script = [
        Answer([Call("work", {"name": "a"})], when="for a"),
        Answer([Call("work", {"name": "b"})], when="for b"),
        [Say("B is done")],
    ]
    async with a_world(script, tools=[work]) as world:
        a, b = await world.session("a"), await world.session("b")
        await a.send("for a")
        sent = await b.send("for b")
        for gate in gates.values():
            await gate.reached.wait()
        assert (await a.interrupt()).status is ReceiptStatus.STOPPED
        gates["b"].opened.set()
        assert (await answered(sent)).text == "B is done"
        await world.check("a")
        await world.check("b")


async def test_a_turn_does_not_inherit_the_token_of_the_tool_that_sent_its_message() -> None:
    gate, inner = Gate(), Gate()
    tokens: list[str] = []

    async def ask_bob() -> str:
        """Send to another session."""
        await (await world.session("bob")).send("for bob")
        await gate()
        return "sent"

    async def work() -> str:
        """Work for bob."""
        token = current_token()
        tokens.append(token.name if token is not None else "")
        await inner()
        return "worked"

    script: Script = [
        Answer([Call("ask_bob")], when="for alice"),
        Answer([Call("work")], when="for bob"),
        [Say("Bob is done")],
    ]
    async with a_world(script, tools=[ask_bob, work]) as world:
        alice = await world.session("alice")
        await alice.send("for alice")
        await gate.reached.wait()
        await inner.reached.wait()
        assert (await alice.interrupt(scope="session")).status is ReceiptStatus.STOPPED
        bob = await world.session("bob")
        assert (await bob.state()).phase == "running"
        inner.opened.set()
        await wait_for(bob, TurnSettled)
        assert outcomes(await bob.events()) == {"t1": TurnOutcome.COMPLETED}


async def test_a_session_made_by_a_tool_outlives_the_tool() -> None:
    async def agent(turn: Turn) -> str:
        if turn.session == "alice":
            await (await world.engine.session("carol")).send("Hi")
            return "sent"
        await anyio.lowlevel.checkpoint()
        return f"carol, under {turn.token.name}"

    async with a_world(agent=agent) as w:
        world = w
        await completes(await world.session("alice"), "Hi")
        carol = await world.session("carol")
        await wait_for(carol, TurnSettled)
        assert said(await carol.events()) == ["carol, under turn t1 of carol"]


# 3. Nothing lost, nothing twice


async def test_a_hundred_messages_at_once_are_each_answered_in_one_turn() -> None:
    async def agent(turn: Turn) -> str:
        await turn.boundary()
        return turn.id

    async with a_world(agent=agent) as world:
        session = await world.session()
        turns: list[str] = []

        async def send(number: int) -> None:
            mode = ("steer", "queue", "interrupt", "rollback")[number % 4]
            sent = await session.send(str(number), mode=mode)
            turns.append((await answered(sent, within_s=50)).turn)

        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(send, number)
        assert len(turns) == 100
        await world.check()
        assert await session.inbox() == ()


async def test_a_message_that_comes_while_the_user_is_asked_is_not_swallowed() -> None:
    async def write() -> str:
        """Write."""
        return "written"

    script: Script = [[Call("write")], [Say("Done")], [Say("Second")]]
    policy = Policy((Rule(Decision.ASK),))
    async with a_world(script, tools=[write], policy=policy) as world:
        session = await world.session()
        first = await session.send("Write")
        (asked,) = await wait_for(session, QuestionAsked)
        second = await session.send("yes", mode="queue")
        assert isinstance(asked.event, QuestionAsked)
        await session.answer(asked.event.id, "deny")
        assert (await answered(first)).text == "Done"
        assert (await answered(second)).text == "Second"
        await world.check()


# 4. One runner


class SlowStart(Hooks):
    """Everything between a message and its turn takes a while."""

    async def message(self, session: str, message: object) -> None:
        await anyio.sleep(0.005)

    async def turn_started(self, session: str, turn: str) -> None:
        await anyio.sleep(0.005)

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        await anyio.sleep(0.005)
        return (Text("described"),)


async def test_two_messages_within_the_same_moment_never_run_two_turns() -> None:
    running = 0
    most = 0

    async def agent(turn: Turn) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1
        return "done"

    async with a_world(agent=agent, hooks=SlowStart()) as world:
        session = await world.session()
        photo = Attachment("a.png", "image/png", b"")
        async with anyio.create_task_group() as group:
            for number in range(5):
                mode = "queue" if number % 2 else "steer"
                group.start_soon(partial(session.send, "x", mode=mode, attachments=[photo]))
        await until(lambda: running == 0)
        await until_idle(session)
        assert most == 1
        await world.check()


async def test_going_on_after_a_restart_and_a_new_message_do_not_run_two_turns() -> None:
    async with a_world([HOLD], gather_s=30.0) as world:
        session = await world.session()
        await session.send("0")
        await world.model.gate("hold").reached()
        await session.send("1", mode="queue")
    running: list[str] = []
    most = 0

    async def agent(turn: Turn) -> str:
        nonlocal most
        running.append(turn.id)
        most = max(most, len(running))
        await anyio.sleep(0.005)
        running.remove(turn.id)
        return turn.id

    async with a_world(agent=agent, store=world.store) as again:
        session = await again.session()
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(completes, session, f"new {number}")
        await until_idle(session)
        assert most == 1
        await again.check()


# 5. A valid transcript


async def test_of_two_open_calls_both_are_repaired() -> None:
    gate = Gate()

    async def one() -> str:
        """One."""
        await gate()
        return ""

    async def two() -> str:
        """Two."""
        await anyio.sleep_forever()
        return ""

    async with a_world([[Call("one"), Call("two")], [Say("fine")]], tools=[one, two]) as world:
        session = await world.session()
        await session.send("Go")
        await gate.reached.wait()
        await session.interrupt()
        assert set(statuses(await session.events())) == {"t1_1_1", "t1_1_2"}
        assert (await completes(session, "And?")).text == "fine"
        await world.check()


class LeftSlowly(ScriptedModel):
    """A model whose answer is complete, and whose connection takes a while to be closed."""

    def __init__(self, script: Script, gate: Gate) -> None:
        super().__init__(script)
        self._gate = gate

    @asynccontextmanager
    async def open(self, request: ModelRequest, token: Token) -> AsyncIterator[ModelStream]:  # type: ignore[override]
        async with super().open(request, token) as stream:
            yield stream
        if not self._gate.reached.is_set():
            await self._gate()


async def test_a_stop_at_the_very_end_of_an_answer_keeps_it_whole_and_its_calls_unstarted() -> None:
    gate = Gate()
    model = LeftSlowly([[Say("I call."), Call("one"), Call("two")], [Say("fine")]], gate)
    agent = loop_agent(model, ToolRegistry(), LoopSettings())
    async with a_world(agent=agent) as world:
        session = await world.session()
        sent = await session.send("1")
        await gate.reached.wait()
        await session.interrupt()
        assert (await answered(sent)).text == "I call."
        log = await session.events()
        assert [e.partial for e in events_of(log) if isinstance(e, AssistantSaid)] == [False]
        assert set(statuses(log).values()) == {CallStatus.NOT_STARTED}
        assert (await completes(session, "2")).text == "fine"
        check_requests(model.requests)
        await world.check()


async def test_a_call_that_outlasts_the_turns_patience_is_abandoned_and_its_result_fenced() -> None:
    gate, over = Gate(), anyio.Event()

    @tool(grace_s=2.0)
    async def slow() -> str:
        """Stop slowly."""
        try:
            with anyio.CancelScope(shield=True):
                await gate()
        finally:
            over.set()
        return "late"

    script: Script = [[Call("slow")], [Say("fine")]]
    impatient = msgspec.structs.replace(
        LIMITS, settle_s=0.05, call_grace_s=2.0, call_grace_s_max=0.25
    )
    async with a_world(script, tools=[slow], limits=impatient) as world:
        session = await world.session()
        await session.send("1")
        await gate.reached.wait()
        receipt = await session.interrupt()
        assert [(s.name, s.status) for s in receipt.steps] == [("slow", CallStatus.ABANDONED)]
        assert (await completes(session, "2")).text == "fine"
        gate.opened.set()
        await over.wait()
        await a_while()
        assert statuses(await session.events()) == {"t1_1_1": CallStatus.ABANDONED}
        await world.check()


async def test_half_a_call_and_unsigned_thoughts_are_dropped_and_signed_ones_kept() -> None:
    script: Script = [
        [Think("private"), Say("I call "), Call("work"), Wait("hold")],
        [Think("signed", signature="proof"), Say("I think "), Wait("again")],
        [Say("fine")],
    ]
    async with a_world(script) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        await session.interrupt()
        await session.send("2")
        await world.model.gate("again").reached()
        await session.interrupt()
        assert (await completes(session, "3")).text == "fine"
        asked = str(world.model.requests[-1].messages)
        assert "I call " in asked
        assert "private" not in asked
        assert "ToolCall" not in asked
        assert "signature='proof'" in asked
        await world.check()


async def test_an_answer_of_white_space_that_was_cut_off_is_dropped() -> None:
    async with a_world([[Say("\n\n"), Wait("hold")], [Say("fine")]]) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        await session.interrupt()
        assert (await completes(session, "2")).text == "fine"
        assert len(world.model.requests[-1].messages) == 2
        await world.check()


# 8. Our own doing is not an error


async def test_a_request_that_a_stop_ended_is_neither_retried_nor_an_error() -> None:
    async with a_world([HOLD, [Say("fine")]]) as world:
        session = await world.session()
        async with watching(session) as seen:
            sent = await session.send("1")
            await world.model.gate("hold").reached()
            await session.interrupt()
            result = await answered(sent)
        assert (result.outcome, result.error) == (TurnOutcome.STOPPED, "")
        assert len(world.model.plays) == 1
        assert not [each for each in seen if isinstance(each, AnswerVoid)]


async def test_a_stop_ends_the_back_off_between_two_attempts() -> None:
    backing_off = Gate()

    async def sleep(seconds: float) -> None:
        await backing_off()

    async with a_world([[Fail(status=529)], [Say("fine")]], sleep=sleep) as world:
        session = await world.session()
        sent = await session.send("1")
        await backing_off.reached.wait()
        receipt = await session.interrupt()
        assert [(s.kind, s.status) for s in receipt.steps] == [(StepKind.MODEL, CallStatus.STOPPED)]
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        assert len(world.model.plays) == 1
        assert (await completes(session, "2")).text == "fine"
        await world.check()


async def test_a_genuine_fault_is_retried_and_surfaces_when_retries_end() -> None:
    policy = RetryPolicy(attempts_max=2, delay_first_s=0.001)
    script: Script = [
        [Say("ha"), Fail()],
        [Say("Recovered")],
        [Fail(status=529)],
        [Fail(status=529)],
        [Say("fine")],
    ]
    async with a_world(script, retry=policy) as world:
        session = await world.session()
        async with watching(session) as seen:
            assert (await completes(session, "1")).text == "Recovered"
            await until(lambda: any(isinstance(each, AnswerVoid) for each in seen))
        with pytest.raises(TurnFailed, match="529"):
            await answered(await session.send("2"))
        assert (await completes(session, "3")).text == "fine"
        assert said(await session.events()) == ["Recovered", "fine"]
        await world.check()


@pytest.mark.parametrize("who", ["tool", "agent"])
async def test_an_error_that_a_stop_caused_is_told_as_a_stop(who: str) -> None:
    gate = Gate()

    async def fragile() -> str:
        """Break when stopped."""
        try:
            await gate()
        except anyio.get_cancelled_exc_class():
            raise ConnectionError("the socket was closed under me") from None
        return ""

    async def agent(turn: Turn) -> str:
        return await fragile() if turn.id == "t1" else "fine"

    script: Script = [[Call("fragile")], [Say("fine")]]
    own = agent if who == "agent" else None
    async with a_world(script, tools=[fragile], agent=own) as world:
        session = await world.session()
        sent = await session.send("1")
        await gate.reached.wait()
        receipt = await session.interrupt()
        result = await answered(sent)
        assert (result.outcome, result.error) == (TurnOutcome.STOPPED, "")
        assert all(step.status is CallStatus.STOPPED for step in receipt.steps)
        assert (await completes(session, "2")).text == "fine"
        await world.check()


# 9. Aimed


async def test_a_stop_of_an_idle_session_does_not_leak_into_the_next_turn() -> None:
    async def agent(turn: Turn) -> str:
        await anyio.lowlevel.checkpoint()
        return turn.id

    async with a_world(agent=agent) as world:
        session = await world.session()
        for number in range(1, 51):
            receipt = await session.interrupt()
            assert receipt.status is ReceiptStatus.TOO_LATE
            assert (await completes(session, "x")).text == f"t{number}"
        await world.check()


async def test_a_stop_just_before_or_after_the_end_hits_that_turn_or_none() -> None:
    """At whichever step of the loop it comes, of a turn that ends by itself."""

    async def agent(turn: Turn) -> str:
        await turn.boundary()
        return turn.id

    async with a_world(agent=agent) as world:
        session = await world.session()
        late = 0
        for steps in range(60):
            sent = await session.send("x")
            for _ in range(steps % 20):
                await anyio.lowlevel.checkpoint()
            receipt = await session.interrupt(expected_turn=sent.turn)
            result = await answered(sent)
            stopped = result.outcome is TurnOutcome.STOPPED
            assert stopped == (receipt.status is ReceiptStatus.STOPPED)
            late += not stopped
            assert (await completes(session, "y")).outcome is TurnOutcome.COMPLETED
        assert 0 < late < 60, "the moment of the end was not met from both sides"
        await world.check()


async def test_a_stop_from_inside_the_last_callback_does_not_hit_the_callers_next_await() -> None:
    class Late(Hooks):
        async def turn_settled(self, session: str, settled: TurnSettled) -> None:
            receipts.append((await (await world.session()).interrupt()).status)

    receipts: list[ReceiptStatus] = []
    async with a_world([[Say("a")], [Say("b")]], hooks=Late()) as w:
        world = w
        session = await world.session()
        await completes(session, "1")
        await until(lambda: len(receipts) == 1)
        await anyio.lowlevel.checkpoint()
        assert receipts == [ReceiptStatus.TOO_LATE]
        await completes(session, "2")


async def test_the_callers_own_time_out_passes_through_untouched() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        sent = await session.send("1")
        await world.model.gate("hold").reached()
        with pytest.raises(TimeoutError), anyio.fail_after(0.02):
            await sent.result()
        assert (await session.state()).phase == "running"
        world.model.gate("hold").open()
        assert (await answered(sent)).text == "One two"


async def test_cancelling_the_wait_for_a_receipt_ends_only_the_waiting() -> None:
    gate, let_go = Gate(), anyio.Event()

    async def slow() -> str:
        """Stop slowly."""
        try:
            await gate()
        finally:
            with anyio.CancelScope(shield=True):
                await let_go.wait()
        return ""

    async with a_world([[Call("slow")], [Say("fine")]], tools=[slow]) as world:
        session = await world.session()
        sent = await session.send("1")
        await gate.reached.wait()
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await session.interrupt()
                pytest.fail("it was told before all had settled")

            group.start_soon(stop)
            await wait_for(session, InterruptLanded)
            group.cancel_scope.cancel()
        assert (await session.state()).phase == "stopping"
        let_go.set()
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        assert (await completes(session, "2")).text == "fine"
        await world.check()


async def test_a_stop_while_a_turn_is_only_starting_is_held_and_honoured() -> None:
    async with a_world([[Say("fine")]]) as world:
        session = await world.session()
        world.held_store.hold(MessageAccepted)
        async with anyio.create_task_group() as group:
            group.start_soon(session.send, "1")
            await world.held_store.reached.wait()
            receipts = []

            async def stop() -> None:
                receipts.append(await session.interrupt())

            group.start_soon(stop)
            await a_while()
            world.held_store.release()
        assert [(r.status, r.target) for r in receipts] == [(ReceiptStatus.STOPPED, "t1")]
        assert world.model.plays == []
        assert (await completes(session, "2")).text == "fine"
        await world.check()


async def test_an_agent_is_not_even_called_when_the_stop_came_before_it() -> None:
    called: list[str] = []

    async def agent(turn: Turn) -> str:
        called.append(turn.id)
        return turn.id

    async def before_read(operation: str, session: str) -> None:
        if operation == "events" and not called:
            world.sessions["alice"].interrupt_now(by="just in time")

    async with a_world(agent=agent) as w:
        world = w
        session = await world.session()
        world.store.before_read = before_read
        sent = await session.send("1")
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        assert called == []
        world.store.before_read = None
        await completes(session, "2")
        assert called == ["t2"]


async def test_a_stop_that_nobody_waits_for_holds_the_queue_as_any_other() -> None:
    """As from a signal handler, which cannot wait."""
    async with a_world([HOLD, [Say("second")]]) as world:
        session = await world.session()
        first = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        stop = session.interrupt_now(by="Ctrl-C")
        assert stop.landed
        result = await answered(first)
        assert result.receipt is not None
        assert result.receipt.held == (second.message,)
        assert result.receipt.by == "Ctrl-C"
        assert (await session.state()).turn is None
        # Its receipt can be had afterwards, and it stops nothing more.
        assert await stop.receipt() == result.receipt
        await session.continue_()
        assert (await answered(second)).text == "second"
        await world.check()


@pytest.mark.parametrize("way", ["ended", "closed"])
async def test_a_stop_just_before_the_end_of_the_session_is_in_its_log(way: str) -> None:
    """The turn is stopped, and the session ends before the command of that stop has come."""
    async with a_world([HOLD]) as world:
        session = await world.session()
        sent = await session.send("1")
        await world.model.gate("hold").reached()
        second = await session.send("2", mode="queue")
        assert session.interrupt_now(by="ann").landed
        if way == "ended":
            await session.end(by="bob")
        else:
            session._engine._tell_to_close()
        result = await answered(sent)
        assert result.receipt is not None
        assert result.receipt.by == "ann"
        if way == "closed":
            assert result.receipt.held == (second.message,)
        landed = [
            each for each in events_of(await world.log()) if isinstance(each, InterruptLanded)
        ]
        assert landed == [InterruptLanded("t1", "user_stop", "ann")]
        await world.check()


# 10. Told


async def test_a_receipt_says_what_was_stopped_how_long_it_took_and_what_waits() -> None:
    gates = [Gate(), Gate()]

    @tool(effect=Effect.NONE)
    async def read() -> str:
        """Read."""
        await gates[0]()
        return ""

    @tool
    async def write() -> str:
        """Write."""
        await gates[1]()
        return ""

    script: Script = [[Call("read"), Call("write")], [Say("fine")]]
    async with a_world(script, tools=[read, write]) as world:
        session = await world.session()
        await session.send("1")
        for gate in gates:
            await gate.reached.wait()
        queued = await session.send("2", mode="queue")
        receipt = await session.interrupt(by="anna")
        assert receipt.status is ReceiptStatus.STOPPED
        assert (receipt.scope, receipt.session, receipt.target) == (Scope.TURN, "alice", "t1")
        assert receipt.reason == Reason(Cause.USER_STOP, "anna")
        assert (receipt.by, receipt.held, receipt.queued) == ("anna", (queued.message,), ())
        assert sorted((s.name, s.status) for s in receipt.steps) == [
            ("read", CallStatus.STOPPED),
            ("write", CallStatus.STOPPED),
        ]
        assert [step.name for step in receipt.uncertain] == ["write"]
        assert 0 < receipt.elapsed_ms < 1000 * LIMITS.settle_s
        assert receipt.stored
        (settled,) = [e for e in events_of(await session.events()) if isinstance(e, TurnSettled)]
        assert settled.receipt == receipt
        await world.check()


async def test_two_who_stop_the_same_turn_get_the_same_receipt_by_the_first() -> None:
    async with a_world([HOLD]) as world:
        session = await world.session()
        await session.send("1")
        await world.model.gate("hold").reached()
        receipts = []

        async def stop(by: str) -> None:
            receipts.append(await session.interrupt(by=by))

        async with anyio.create_task_group() as group:
            await anyio.lowlevel.checkpoint()
            group.start_soon(stop, "anna")
            await a_while()
            group.start_soon(stop, "ben")
        assert receipts[0].by == "anna"
        if receipts[1].status is ReceiptStatus.STOPPED:
            assert receipts[1] == receipts[0]


async def test_rollback_says_which_effects_happened() -> None:
    gate = Gate()

    async def write() -> str:
        """Write."""
        return "written"

    async def publish() -> str:
        """Publish."""
        await gate()
        return ""

    script: Script = [[Call("write")], [Call("publish")], [Say("fine")]]
    async with a_world(script, tools=[write, publish]) as world:
        session = await world.session()
        first = await session.send("1")
        await gate.reached.wait()
        second = await session.send("2", mode="rollback")
        receipt = (await answered(first)).receipt
        assert receipt is not None
        assert [(s.name, s.status) for s in receipt.steps] == [
            ("write", CallStatus.FINISHED),
            ("publish", CallStatus.STOPPED),
        ]
        assert (await answered(second)).text == "fine"
        # Hidden is what was said; what was done stays done, and the model is told.
        told = str(world.model.requests[-1].messages)
        assert "write (t1_1_1): finished" in told
        assert "publish (t1_2_1): stopped; it may have happened half" in told
        ended = [e for e in events_of(await session.events()) if isinstance(e, CallEnded)]
        assert len(ended) == 2
        await world.check()
