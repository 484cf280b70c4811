"""The engine without an event loop: every method, from any thread, stopped as fast as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bargein import sync
from bargein.contracts.event import (
    QuestionAsked,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import TextDelta
from bargein.contracts.message import Disposition
from bargein.contracts.receipt import Receipt, ReceiptStatus
from bargein.errors import UserError
from bargein.models.script import Call, Say, Step, Wait
from bargein.models.scripted import ScriptedModel
from bargein.runtime.agent import Agent
from bargein.session.session import Busy, TooLate, TurnFailed
from bargein.session.turn import Turn
from bargein.tools import Decision, Policy, Rule
from tests.session.laws import check_log, outcomes
from tests.session.world import CONFIG, LIMITS, WITHIN_S, Script

ROOT = Path(__file__).parents[2]
HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two")]


@contextmanager
def opened(
    script: Script, *, tools: list[object] | None = None, policy: Policy | None = None
) -> Iterator[tuple[sync.Engine, sync.Session, ScriptedModel]]:
    model = ScriptedModel(script)
    agent = Agent(model=model, tools=tools or [], policy=policy)  # type: ignore[arg-type]
    with sync.Engine(agent, store="memory", config=CONFIG, limits=LIMITS) as engine:
        yield engine, engine.session("alice"), model


def reach(engine: sync.Engine, model: ScriptedModel, gate: str = "hold") -> None:
    engine.call(model.gate(gate).reached)


def check(session: sync.Session) -> None:
    check_log(session.events(), waiting=[item.message.id for item in session.inbox()])


def test_send_and_result() -> None:
    with opened([[Say("Hello")]]) as (_, session, _model):
        sent = session.send("Hi")
        assert (sent.message, sent.disposition, sent.turn) == ("m1", Disposition.STARTED, "t1")
        result = sent.result()
        assert (result.outcome, str(result)) == (TurnOutcome.COMPLETED, "Hello")
        assert len(session.transcript()) == 2
        check(session)


def test_a_stream_yields_its_turn_to_the_end() -> None:
    with opened([HOLD, [Say("fine")]]) as (_, session, model):
        seen = []
        for event in session.stream("Count"):
            seen.append(event)
            if isinstance(event, TextDelta):
                model.gate("hold").open()
        assert seen[0] == TurnStarted("t1", ("m1",))
        assert isinstance(seen[-1], TurnSettled)
        assert "".join(each.text for each in seen if isinstance(each, TextDelta)) == "One two"


def test_leaving_a_stream_stops_nothing() -> None:
    with opened([HOLD, [Say("fine")]]) as (engine, session, model):
        for event in session.stream("Count"):
            if isinstance(event, TextDelta):
                break
        del event
        assert session.state().turn == "t1"
        actor = engine._inner.core.actor_in_memory("alice")
        assert actor is not None
        assert not actor.broadcast.is_watched
        model.gate("hold").open()
        session.settled()
        assert outcomes(session.events()) == {"t1": TurnOutcome.COMPLETED}
        check(session)


def test_a_stream_raises_what_its_turn_failed_with() -> None:
    async def broken(turn: Turn) -> str:
        raise RuntimeError("as the test says")

    with sync.Engine(broken, store="memory", config=CONFIG, limits=LIMITS) as engine:
        events = engine.session("alice").stream("Hi")
        with pytest.raises(TurnFailed, match="as the test says"):
            list(events)


def test_a_stop_from_another_thread_ends_the_wait_for_the_result() -> None:
    with opened([HOLD, [Say("fine")]]) as (engine, session, model):
        sent = session.send("Count")
        receipts: list[Receipt] = []

        def stop() -> None:
            reach(engine, model)
            receipts.append(session.interrupt(by="another thread"))

        thread = threading.Thread(target=stop)
        thread.start()
        result = sent.result()
        thread.join(WITHIN_S)
        assert (result.outcome, result.text) == (TurnOutcome.STOPPED, "One ")
        assert receipts == [result.receipt]
        assert receipts[0].by == "another thread"
        assert session.send("And?").result().text == "fine"
        check(session)


def test_many_threads_that_stop_at_once_are_told_the_same() -> None:
    with opened([HOLD, [Say("fine")]]) as (engine, session, model):
        session.send("Count")
        reach(engine, model)
        receipts: list[Receipt] = []
        threads = [
            threading.Thread(target=lambda: receipts.append(session.interrupt())) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN_S)
        stopped = [each for each in receipts if each.status is ReceiptStatus.STOPPED]
        assert len(receipts) == 8
        assert stopped
        assert all(each == stopped[0] for each in stopped)
        assert session.send("And?").result().outcome is TurnOutcome.COMPLETED
        check(session)


def test_the_cancel_is_there_at_once_though_the_loop_is_held_up() -> None:
    """An agent that blocks the loop sees its token cancelled: so the stop did not go through it."""
    blocking = threading.Event()

    async def agent(turn: Turn) -> str:
        blocking.set()
        deadline = time.monotonic() + 40
        while not turn.token.cancelled and time.monotonic() < deadline:
            time.sleep(0.0005)  # noqa: ASYNC251 - to hold the loop up is the point
        return "seen" if turn.token.cancelled else "never seen"

    with sync.Engine(agent, store="memory", config=CONFIG, limits=LIMITS) as engine:
        session = engine.session("alice")
        sent = engine.start(session._inner.send, "Hi")
        blocking.wait()
        began = time.monotonic()
        receipt = session.interrupt()
        assert time.monotonic() - began < WITHIN_S
        assert receipt.status is ReceiptStatus.STOPPED
        result = engine.call(sent.result().result)
        assert result.outcome is TurnOutcome.STOPPED


def test_a_stop_that_is_late_never_hits_the_next_turn() -> None:
    async def agent(turn: Turn) -> str:
        return turn.id

    with sync.Engine(agent, store="memory", config=CONFIG, limits=LIMITS) as engine:
        session = engine.session("alice")
        for number in range(1, 60):
            sent = session.send("x", mode="queue")
            following = session.send("y", mode="queue")
            receipt = session.interrupt(expected_turn=sent.turn)
            result = sent.result()
            stopped = result.outcome is TurnOutcome.STOPPED
            assert stopped == (receipt.status is ReceiptStatus.STOPPED), (number, receipt)
            if session.state().held:
                session.continue_()
            assert following.result().outcome is TurnOutcome.COMPLETED
        check(session)


def test_a_signal_handler_may_stop_a_turn() -> None:
    with opened([HOLD, [Say("fine")]]) as (engine, session, model):
        sent = session.send("Count")
        reach(engine, model)
        landed: list[bool] = []

        def handler(number: int, frame: object) -> None:
            landed.append(session.interrupt_now(by="signal"))

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert sent.result().outcome is TurnOutcome.STOPPED
            assert landed == [True]
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert session.send("And?").result().text == "fine"


def test_the_inbox() -> None:
    script: Script = [HOLD, [Say("third")], [Say("second")]]
    with opened(script) as (engine, session, model):
        session.send("1")
        reach(engine, model)
        sent = [session.send(str(n), mode="queue") for n in (2, 3, 4)]
        session.edit(sent[0].message, "2, changed")
        session.move(sent[1].message, before=sent[0].message)
        session.withdraw(sent[2].message)
        assert [item.message.text for item in session.inbox()] == ["3", "2, changed"]
        session.interrupt()
        session.continue_()
        assert [each.result().text for each in sent[:2]] == ["second", "third"]
        check(session)


def test_pause_detach_answer_and_end() -> None:
    def work() -> str:
        """Work in a thread."""
        working.set()
        go_on.wait(WITHIN_S)
        return "worked"

    working, go_on = threading.Event(), threading.Event()
    script: Script = [[Say("One "), Wait("hold"), Call("work")], [Say("Moved")], [Say("Done")]]
    policy = Policy((Rule(Decision.ASK),))
    with opened(script, tools=[work], policy=policy) as (engine, session, model):
        sent = session.send("Work")
        reach(engine, model)
        session.pause()
        assert session.state().phase == "paused"
        session.resume()
        model_gate = model.gate("hold")
        engine.call(_call, model_gate.open)
        for event in session.watch(after=0):
            if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
                session.answer(event.event.id, "allow")
                break
        assert working.wait(WITHIN_S)
        session.detach("t1_1_1")
        assert sent.result().text == "Moved"
        go_on.set()
        settled = 0
        for event in session.watch(after=0):
            settled += isinstance(event, Recorded) and isinstance(event.event, TurnSettled)
            if settled == 2:
                break
        assert outcomes(session.events())["t2"] is TurnOutcome.COMPLETED
        check(session)
        session.end()
        with pytest.raises(TooLate, match="ended"):
            session.send("late")


async def _call(function: object) -> None:
    assert callable(function)
    function()


def test_watch_shows_what_happens_and_ends_with_the_engine() -> None:
    seen: list[object] = []
    with opened([HOLD]) as (engine, session, model):
        settled = threading.Event()

        def watch() -> None:
            for each in session.watch(after=0):
                seen.append(each)
                if isinstance(each, Recorded) and isinstance(each.event, TurnSettled):
                    settled.set()

        thread = threading.Thread(target=watch)
        thread.start()
        sent = session.send("Count")
        reach(engine, model)
        engine.call(_call, model.gate("hold").open)
        sent.result()
        assert settled.wait(WITHIN_S)
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    words = [each.text for each in seen if isinstance(each, TextDelta)]
    assert words in (["One ", "two"], ["two"], [])


def test_errors_are_those_of_the_engine() -> None:
    with opened([HOLD]) as (engine, session, model):
        session.send("1")
        reach(engine, model)
        with pytest.raises(Busy):
            session.send("2", mode="reject")
        with pytest.raises(UserError, match="empty"):
            session.send("")
        with pytest.raises(TooLate):
            session.detach("nothing")


def test_an_engine_that_is_not_open_says_so() -> None:
    engine = sync.Engine(Agent(model=ScriptedModel([])), store="memory", config=CONFIG)
    with pytest.raises(RuntimeError, match="with Engine"):
        engine.session("alice")


def test_closing_stops_what_runs_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with opened([HOLD]) as (engine, session, model):
        sent = session.send("Count")
        reach(engine, model)
        future = engine.start(sent._inner.result)
    assert future.result(WITHIN_S).outcome is TurnOutcome.STOPPED
    deadline = time.monotonic() + WITHIN_S
    while threading.active_count() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert threading.active_count() <= before + 2, threading.enumerate()


# Ctrl-C, for real


def start(kind: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.sync.ctrl_c_child", kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    if kind == "events":
        assert child.stdout.readline() == "One \n"
    assert child.stdout.readline() == "waiting\n"
    return child


def test_ctrl_c_stops_the_turn_that_is_streamed() -> None:
    child = start("events")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 0, err
    assert out.splitlines() == ["idle", "After all"]


@pytest.mark.parametrize("kind", ["stream", "tool"])
def test_ctrl_c_stops_the_turn_is_raised_and_the_program_can_go_on(kind: str) -> None:
    child = start(kind)
    child.send_signal(signal.SIGINT)
    # It would work for an hour: what it says in time it says because of the signal.
    out, err = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 0, err
    stopped, answer, closed = out.splitlines()
    outcome, text, elapsed_ms = (
        stopped.rsplit(" ", 2)[0].split(" ")[0],
        stopped,
        stopped.split()[-1],
    )
    assert outcome == "stopped"
    assert ("'One '" if kind == "stream" else "'I work.'") in text
    assert float(elapsed_ms) < 1000 * WITHIN_S
    assert answer == "After all"
    assert float(closed.split()[-1]) < WITHIN_S


def test_ctrl_c_in_the_wait_for_a_message_that_is_queued_touches_no_other_turn() -> None:
    child = start("queued")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 0, err
    assert out.splitlines() == ["running", "One ", "After all"]


def test_ctrl_c_that_nobody_catches_ends_the_program_promptly() -> None:
    child = start("plain")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=WITHIN_S)
    assert child.returncode == -signal.SIGINT, err
    assert err.rstrip().endswith("KeyboardInterrupt")
