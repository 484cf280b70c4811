"""Questions and approvals: steps of a turn, answered by their id, ended by a stop, and still there
after a restart."""

from __future__ import annotations

import anyio
import pytest

from bargein.contracts.event import (
    CallEnded,
    Event,
    MessageAccepted,
    MessageEdited,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.message import Disposition, Message, Mode
from bargein.contracts.model import Text
from bargein.contracts.receipt import ReceiptStatus, StepKind
from bargein.contracts.tool import CallStatus, OpenQuestion, Question, QuestionKind
from bargein.models.script import Answer, Call, Expect, Say, Wait
from bargein.session.commands import Ask, Log
from bargein.session.decide import decide
from bargein.session.session import Session, TooLate
from bargein.session.snapshot import Run, SessionSnapshot, with_messages
from bargein.session.state import Lane, Pending, SessionState
from bargein.stores.memory import MemoryStore
from bargein.testing.engine_invariants import check_log
from bargein.tools import Decision, Policy, Rule, tool
from bargein.tools.ask import ask_tool
from bargein.tools.delegate import delegate_tool
from tests.session.family import check_family, delegating, holding, saying
from tests.session.laws import events_of
from tests.session.world import (
    LIMITS,
    WITHIN_S,
    a_world,
    answered,
    completes,
    until,
    wait_for,
)

pytestmark = pytest.mark.anyio

ASK = ask_tool()
ASKING = Answer([Say("Hm. "), Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})])
ANSWERED = Answer([Expect(result="yes"), Say("Tea it is.")])
CAREFUL = Policy(rules=(Rule(Decision.ASK, "write"),))


@tool
def write(name: str) -> str:
    """Write something."""
    return f"wrote {name}"


async def crashed(store: MemoryStore) -> MemoryStore:
    """Another store with what was durable."""
    copy = MemoryStore()
    copy.restore(store.snapshot())
    return copy


async def test_the_answer_is_the_result_and_carries_the_id() -> None:
    async with a_world([ASKING, ANSWERED], tools=[ASK]) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        (open_one,) = await session.questions()
        assert (open_one.id, open_one.turn, open_one.call_id) == ("t1_1_1_q1", "t1", "t1_1_1")
        assert (open_one.question.text, open_one.question.choices) == ("Tea?", ("yes", "no"))
        assert await session.answer(open_one.id, "yes", by="anna") is None
        assert (await answered(sent)).text == "Tea it is."
        assert await session.questions() == ()
        with pytest.raises(TooLate):
            await session.answer(open_one.id, "no")
        closed = [e for e in events_of(await session.events()) if isinstance(e, QuestionClosed)]
        assert [(e.answer, e.by) for e in closed] == [("yes", "anna")]
        await world.check()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("yes", "wrote it"),
        (" Y ", "wrote it"),
        ("allow", "wrote it"),
        ("1", "wrote it"),
        ("no", "did not allow"),
        (
            "yes, but later",
            "did not allow this call; nothing happened. The user answered: yes, but later",
        ),
    ],
)
async def test_an_approval_is_given_in_any_of_its_words_and_nothing_else(
    words: str, told: str
) -> None:
    script = [
        Answer([Call("write", {"name": "it"})]),
        Answer([Expect(result=told), Say("Well.")]),
    ]
    async with a_world(script, tools=[write], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        (open_one,) = await session.questions()
        await session.answer(open_one.id, words)
        assert (await answered(sent)).text == "Well."
        await world.check()


@pytest.mark.parametrize("mode", ["steer", "queue"])
async def test_a_message_typed_meanwhile_answers_nothing_and_is_not_swallowed(mode: str) -> None:
    after = [ANSWERED, Answer([Say("Milk.")])]
    async with a_world([ASKING, *after], tools=[ASK]) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        other = await session.send("yes", mode=mode)
        assert len(await session.questions()) == 1
        assert [item.message.id for item in await session.inbox()] == [other.message]
        await session.answer("t1_1_1_q1", "yes")
        assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
        assert (await answered(other)).outcome is TurnOutcome.COMPLETED
        taken = [e for e in events_of(await session.events()) if isinstance(e, TurnStarted)]
        assert len(taken) == (1 if mode == "steer" else 2)
        await world.check()


async def test_a_stop_ends_the_wait_and_a_later_answer_is_too_late() -> None:
    async with a_world([ASKING, Answer([Say("Next")])], tools=[ASK]) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        receipt = await session.interrupt()
        assert receipt.elapsed_ms < 1000 * LIMITS.call_grace_s
        assert [s.name for s in receipt.steps if s.kind is StepKind.TOOL] == ["ask"]
        assert (await answered(sent)).outcome is TurnOutcome.STOPPED
        assert await session.questions() == ()
        with pytest.raises(TooLate):
            await session.answer("t1_1_1_q1", "yes")
        await completes(session, "next")
        await world.check()


async def test_a_question_that_a_crash_left_open_is_answered_by_a_turn_and_once() -> None:
    async with a_world([ASKING], tools=[ASK]) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        store = await crashed(world.store)
    script = [Answer([Expect(user="Tea?"), Say("Tea after all.")], when="Tea")]
    async with a_world(script, tools=[ASK], store=store) as world:
        session = await world.session()
        await session.settled()
        (open_one,) = await session.questions()
        assert (open_one.id, open_one.turn) == ("t1_1_1_q1", "t1")
        sent = await session.answer(open_one.id, "yes", by="anna")
        assert sent is not None
        with pytest.raises(TooLate):
            await session.answer(open_one.id, "yes", by="anna")
        assert (await answered(sent)).text == "Tea after all."
        log = events_of(await session.events())
        ended = next(e for e in log if isinstance(e, CallEnded))
        assert ended.result.status is CallStatus.NOT_STARTED
        assert "will come as a message" in str(ended.result.content)
        accepted = [e.message for e in log if isinstance(e, MessageAccepted)][-1]
        assert accepted.sender == "anna"
        assert accepted.text.endswith("[The answer:] yes")
        outcomes = [e.outcome for e in log if isinstance(e, TurnSettled)]
        assert outcomes == [TurnOutcome.CRASHED, TurnOutcome.COMPLETED]
        check_log(await session.events()).check_all_ran()
        await world.check()


async def test_a_question_survives_an_orderly_restart_and_an_approval_too() -> None:
    script = [Answer([Call("ask", {"question": "Tea?"}), Call("write", {"name": "a"})])]
    async with a_world(script, tools=[ASK, write], policy=CAREFUL) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked, 2)
        store = world.store
    script = [
        Answer([Expect(user="needed the user's approval"), Say("Again then.")], when="needed"),
        Answer([Say("Tea.")], when="Tea"),
    ]
    async with a_world(script, tools=[ASK, write], policy=CAREFUL, store=store) as world:
        session = await world.session()
        kinds = {each.question.kind: each.id for each in await session.questions()}
        assert set(kinds) == {QuestionKind.QUESTION, QuestionKind.APPROVAL}
        for kind in (QuestionKind.APPROVAL, QuestionKind.QUESTION):
            sent = await session.answer(kinds[kind], "allow")
            assert sent is not None
            assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
        await world.check()


