"""Calls that declare the same resource run one after the other; all others side by side."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from bargein.cancel import TaskOwner, abandoned
from bargein.contracts.tool import CallResult, CallStatus
from bargein.tools import ToolContext, ToolRegistry, invoke, tool
from bargein.tools import registry as registry_module
from bargein.tools.declaration import Arguments
from bargein.tools.resources import ResourceBusy, ResourceTable
from tests.tools.desk import Desk, call, text_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


@pytest.fixture
async def owner() -> AsyncIterator[TaskOwner]:
    async with TaskOwner() as owner:
        yield owner


def named(arguments: Arguments) -> list[str]:
    names: list[str] = arguments["names"]
    return names


class Workbench:
    """A tool that records who is inside, and lets each out when told to."""

    def __init__(self, owner: TaskOwner) -> None:
        self.inside: list[str] = []
        self.order: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.results: dict[str, CallResult] = {}

        @tool(resources=named)
        async def use(who: str, names: list[str]) -> str:
            self.inside.append(who)
            self.order.append(who)
            try:
                await self.gates.setdefault(who, anyio.Event()).wait()
            finally:
                self.inside.remove(who)
            return who

        self.registry = ToolRegistry([use])

    async def start(self, desk: Desk, who: str, names: list[str]) -> None:
        self.results[who] = await invoke(
            self.registry, call("use", who=who, names=names), desk.context()
        )

    def let_out(self, who: str) -> None:
        self.gates.setdefault(who, anyio.Event()).set()


async def test_the_same_resource_is_used_in_order_of_arrival(owner: TaskOwner, desk: Desk) -> None:
    bench = Workbench(owner)
    async with anyio.create_task_group() as group:
        for who, names in [("a", ["x"]), ("b", ["x", "y"]), ("c", ["y"]), ("d", ["z"])]:
            group.start_soon(bench.start, desk, who, names)
            await anyio.wait_all_tasks_blocked()
        assert sorted(bench.inside) == ["a", "d"]
        bench.let_out("a")
        await until(lambda: "b" in bench.inside)
        # c came after b, so it waits for it though y was free all the time.
        assert "c" not in bench.inside
        for who in "bcd":
            bench.let_out(who)
    assert bench.order == ["a", "d", "b", "c"]
    assert bench.registry.resources.held() == ()


async def test_waiting_is_ended_by_a_stop_and_nothing_was_started(
    owner: TaskOwner, desk: Desk
) -> None:
    bench = Workbench(owner)
    other = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(bench.start, desk, "a", ["x"])
        await until(lambda: bench.inside == ["a"])
        group.start_soon(bench.start, other, "b", ["x"])
        await anyio.wait_all_tasks_blocked()
        other.stop()
        await until(lambda: "b" in bench.results)
        assert bench.results["b"].status is CallStatus.NOT_STARTED
        assert bench.inside == ["a"]
        group.start_soon(bench.start, desk, "c", ["x"])
        bench.let_out("a")
        bench.let_out("c")
    assert bench.order == ["a", "c"]
    assert bench.registry.resources.held() == ()


async def test_an_abandoned_call_holds_its_resource_until_it_really_ends(
    owner: TaskOwner, desk: Desk
) -> None:
    entered, may_end = threading.Event(), threading.Event()

    @tool(grace_s=0.05, resources=lambda arguments: ["file:a"])
    def cling() -> None:
        entered.set()
        may_end.wait(10)

    @tool(resources=lambda arguments: ["file:a"])
    def use() -> str:
        return "used"

    registry = ToolRegistry([cling, use])
    results: dict[str, CallResult] = {}
    other = Desk()

    async def start(name: str, where: Desk) -> None:
        results[name] = await invoke(registry, call(name), where.context())

    async with anyio.create_task_group() as group:
        group.start_soon(start, "cling", desk)
        await until(entered.is_set)
        group.start_soon(start, "use", other)
        await anyio.wait_all_tasks_blocked()
        desk.stop()
    assert results["cling"].status is CallStatus.ABANDONED
    # Both the one that waited behind it and the one that comes later are refused at once.
    later = await invoke(registry, call("use"), other.context())
    for result in (results["use"], later):
        assert result.status is CallStatus.NOT_STARTED
        assert "file:a is still held by an earlier call" in text_of(result)
        assert "cling" in text_of(result)
    may_end.set()
    await until(lambda: registry.resources.held() == ())
    assert (await invoke(registry, call("use"), other.context())).status is CallStatus.FINISHED


async def test_an_abandoned_coroutine_holds_its_resource_too(owner: TaskOwner, desk: Desk) -> None:
    began, may_end = anyio.Event(), anyio.Event()

    @tool(grace_s=0.05, resources=lambda arguments: ["db"])
    async def cling() -> None:
        with anyio.CancelScope(shield=True):
            began.set()
            await may_end.wait()

    registry = ToolRegistry([cling])
    async with anyio.create_task_group() as group:
        group.start_soon(invoke, registry, call("cling"), desk.context())
        await began.wait()
        desk.stop()
    assert registry.resources.held() == ("db",)
    may_end.set()
    await until(lambda: registry.resources.held() == ())


async def test_a_call_is_not_held_up_by_the_call_that_made_it_but_by_its_sibling(
    owner: TaskOwner, desk: Desk
) -> None:
    inside = 0
    together_max = 0

    @tool(resources=lambda arguments: ["x"])
    async def inner() -> str:
        nonlocal inside, together_max
        inside += 1
        together_max = max(together_max, inside)
        await anyio.sleep(0.01)
        inside -= 1
        return "done"

    @tool(resources=lambda arguments: ["x"])
    async def outer(context: ToolContext) -> str:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(context.call, "inner")
        return "all done"

    registry = ToolRegistry([inner, outer])
    result = await invoke(registry, call("outer"), desk.context())
    assert text_of(result) == "all done"
    assert together_max == 1


async def test_two_calls_that_would_wait_for_each_other_are_told(
    owner: TaskOwner, desk: Desk
) -> None:
    both_inside = anyio.Event()
    inside = []
    told: list[CallResult] = []

    @tool(resources=named)
    async def take(names: list[str], then: list[str], context: ToolContext) -> str:
        if not then:
            return "taken"
        inside.append(names)
        if len(inside) == 2:
            both_inside.set()
        await both_inside.wait()
        told.append(await context.call("take", {"names": then, "then": []}))
        return "done"

    registry = ToolRegistry([take])
    async with anyio.create_task_group() as group:
        for names, then in ((["x"], ["y"]), (["y"], ["x"])):
            group.start_soon(invoke, registry, call("take", names=names, then=then), desk.context())
    statuses = sorted(result.status for result in told)
    assert statuses == [CallStatus.FINISHED, CallStatus.NOT_STARTED]
    assert any("would wait forever" in text_of(result) for result in told)
    assert registry.resources.held() == ()


class Look:
    """A tool whose resource takes a look to name, which lasts until it is let go."""

    def __init__(self, owner: TaskOwner) -> None:
        self.looking = threading.Event()
        self.let_go = threading.Event()
        self.inside: list[str] = []
        self.entered = 0
        self.leave = anyio.Event()

        def find(arguments: Arguments) -> list[str]:
            if arguments["slow"]:
                self.looking.set()
                assert self.let_go.wait(20)
            if arguments["names"] == ["nowhere"]:
                raise FileNotFoundError("nowhere")
            return ["real x"]

        @tool(resources=named, resources_found=find)
        async def use(names: list[str], slow: bool = False) -> str:
            self.inside.append(names[0])
            self.entered += 1
            await self.leave.wait()
            self.inside.remove(names[0])
            return "used"

        self.registry = ToolRegistry([use])

    async def use(self, desk: Desk, results: list[CallResult], **arguments: object) -> None:
        results.append(await invoke(self.registry, call("use", **arguments), desk.context()))


async def test_calls_whose_names_lead_to_one_thing_run_one_after_the_other(
    owner: TaskOwner, desk: Desk
) -> None:
    look = Look(owner)
    results: list[CallResult] = []
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(partial(look.use, desk, results, names=[name]))
        await until(lambda: look.inside)
        await until(lambda: len(look.registry.resources.held()) == 4)
        assert len(look.inside) == 1
        look.leave.set()
    assert [result.status for result in results] == [CallStatus.FINISHED] * 3
    assert look.entered == 3
    assert look.registry.resources.held() == ()


async def test_a_look_that_hangs_holds_up_nobody_and_can_be_stopped(
    owner: TaskOwner, desk: Desk
) -> None:
    look = Look(owner)
    look.leave.set()
    results: list[CallResult] = []
    other = Desk()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: look.use(desk, results, names=["a"], slow=True))
            await until(look.looking.is_set)
            # Behind it in the line of its name, and stopped there.
            group.start_soon(lambda: look.use(desk, results, names=["a"]))
            await look.use(other, results, names=["b"])
            assert results[0].status is CallStatus.FINISHED
            desk.stop()
    finally:
        look.let_go.set()
    assert [result.status for result in results[1:]] == [CallStatus.NOT_STARTED] * 2
    assert "Nothing happened" in text_of(results[1])
    assert look.entered == 1
    assert look.registry.resources.held() == ()
    await until(lambda: abandoned() == [])


async def test_a_look_that_does_not_come_back_is_told(
    owner: TaskOwner, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "LOOK_S_MAX", 0.05)
    look = Look(owner)
    results: list[CallResult] = []
    try:
        await look.use(desk, results, names=["a"], slow=True)
        monkeypatch.undo()
        await look.use(desk, results, names=["nowhere"])
    finally:
        look.let_go.set()
    assert [result.status for result in results] == [CallStatus.NOT_STARTED] * 2
    assert "could not be found within 0.05 s" in text_of(results[0])
    assert text_of(results[1]) == "FileNotFoundError: nowhere"
    assert look.registry.resources.held() == ()
    await until(lambda: abandoned() == [])


async def test_a_table_with_many_waiters_lets_each_through_once() -> None:
    table = ResourceTable()
    order: list[int] = []

    async def use(number: int) -> None:
        hold = table.enter(str(number), (f"r{number % 3}", f"r{number % 5}"))
        try:
            await hold.wait()
            order.append(number)
            await anyio.lowlevel.checkpoint()
        finally:
            hold.leave()

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(use, number)
    assert sorted(order) == list(range(60))
    assert table.held() == ()


async def test_leaving_before_the_work_ends_refuses_and_ending_frees() -> None:
    table = ResourceTable()
    hold = table.enter("first", ("x",))
    hold.work_began()
    hold.leave()
    with pytest.raises(ResourceBusy, match="first"):
        table.enter("second", ("x",))
    hold.work_ended()
    table.enter("third", ("x",)).leave()
    assert table.held() == ()
