"""A message that says nobody will answer: its turn never waits for a question."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from bargein.calls.words import NOBODY_ANSWERS, NOBODY_APPROVES
from bargein.contracts.event import (
    CallStarted,
    InterruptLanded,
    QuestionAsked,
    QuestionClosed,
    TurnOutcome,
)
from bargein.contracts.message import QuestionPolicy
from bargein.models.script import Answer, Call, Expect, Say, Step
from bargein.session.session import Session
from bargein.stores.memory import MemoryStore
from bargein.tools import Decision, Policy, Rule, tool
from bargein.tools.ask import ask_tool
from bargein.tools.delegate import delegate_tool
from tests.session.family import check_family, delegating, saying
from tests.session.laws import events_of
from tests.session.world import WITHIN_S, Script, a_world, wait_for

pytestmark = pytest.mark.anyio

CAREFUL = Policy(rules=(Rule(Decision.ASK, "write"),))
WROTE: list[str] = []
BOTH: list[Step] = [Call("write", {"name": "x"}), Call("ask", {"question": "Tea?"})]
TOOLS = [ask_tool()]


@tool
def write(name: str) -> str:
    """Write something."""
    WROTE.append(name)
    return f"wrote {name}"


def waiting_for(event: anyio.Event) -> Callable[..., object]:
    @tool
    async def wait() -> str:
        """Wait."""
        await event.wait()
        return "waited"

    return wait


@pytest.fixture(autouse=True)
def _nothing_written() -> None:
    WROTE.clear()


@pytest.mark.parametrize("policy", [QuestionPolicy.REFUSE, QuestionPolicy.ALLOW])
async def test_questions_are_answered_at_once_in_plain_sight(policy: QuestionPolicy) -> None:
    async with a_world([BOTH, [Say("Done.")]], tools=[write, *TOOLS], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go", questions=policy, sender="anna")
        with anyio.fail_after(WITHIN_S):
            assert (await sent.result()).text == "Done."
        closed = [e for e in events_of(await world.log()) if isinstance(e, QuestionClosed)]
        call = "allow" if policy is QuestionPolicy.ALLOW else NOBODY_APPROVES
        assert sorted((e.answer, e.by) for e in closed) == sorted(
            (answer, f"anna (questions: {policy})") for answer in (call, NOBODY_ANSWERS)
        )
        assert (["x"] if policy is QuestionPolicy.ALLOW else []) == WROTE
        await world.check()


async def test_nobody_approves_in_advance_what_another_adds_to_the_turn() -> None:
    goes_on = anyio.Event()
    script: Script = [[Call("wait", {})], [Call("write", {"name": "x"})], [Say("Done.")]]
    async with a_world(script, tools=[write, waiting_for(goes_on)], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go", questions=QuestionPolicy.ALLOW, sender="anna")
        await wait_for(session, CallStarted)
        await session.send("rather write x", sender="tom")
        goes_on.set()
        await wait_for(session, QuestionAsked)
        (asked,) = await session.questions()
        assert not WROTE
        await session.answer(asked.id, "deny")
        with anyio.fail_after(WITHIN_S):
            await sent.result()
        assert not WROTE
        await world.check()


@pytest.mark.parametrize("editor", ["anna", "tom"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_words_that_another_changed_are_not_approved_in_advance(
    editor: str, restarts: bool
) -> None:
    goes_on = anyio.Event()
    tools, store = [write, waiting_for(goes_on)], MemoryStore()
    queued: Script = [[Call("write", {"name": "x"})], [Say("Done.")]]
    script: Script = [[Call("wait", {})], [Say("Waited.")], *queued]
    async with a_world(script, tools=tools, policy=CAREFUL) as world:
        session = await world.session()
        await session.send("first")
        await wait_for(session, CallStarted)
        allow = QuestionPolicy.ALLOW
        sent = await session.send("write y", mode="queue", questions=allow, sender="anna")
        await session.edit(sent.message, "write x", by=editor)
        store.restore(world.store.snapshot())
        if not restarts:
            goes_on.set()
            await _comes_to_write(session, asks=editor != "anna")
    if restarts:
        async with a_world(queued, tools=tools, policy=CAREFUL, store=store) as world:
            await _comes_to_write(await world.session(), asks=editor != "anna")


async def _comes_to_write(session: Session, *, asks: bool) -> None:
    if asks:
        await wait_for(session, QuestionAsked)
        (asked,) = await session.questions()
        await session.answer(asked.id, "deny")
    with anyio.fail_after(WITHIN_S):
        await session.settled()
    assert ([] if asks else ["x"]) == WROTE


async def test_a_question_ends_the_turn_if_that_is_what_was_said() -> None:
    script: Script = [BOTH, [Say("and on")]]
    async with a_world(script, tools=[write, *TOOLS], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go", questions=QuestionPolicy.ERROR, sender="anna")
        with anyio.fail_after(WITHIN_S):
            result = await sent.result()
        assert result.outcome is TurnOutcome.STOPPED
        events = events_of(await world.log())
        (landed,) = [e for e in events if isinstance(e, InterruptLanded)]
        assert landed.by == "anna (questions: error)"
        asked = [e.id for e in events if isinstance(e, QuestionAsked)]
        assert asked
        closed = [e.id for e in events if isinstance(e, QuestionClosed) and not e.answer]
        assert sorted(asked) == sorted(closed)
        assert not WROTE
        # It was for that turn, and the session is as good as before.
        assert (await (await session.send("again")).result()).text == "and on"
        await world.check()


@pytest.mark.parametrize("policy", [QuestionPolicy.ERROR, QuestionPolicy.REFUSE])
async def test_it_holds_for_sub_agents_too(policy: QuestionPolicy) -> None:
    script = [
        delegating("go", "ann"),
        Answer([Call("write", {"name": "x"})], when="ann"),
        Answer([Expect(result="denied"), Say("Not written.")], when="ann"),
        saying("go", Say("Done.")),
    ]
    async with a_world(script, tools=[write, delegate_tool()], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go", questions=policy)
        with anyio.fail_after(WITHIN_S):
            result = await sent.result()
        stopped = policy is QuestionPolicy.ERROR
        assert result.outcome is (TurnOutcome.STOPPED if stopped else TurnOutcome.COMPLETED)
        assert not WROTE
        await check_family(world)


async def test_it_is_kept_with_a_message_that_waits_for_a_restart() -> None:
    tools = [write, *TOOLS]
    async with a_world([BOTH], tools=tools, policy=CAREFUL) as world:
        session = await world.session()
        await session.send("first")
        await wait_for(session, QuestionAsked)
        await session.send("second", mode="queue", questions=QuestionPolicy.REFUSE)
        store = MemoryStore()
        store.restore(world.store.snapshot())
    script: Script = [BOTH, [Say("Without.")]]
    async with a_world(script, tools=tools, policy=CAREFUL, store=store) as world:
        session = await world.session()
        with anyio.fail_after(WITHIN_S):
            await session.settled()
        refused = [
            e.by
            for e in events_of(await world.log())
            if isinstance(e, QuestionClosed) and e.answer == NOBODY_APPROVES
        ]
        assert refused == ["user (questions: refuse)"]


async def test_without_a_word_about_it_a_question_waits() -> None:
    async with a_world([BOTH, [Say("Done.")]], tools=[write, *TOOLS], policy=CAREFUL) as world:
        session = await world.session()
        sent = await session.send("go")
        await wait_for(session, QuestionAsked)
        answered: set[str] = set()
        while len(answered) < 2:
            for each in await session.questions():
                answered.add(each.id)
                await session.answer(each.id, "allow")
            await anyio.lowlevel.checkpoint()
        assert (await sent.result()).text == "Done."
        assert WROTE == ["x"]