WRITING = Answer([Call("write", {"name": "a"})], when="go")


async def allowed_late(store: MemoryStore, script: list[Answer], answer: str) -> list[Event]:
    """The log of a session whose approval was answered after a crash, in the turn that this began;
    what is asked then is denied."""
    async with a_world(script, tools=[write], policy=CAREFUL, store=store) as world:
        session = await world.session()
        await session.settled()
        (left,) = await session.questions()
        sent = await session.answer(left.id, answer, by="anna")
        assert sent is not None
        async with anyio.create_task_group() as group:
            group.start_soon(deny_all, session)
            assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
            group.cancel_scope.cancel()
        check_log(await session.events()).check_all_ran()
        await world.check()
        return events_of(await session.events())


async def deny_all(session: Session) -> None:
    async for event in session.watch(after=len(await session.events())):
        if isinstance(event, Recorded) and isinstance(event.event, QuestionAsked):
            await session.answer(event.event.id, "deny")


async def cut_while_asking() -> MemoryStore:
    async with a_world([WRITING], tools=[write], policy=CAREFUL) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        return await crashed(world.store)


def statuses(log: list[Event]) -> list[CallStatus]:
    return [event.result.status for event in log if isinstance(event, CallEnded)]


def times_asked(log: list[Event]) -> int:
    return len([event for event in log if isinstance(event, QuestionAsked)])


async def test_a_yes_that_came_late_is_for_the_same_call_once() -> None:
    again = Call("write", '{ "name":"a" }')
    script = [
        Answer([Expect(user="make the same call again"), again], when="needed"),
        Answer([Expect(result="wrote a"), again], when="needed"),
        Answer([Expect(result="did not allow"), Say("Once.")], when="needed"),
    ]
    log = await allowed_late(await cut_while_asking(), script, "allow")
    first = CallStatus.NOT_STARTED
    assert statuses(log) == [first, CallStatus.FINISHED, CallStatus.NOT_STARTED]
    assert times_asked(log) == 2


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [("deny", {"name": "a"}), ("maybe", {"name": "a"}), ("allow", {"name": "b"})],
)
async def test_another_answer_and_another_call_are_asked_about_again(
    answer: str, arguments: dict[str, object]
) -> None:
    script = [
        Answer([Call("write", arguments)], when="needed"),
        Answer([Expect(result="did not allow"), Say("No.")], when="needed"),
    ]
    log = await allowed_late(await cut_while_asking(), script, answer)
    assert times_asked(log) == 2
    assert CallStatus.FINISHED not in statuses(log)


