"""Plan and run: every outcome of a call, reported truthfully, on every loop."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import msgspec
import pytest

from bargein.cancel import Cancelled, TaskOwner, Token, abandoned, current_token
from bargein.contracts.grace import BLIND_S, TOOL_S
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, CallStatus, Effect, PlannedCall, Refused
from bargein.errors import ModelMisbehaved
from bargein.tools import ToolContext, ToolRegistry, invoke, tool
from bargein.tools.context import WAITING_CHARS_MAX
from tests.tools.desk import Desk, call, text_of, until, with_enough_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


@pytest.fixture
async def owner() -> AsyncIterator[TaskOwner]:
    async with TaskOwner() as owner:
        yield owner


async def in_background(
    start: Callable[[], Awaitable[CallResult]], when: Callable[[], Awaitable[object]]
) -> CallResult:
    """Start a call, do something while it runs, and give its result."""
    results: list[CallResult] = []

    async def work() -> None:
        results.append(await start())

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await when()
    return results[0]


async def test_sync_and_async_functions_run_and_finish(owner: TaskOwner, desk: Desk) -> None:
    main = threading.get_ident()

    @tool
    def double(number: int) -> int:
        assert threading.get_ident() != main
        return 2 * number

    @tool
    async def shout(text: str) -> str:
        assert threading.get_ident() == main
        return text.upper()

    registry = ToolRegistry([double, shout])
    result = await invoke(registry, call("double", number=21), desk.context())
    assert (result.status, text_of(result)) == (CallStatus.FINISHED, "42")
    result = await invoke(registry, call("shout", text="hi"), desk.context())
    assert (result.status, text_of(result), result.is_error) == (CallStatus.FINISHED, "HI", False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", (Text("text"),)),
        (None, (Text("Done."),)),
        ({"a": [1, 2]}, (Text('{"a":[1,2]}'),)),
        ([], (Text("[]"),)),
        (Image("image/png", b"x"), (Image("image/png", b"x"),)),
        ([Text("a"), Image("image/png", b"x")], (Text("a"), Image("image/png", b"x"))),
    ],
)
async def test_what_is_returned_is_shown(
    owner: TaskOwner, desk: Desk, value: object, shown: object
) -> None:
    @tool
    async def give() -> object:
        return value

    registry = ToolRegistry([give])
    result = await invoke(registry, call("give"), desk.context())
    assert result.content == shown


async def test_a_long_result_is_cut_in_the_middle_and_says_so(owner: TaskOwner, desk: Desk) -> None:
    @tool
    async def flood() -> str:
        return "x" * 1_000_000 + "END"

    registry = ToolRegistry([flood])
    text = text_of(await invoke(registry, call("flood"), desk.context()))
    assert len(text) < 70_000
    assert "[... 936003 characters left out ...]" in text
    assert text.endswith("END")


async def test_failures_are_told_in_words(owner: TaskOwner, desk: Desk) -> None:
    @tool
    def divide(number: int) -> float:
        return 1 / number

    @tool
    async def refuse() -> str:
        raise ModelMisbehaved("Say please.")

    @tool
    async def unusable() -> object:
        return object()

    @tool
    def leave() -> str:
        raise SystemExit(3)

    registry = ToolRegistry([divide, refuse, unusable, leave])
    expected = {
        "refuse": "Say please.",
        "unusable": "has no JSON form",
        "leave": "SystemExit: 3",
    }
    result = await invoke(registry, call("divide", number=0), desk.context())
    assert result.status is CallStatus.FAILED
    assert "ZeroDivisionError: division by zero" in text_of(result)
    for name, words in expected.items():
        result = await invoke(registry, call(name), desk.context())
        assert result.status is CallStatus.FAILED
        assert words in text_of(result)


async def test_an_unknown_tool_and_bad_arguments_are_refused_with_help(
    owner: TaskOwner, desk: Desk
) -> None:
    @tool
    def double(number: int) -> int:
        return 2 * number

    registry = ToolRegistry([double])
    planned = registry.plan(call("dubble"))
    assert isinstance(planned, Refused)
    assert "Did you mean double? The tools are: double." in planned.content
    result = await invoke(registry, call("double", number="x"), desk.context())
    assert result.status is CallStatus.NOT_STARTED
    assert "`number` must be a whole number" in text_of(result)


async def test_a_plan_tells_effect_title_and_resources_and_does_nothing(owner: TaskOwner) -> None:
    ran = []

    @tool(effect=Effect.IDEMPOTENT, resources=lambda arguments: [f"file:{arguments['path']}"])
    def touch(path: str) -> None:
        ran.append(path)

    registry = ToolRegistry([touch])
    planned = registry.plan(call("touch", path="a\nb"))
    assert isinstance(planned, PlannedCall)
    assert planned.effect is Effect.IDEMPOTENT
    assert planned.title == "touch: a b"
    assert planned.resources == ("file:a\nb",)
    assert planned.approval is None
    assert ran == []


async def test_a_plan_survives_a_resources_function_that_raises(owner: TaskOwner) -> None:
    @tool(resources=lambda arguments: arguments["nothing"])
    def touch(path: str) -> None: ...

    planned = ToolRegistry([touch]).plan(call("touch", path="a"))
    assert isinstance(planned, Refused)
    assert "touch cannot be called: KeyError" in planned.content


async def test_a_call_under_a_cancelled_token_is_not_started(owner: TaskOwner, desk: Desk) -> None:
    ran = []

    @tool
    async def act() -> None:
        ran.append(1)

    @tool
    def act_in_thread() -> None:
        ran.append(2)

    registry = ToolRegistry([act, act_in_thread])
    desk.stop()
    for name in ("act", "act_in_thread"):
        result = await invoke(registry, call(name), desk.context())
        assert result.status is CallStatus.NOT_STARTED
        assert "the user stopped it (Ctrl-C) before this call began. Nothing happened." in text_of(
            result
        )
    assert ran == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_stop_before_the_first_step_of_the_task_calls_nothing(
    owner: TaskOwner, desk: Desk
) -> None:
    """Tasks of asyncio begin in the order in which they were made: the stop comes in between."""
    ran = []

    @tool
    async def act() -> None:
        ran.append(1)

    async def stop() -> None:
        desk.stop()

    registry = ToolRegistry([act])
    results: list[CallResult] = []

    async def start() -> None:
        results.append(await invoke(registry, call("act"), desk.context()))

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        group.start_soon(stop)
    assert (results[0].status, ran) == (CallStatus.NOT_STARTED, [])


async def test_an_async_tool_is_stopped_at_its_await(owner: TaskOwner, desk: Desk) -> None:
    began = anyio.Event()
    cleaned = []

    @tool(effect=Effect.UNKNOWN)
    async def act(context: ToolContext) -> None:
        context.emit("half of it\n")
        began.set()
        try:
            await anyio.sleep(60)
        finally:
            cleaned.append(current_token())

    async def stop() -> None:
        await began.wait()
        desk.stop()

    registry = ToolRegistry([act])
    result = await in_background(lambda: invoke(registry, call("act"), desk.context()), stop)
    assert result.status is CallStatus.STOPPED
    assert re.match(r"Stopped after \d+\.\d", text_of(result))
    assert "the user stopped it (Ctrl-C)" in text_of(result)
    assert "may have happened in part" in text_of(result)
    assert text_of(result).endswith("Output so far:\nhalf of it\n")
    assert result.stop is not None
    assert result.stop.elapsed_ms < 30_000
    assert len(cleaned) == 1
    assert desk.live == ["half of it\n"]


async def test_a_thread_is_stopped_by_its_token(owner: TaskOwner, desk: Desk) -> None:
    began = anyio.Event()

    @tool(effect=Effect.NONE)
    def act(token: Token, context: ToolContext) -> None:
        context.emit("here")
        token.sleep(60)

    registry = ToolRegistry([act])
    context = msgspec.structs.replace(desk.context(), emit=lambda text: began.set())

    async def stop() -> None:
        await began.wait()
        desk.stop()

    result = await in_background(lambda: invoke(registry, call("act"), context), stop)
    assert result.status is CallStatus.STOPPED
    assert "It changes nothing, so nothing is half done." in text_of(result)


async def test_a_loop_that_never_looks_is_stopped_by_raise(owner: TaskOwner, desk: Desk) -> None:
    entered = threading.Event()

    @tool(stop="raise", grace_s=10)
    def spin() -> None:
        entered.set()
        number = 0
        while True:
            number += 1

    async def stop() -> None:
        await until(entered.is_set)
        desk.stop()

    registry = ToolRegistry([spin])
    result = await in_background(lambda: invoke(registry, call("spin"), desk.context()), stop)
    assert result.status is CallStatus.STOPPED


async def test_a_stop_that_comes_too_late_is_finished(owner: TaskOwner, desk: Desk) -> None:
    @tool
    async def act() -> str:
        desk.stop()
        return "all of it"

    @tool(grace_s=30)
    def act_in_thread() -> str:
        other.stop()
        return "all of it"

    other = Desk()
    registry = ToolRegistry([act, act_in_thread])
    for name, where in (("act", desk), ("act_in_thread", other)):
        result = await invoke(registry, call(name), where.context())
        assert (result.status, text_of(result)) == (CallStatus.FINISHED, "all of it")
        assert where.turn.token.cancelled


async def test_an_error_after_the_cancel_is_a_stop_and_no_failure(
    owner: TaskOwner, desk: Desk
) -> None:
    @tool
    async def act() -> None:
        desk.stop()
        raise ConnectionError("connection closed")

    registry = ToolRegistry([act])
    result = await invoke(registry, call("act"), desk.context())
    assert result.status is CallStatus.STOPPED
    assert "It ended with ConnectionError: connection closed." in text_of(result)


async def test_a_time_limit_stops_the_call_and_not_the_turn(owner: TaskOwner, desk: Desk) -> None:
    @tool(timeout_s=lambda arguments: float(arguments["limit_s"]))
    async def act(limit_s: float) -> None:
        await anyio.sleep(60)

    registry = ToolRegistry([act])
    result, limit_s = await with_enough_time(
        lambda limit_s: invoke(registry, call("act", limit_s=limit_s), desk.context()),
        lambda result: result.status is not CallStatus.NOT_STARTED,
        0.05,
    )
    assert result.status is CallStatus.STOPPED
    assert f"its time limit of {limit_s:g} s was reached" in text_of(result)
    assert not desk.turn.token.cancelled


async def test_a_coroutine_that_swallows_cancels_is_abandoned(owner: TaskOwner, desk: Desk) -> None:
    began, may_end = anyio.Event(), anyio.Event()

    @tool(grace_s=0.1)
    async def cling() -> None:
        with anyio.CancelScope(shield=True):
            began.set()
            await may_end.wait()

    async def stop() -> None:
        await began.wait()
        desk.stop()

    registry = ToolRegistry([cling])
    result = await in_background(lambda: invoke(registry, call("cling"), desk.context()), stop)
    assert result.status is CallStatus.ABANDONED
    assert "did not stop within 0.1 s and was given up. It may still be running" in text_of(result)
    assert result.stop is not None
    assert not result.stop.confirmed
    may_end.set()


async def test_a_thread_that_does_not_stop_is_abandoned_and_fenced(
    owner: TaskOwner, desk: Desk
) -> None:
    entered, may_end, over = threading.Event(), threading.Event(), threading.Event()

    @tool(grace_s=0.1)
    def cling(context: ToolContext) -> str:
        entered.set()
        may_end.wait(10)
        context.emit("late")
        over.set()
        return "late"

    async def stop() -> None:
        await until(entered.is_set)
        desk.stop()

    registry = ToolRegistry([cling])
    result = await in_background(lambda: invoke(registry, call("cling"), desk.context()), stop)
    assert result.status is CallStatus.ABANDONED
    assert [each.name for each in abandoned()] == ["cling"]
    may_end.set()
    await until(lambda: over.is_set() and not abandoned())
    await anyio.lowlevel.checkpoint()
    assert desk.live == []


async def test_a_thread_that_is_given_no_token_is_not_waited_for_as_if_it_could_look(
    owner: TaskOwner, desk: Desk
) -> None:
    entered, may_end = threading.Event(), threading.Event()

    @tool
    def blind() -> None:
        entered.set()
        may_end.wait(10)

    async def stop() -> None:
        await until(entered.is_set)
        desk.stop()

    registry = ToolRegistry([blind])
    result = await in_background(lambda: invoke(registry, call("blind"), desk.context()), stop)
    assert result.status is CallStatus.ABANDONED
    assert f"did not stop within {BLIND_S:g} s" in text_of(result)
    may_end.set()
    await until(lambda: not abandoned())


def test_how_long_a_function_may_take_to_stop_depends_on_what_it_can_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind() -> None:
        """Hears of nothing."""

    def seeing(token: Token) -> None:
        """Can look."""

    async def awaits() -> None:
        """Is cancelled."""

    monkeypatch.undo()
    assert tool(blind).grace_s == BLIND_S < TOOL_S
    assert tool(seeing).grace_s == tool(awaits).grace_s == TOOL_S
    assert tool(stop="raise")(blind).grace_s == TOOL_S
    assert tool(grace_s=2.5)(blind).grace_s == 2.5


async def test_a_thread_that_emits_without_end_is_bounded_and_keeps_its_order(
    owner: TaskOwner, desk: Desk
) -> None:
    entered, emitted = threading.Event(), threading.Event()

    @tool
    def flood(context: ToolContext) -> str:
        context.emit("first\n")
        entered.set()
        for _ in range(300):
            context.emit("x" * 10_000)
        emitted.set()
        return "done"

    async def hold_the_loop() -> None:
        await until(entered.is_set)
        emitted.wait(10)

    registry = ToolRegistry([flood])
    result = await in_background(
        lambda: invoke(registry, call("flood"), desk.context()), hold_the_loop
    )
    assert result.status is CallStatus.FINISHED
    await until(lambda: "left out" in "".join(desk.live))
    assert "".join(desk.live).startswith("first\nxxx")
    assert sum(map(len, desk.live)) < 2 * WAITING_CHARS_MAX


async def test_calls_run_side_by_side(owner: TaskOwner, desk: Desk) -> None:
    barrier = threading.Barrier(4, timeout=10)

    @tool
    def meet() -> int:
        return barrier.wait()

    registry = ToolRegistry([meet])
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(invoke, registry, call("meet"), desk.context(call_id=f"c{number}"))
    assert not barrier.broken


async def test_a_call_reaches_others_below_its_own_token(owner: TaskOwner, desk: Desk) -> None:
    began = anyio.Event()
    tokens: list[Token] = []

    @tool
    async def inner(text: str) -> str:
        token = current_token()
        assert token is not None
        tokens.append(token)
        began.set()
        await anyio.sleep(60)
        return text

    @tool
    async def outer(context: ToolContext) -> str:
        tokens.append(context.token)
        result = await context.call("inner", {"text": "x"})
        return result.status

    async def stop() -> None:
        await began.wait()
        desk.stop()

    registry = ToolRegistry([inner, outer])
    result = await in_background(lambda: invoke(registry, call("outer"), desk.context()), stop)
    assert result.status is CallStatus.STOPPED
    assert all(token.cancelled for token in tokens)
    assert len(tokens) == 2


async def test_calls_that_call_themselves_for_ever_come_to_an_end(
    owner: TaskOwner, desk: Desk
) -> None:
    depth = 0

    @tool
    async def again(context: ToolContext) -> str:
        nonlocal depth
        depth += 1
        return text_of(await context.call("again"))

    registry = ToolRegistry([again])
    result = await invoke(registry, call("again"), desk.context())
    assert "may be nested 8 deep at most" in text_of(result)
    assert depth == 9


async def test_a_question_of_a_tool_is_ended_by_a_stop(owner: TaskOwner, desk: Desk) -> None:
    @tool
    async def choose(context: ToolContext) -> str:
        return await context.ask("Which?", choices=("a", "b"))

    registry = ToolRegistry([choose])
    desk.answer = lambda question: question.choices[1]
    assert text_of(await invoke(registry, call("choose"), desk.context())) == "b"
    desk.answer = None

    async def stop() -> None:
        await until(lambda: len(desk.asked) == 2)
        desk.stop()

    result = await in_background(lambda: invoke(registry, call("choose"), desk.context()), stop)
    assert result.status is CallStatus.STOPPED


async def test_cancelled_of_another_token_is_a_failure_and_no_stop(
    owner: TaskOwner, desk: Desk
) -> None:
    other = Desk()
    other.stop()

    @tool
    async def confused() -> None:
        raise Cancelled(other.turn.token)

    registry = ToolRegistry([confused])
    result = await invoke(registry, call("confused"), desk.context())
    assert result.status is CallStatus.FAILED


async def test_the_callers_own_cancel_passes_through_and_ends_the_call(
    owner: TaskOwner, desk: Desk
) -> None:
    ended = []

    @tool
    async def act() -> None:
        try:
            await anyio.sleep(60)
        finally:
            ended.append(1)

    registry = ToolRegistry([act])
    began_at = time.monotonic()
    with anyio.move_on_after(0.05) as scope:
        await invoke(registry, call("act"), desk.context())
    assert scope.cancelled_caught
    assert ended == [1]
    assert time.monotonic() - began_at < 30
    assert not desk.turn.token.cancelled


async def test_one_name_one_tool(owner: TaskOwner) -> None:
    def act() -> None: ...

    registry = ToolRegistry([act])
    with pytest.raises(ValueError, match="already a tool named 'act'"):
        registry.add(act)
    assert [schema.name for schema in registry.schemas()] == ["act"]
