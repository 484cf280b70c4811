"""Every call goes the same way: of the model, of a tool, of a toolbox that somebody else made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from bargein.calls.pipeline import invoke
from bargein.cancel import Cancelled, TaskOwner, Token
from bargein.contracts.event import CallEnded
from bargein.contracts.model import Text, ToolCall, ToolSchema
from bargein.contracts.tool import (
    CallContext,
    CallResult,
    CallStatus,
    Effect,
    PlannedCall,
    Question,
    Refused,
)
from bargein.models.script import Answer, Call, Say
from bargein.session.hooks import Hooks
from bargein.tools import Decision, Policy, Rule, ToolContext, ToolRegistry, tool
from tests.session.world import a_world
from tests.tools.desk import Desk, call, text_of

pytestmark = pytest.mark.anyio

ASK_ABOUT_INNER = Policy((Rule(Decision.ASK, "inner"),))


class Foreign:
    """A toolbox of somebody else, which knows nothing of registries and records."""

    def __init__(self, run: Callable[[CallContext], Awaitable[CallResult]]) -> None:
        self._run = run
        self.runs = anyio.Event()

    def schemas(self) -> tuple[ToolSchema, ...]:
        return ()

    def plan(self, asked: ToolCall) -> PlannedCall | Refused:
        return PlannedCall(asked, Effect.UNKNOWN, "a foreign call", grace_s=0.2)

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult:
        self.runs.set()
        return await self._run(context)


async def stopped_while_it_runs(toolbox: Foreign) -> CallResult:
    desk = Desk()
    results: list[CallResult] = []

    async def make_call() -> None:
        results.append(await invoke(toolbox, call("anything"), desk.context()))

    async with TaskOwner(), anyio.create_task_group() as group:
        group.start_soon(make_call)
        await toolbox.runs.wait()
        desk.stop()
    return results[0]


async def test_a_foreign_call_that_returns_in_spite_of_a_stop_has_finished() -> None:
    async def finish(context: CallContext) -> CallResult:
        await context.token.wait_async()
        return CallResult(CallStatus.FINISHED, (Text("done all the same"),))

    result = await stopped_while_it_runs(Foreign(finish))
    assert (result.status, text_of(result)) == (CallStatus.FINISHED, "done all the same")


async def test_a_foreign_call_that_heeds_the_stop_tells_what_it_had_put_out() -> None:
    async def heed(context: CallContext) -> CallResult:
        assert context.record is not None
        context.record.emit("half of it")
        await context.token.wait_async()
        raise Cancelled(context.token)

    result = await stopped_while_it_runs(Foreign(heed))
    assert result.status is CallStatus.STOPPED
    assert "the user stopped it" in text_of(result)
    assert "It may have happened in part or in whole." in text_of(result)
    assert text_of(result).endswith("Output so far:\nhalf of it")


async def test_a_foreign_call_that_heeds_nothing_is_abandoned_with_what_it_had_put_out() -> None:
    async def cling(context: CallContext) -> CallResult:
        assert context.record is not None
        context.record.emit("half of it")
        while True:
            try:
                await anyio.sleep(30)
            except BaseException:
                continue

    result = await stopped_while_it_runs(Foreign(cling))
    assert result.status is CallStatus.ABANDONED
    assert "did not stop within 0.2 s" in text_of(result)
    assert text_of(result).endswith("Output so far:\nhalf of it")


async def test_a_foreign_call_that_fails_says_how() -> None:
    async def fail(context: CallContext) -> CallResult:
        raise LookupError("no such page")

    async with TaskOwner():
        result = await invoke(Foreign(fail), call("anything"), Desk().context())
    assert (result.status, text_of(result)) == (CallStatus.FAILED, "LookupError: no such page")


@tool
async def outer(context: ToolContext) -> str:
    """Calls another tool."""
    result = await context.call("inner")
    return f"{result.status}: {text_of(result)}"


@tool
async def inner() -> str:
    """Is called."""
    return "inner ran"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("allow", "inner ran"),
        ("deny", "The user did not allow this call; nothing happened."),
        (
            "not now",
            "The user did not allow this call; nothing happened. The user answered: not now",
        ),
    ],
)
async def test_an_approval_is_the_same_for_a_call_of_the_model_and_one_of_a_tool(
    answer: str, told: str
) -> None:
    script = [
        Answer([Call("inner", {})], when="directly"),
        Answer([Call("outer", {})], when="through another"),
        Answer([Say("Done.")]),
        Answer([Say("Done.")]),
    ]
    async with a_world(script, tools=[outer, inner], policy=ASK_ABOUT_INNER) as world:
        session = await world.session()
        asked: list[Question] = []

        async def answer_all() -> None:
            async for seen in session.watch():
                for each in await session.questions():
                    asked.append(each.question)
                    await session.answer(each.id, answer)
                del seen

        async with anyio.create_task_group() as group:
            group.start_soon(answer_all)
            for words in ("directly", "through another"):
                await (await session.send(words)).result()
            group.cancel_scope.cancel()
        ends = [each.event for each in await session.events() if isinstance(each.event, CallEnded)]
    directly, through = (text_of(end.result) for end in ends)
    status = "finished" if answer == "allow" else "not_started"
    assert directly == told
    assert through == f"{status}: {told}"
    assert asked[0] == asked[1]


class Refuses(Hooks):
    def __init__(self) -> None:
        self.over: list[str] = []

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        return Refused("not by this hook") if planned.call.name == "inner" else None

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None:
        self.over.append(planned.call.name)


async def test_a_hook_meets_the_calls_that_calls_make() -> None:
    hooks = Refuses()
    script = [Answer([Call("outer", {})]), Answer([Say("Done.")])]
    async with a_world(script, tools=[outer, inner], hooks=hooks) as world:
        session = await world.session()
        await (await session.send("go")).result()
        ends = [each.event for each in await session.events() if isinstance(each.event, CallEnded)]
    assert text_of(ends[0].result) == "not_started: not by this hook"
    assert hooks.over == ["outer"]


async def test_a_call_below_what_has_ended_is_not_started() -> None:
    desk = Desk()
    context = desk.context()
    desk.turn.seal()
    async with TaskOwner():
        result = await invoke(ToolRegistry([inner]), call("inner"), context)
    assert result.status is CallStatus.NOT_STARTED


async def test_nobody_is_asked_for_a_call_that_was_stopped_before() -> None:
    desk = Desk()
    desk.stop()
    registry = ToolRegistry([inner], policy=ASK_ABOUT_INNER)
    async with TaskOwner():
        result = await invoke(registry, call("inner"), desk.context())
    assert result.status is CallStatus.NOT_STARTED
    assert desk.asked == []


async def test_a_time_limit_holds_for_one_that_swallows_it() -> None:
    @tool(timeout_s=0.05, grace_s=0.1)
    async def cling(token: Token) -> str:
        """Does not stop."""
        while True:
            try:
                await anyio.sleep(30)
            except BaseException:
                continue

    async with TaskOwner():
        result = await invoke(ToolRegistry([cling]), call("cling"), Desk().context())
    assert result.status is CallStatus.ABANDONED
    assert "its time limit of 0.05 s was reached" in text_of(result)