async def test_a_late_yes_that_was_edited_while_it_waited_allows_nothing() -> None:
    script = [
        Answer([Say("One. "), Wait("hold")], when="other"),
        Answer([Call("write", {"name": "a"})], when="rather not"),
        Answer([Expect(result="did not allow"), Say("No.")], when="rather not"),
    ]
    store = await cut_while_asking()
    async with a_world(script, tools=[write], policy=CAREFUL, store=store) as world:
        session = await world.session()
        await session.settled()
        (left,) = await session.questions()
        await session.send("other")
        await world.model.gate("hold").reached()
        await session.pause()
        sent = await session.answer(left.id, "allow")
        assert sent is not None
        await session.edit(sent.message, "rather not")
        await session.resume()
        await wait_for(session, QuestionAsked, 2)
        await session.answer((await session.questions())[0].id, "deny")
        assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
        await world.check()


def test_nor_does_it_after_a_restart() -> None:
    yes = Message(
        "m1", "anna", Mode.STEER, (), allows=OpenQuestion("q1", "t1", Question("may it?"))
    )
    log: list[Event] = [
        MessageAccepted(yes, Disposition.QUEUED),
        MessageEdited("m1", (Text("no"),), "anna"),
    ]
    snapshot = SessionSnapshot(SessionState(), (Run("m1", Lane.NEXT, 1),))
    state = with_messages("s", snapshot, [Recorded(n, 0.0, e) for n, e in enumerate(log, 1)])
    assert [(each.message.text, each.message.allows) for each in state.waiting] == [("no", None)]


async def test_a_late_yes_to_a_sub_agent_allows_its_parent_nothing() -> None:
    """The parent's own call, which began the sub-agent, needs a yes of its own."""
    careful = Policy(rules=(Rule(Decision.ASK, "write"), Rule(Decision.ASK, "delegate")))
    tools = [write, delegate_tool()]
    script = [delegating("go", "ann"), Answer([Call("write", {"name": "a"})], when="ann")]
    async with a_world(script, tools=tools, policy=careful) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        await session.answer((await session.questions())[0].id, "allow")
        await wait_for(session, QuestionAsked, 2)
        (open_one,) = await session.questions()
        assert "sub-agent" in open_one.question.detail
        store = await crashed(world.store)
    script = [
        delegating("needed", "ann"),
        Answer([Expect(result="did not allow"), Say("No.")], when="needed"),
    ]
    async with a_world(script, tools=tools, policy=careful, store=store) as world:
        session = await world.session()
        await session.settled()
        sent = await session.answer(open_one.id, "allow")
        assert sent is not None
        await wait_for(session, QuestionAsked, 3)
        await session.answer((await session.questions())[0].id, "deny")
        assert (await answered(sent)).outcome is TurnOutcome.COMPLETED
        await check_family(world)


async def test_what_the_user_stopped_is_not_asked_again_though_the_program_ends_then() -> None:
    async with a_world([ASKING], tools=[ASK]) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        assert session.interrupt_now(by="anna").landed
        store = world.store
    async with a_world([], tools=[ASK], store=store) as world:
        session = await world.session()
        assert await session.questions() == ()
        await world.check()


async def test_one_that_was_left_open_can_be_dismissed_and_one_that_is_waited_for_cannot() -> None:
    async with a_world([ASKING, ANSWERED], tools=[ASK]) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        with pytest.raises(TooLate, match="has a waiting call; stop that"):
            await session.dismiss("t1_1_1_q1")
        store = await crashed(world.store)
    async with a_world([], tools=[ASK], store=store) as world:
        session = await world.session()
        await session.settled()
        await session.dismiss("t1_1_1_q1", by="anna")
        assert await session.questions() == ()
        with pytest.raises(TooLate):
            await session.answer("t1_1_1_q1", "yes")
        assert (
            len([e for e in events_of(await session.events()) if isinstance(e, TurnStarted)]) == 1
        )


async def test_an_answer_to_what_was_left_open_joins_a_turn_that_runs() -> None:
    async with a_world([ASKING], tools=[ASK]) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        store = await crashed(world.store)
    script = [
        Answer([Say("One. "), Wait("hold")], when="other"),
        Answer([Expect(user="Tea?"), Say("Both.")], when="Tea"),
    ]
    async with a_world(script, tools=[ASK], store=store) as world:
        session = await world.session()
        other = await session.send("other")
        await world.model.gate("hold").reached()
        sent = await session.answer("t1_1_1_q1", "yes")
        assert sent is not None
        assert (await answered(sent)).turn == (await answered(other)).turn
        await world.check()


async def test_what_a_sub_agent_asks_is_asked_at_its_root_and_answered_there() -> None:
    script = [
        delegating("go", "middle"),
        delegating("middle", "ann"),
        Answer([Call("ask", {"question": "Tea?"})], when="ann"),
        Answer([Expect(result="yes"), Say("Tea it is.")], when="ann"),
        saying("middle", Say("Middle.")),
        saying("go", Say("Done.")),
    ]
    async with a_world(script, tools=[ASK, delegate_tool()]) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        (open_one,) = await session.questions()
        child = "alice/t1_1_1.1/t1_1_1.1"
        assert child in open_one.question.detail
        assert "/" not in open_one.id
        for name in ("alice/t1_1_1.1", child):
            handle = await world.engine.session(name)
            assert [each.id for each in await handle.questions()] == [open_one.id]
        await session.answer(open_one.id, "yes", by="anna")
        with pytest.raises(TooLate):
            await (await world.engine.session(child)).answer(open_one.id, "no")
        assert (await answered(sent)).text == "Done."
        logs = await check_family(world)
        for log in logs.values():
            closed = [e for e in events_of(log) if isinstance(e, QuestionClosed)]
            assert [(e.answer, e.by) for e in closed] == [("yes", "anna")]


async def test_the_question_of_a_sub_agent_that_is_stopped_is_closed_everywhere() -> None:
    script = [
        delegating("go", "ann", "ben"),
        Answer([Call("write", {"name": "x"})], when="ann"),
        holding("ben"),
        saying("go", Say("Done.")),
    ]
    async with a_world(script, tools=[write, delegate_tool()], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        await world.model.gate("ben").reached()
        (open_one,) = await session.questions()
        receipt = await session.interrupt(scope="child", target="alice/t1_1_1.1")
        assert receipt.status is ReceiptStatus.STOPPED
        await until(lambda: not world.engine.state("alice").questions)  # type: ignore[union-attr]
        with pytest.raises(TooLate):
            await session.answer(open_one.id, "allow")
        world.model.gate("ben").open()
        assert (await answered(sent)).text == "Done."
        await check_family(world)


async def test_the_question_of_a_sub_agent_is_answered_by_its_root_after_a_crash() -> None:
    script = [
        delegating("go", "ann"),
        Answer([Call("ask", {"question": "Tea?"})], when="ann"),
    ]
    tools = [ASK, delegate_tool()]
    async with a_world(script, tools=tools) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        store = await crashed(world.store)
    async with a_world([Answer([Say("Tea.")], when="Tea")], tools=tools, store=store) as world:
        session = await world.session()
        await session.settled()
        (open_one,) = await session.questions()
        child = await world.engine.session("alice/t1_1_1.1")
        assert await child.questions() == ()
        sent = await session.answer(open_one.id, "yes")
        assert sent is not None
        assert (await answered(sent)).text == "Tea."
        await check_family(world)


async def test_only_so_many_are_left_open() -> None:
    left = [Pending(OpenQuestion(f"q{n}", "t1", Question("?")), live=False) for n in range(50)]
    state, effects = decide(
        SessionState(questions=tuple(left)), Ask(OpenQuestion("new", "t2", Question("?")))
    )
    assert [each.asked.id for each in state.questions] == [f"q{n}" for n in range(1, 50)] + ["new"]
    logged = [event for each in effects if isinstance(each, Log) for event in each.events]
    assert logged == [QuestionClosed("q0"), QuestionAsked("t2", "new", Question("?"))]


async def test_a_stop_that_the_store_lost_leaves_no_question_open() -> None:
    """The session comes back, and knows of the stop from memory (found by seed 91007985)."""
    async with a_world([ASKING, [Say("Next.")]], tools=[ASK]) as world:
        session = await world.session()
        await session.send("go")
        await wait_for(session, QuestionAsked)
        (open_one,) = await session.questions()
        world.held_store.fail_next(QuestionClosed)
        with anyio.fail_after(WITHIN_S):
            receipt = await session.interrupt()
            assert not receipt.stored
            await session.settled()
        assert await session.questions() == ()
        with pytest.raises(TooLate):
            await session.answer(open_one.id, "yes")
        assert (await completes(session, "next")).turn == "t2"
        await world.check()
