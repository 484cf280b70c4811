"""A command with `background: true` is a call in the session's background: seen, stopped, told.

Real commands under the real engine; only the model is scripted.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bargein.contracts.event import (
    BackgroundEnded,
    CallDetached,
    CallStarted,
    Event,
    MessageAccepted,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import CallOutput
from bargein.contracts.receipt import ReceiptStatus, StepKind
from bargein.contracts.tool import CallStatus
from bargein.models.script import Call, Expect, Say, Step, Wait
from bargein.process import open_containment
from bargein.session.session import Session
from bargein.tools import ToolContext, tool
from bargein.tools.delegate import delegate_tool
from bargein.tools.standard import open_tool_environment, standard_tools
from bargein.tools.tool_environment import ToolSettings
from tests.conftest import BACKENDS, Backend
from tests.process import zoo
from tests.session.family import check_family, delegating, holding, saying
from tests.session.laws import events_of, outcomes, statuses
from tests.session.world import (
    Gate,
    HeldStore,
    Script,
    World,
    a_while,
    a_world,
    answered,
    completes,
    until,
    wait_for,
    watching,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

ID = "t1_1_1"
SERVER = "echo $$ > pid; echo ready; exec sleep 1000"


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio."""
    name: str = request.param
    return BACKENDS[name]


def starting(command: str = SERVER, **more: object) -> list[Step]:
    return [Call("terminal", {"command": command, "background": True, **more})]


@asynccontextmanager
async def house(
    script: Script,
    folder: Path,
    *,
    settings: ToolSettings | None = None,
    store: HeldStore | None = None,
    **changes: object,
) -> AsyncIterator[tuple[World, Session]]:
    """An engine with the built-in tools, and its session alice."""
    async with await open_containment() as containment:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        tool_environment = open_tool_environment(containment, folder, environment, settings)
        tools = [*standard_tools(tool_environment), delegate_tool()]
        options = {"store": store} if store is not None else {}
        async with a_world(script, tools=tools, **options, **changes) as world:  # type: ignore[arg-type]
            yield world, await world.session()


async def pid_in(folder: Path, name: str = "pid") -> int:
    path = folder / name
    await until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def turns_begun(events: Sequence[Event]) -> list[str]:
    return [each.turn for each in events if isinstance(each, TurnStarted)]


async def test_it_is_a_call_in_the_background_from_its_start(tmp_path: Path) -> None:
    script: Script = [starting(), [Expect(result="Started in the background as t1_1_1"), Say("Up")]]
    async with house(script, tmp_path) as (world, session), watching(session) as seen:
        assert (await completes(session, "Serve")).text == "Up"
        pid = await pid_in(tmp_path)
        assert (await session.state()).background == (ID,)
        log = events_of(await session.events())
        kinds = [type(each) for each in log]
        assert kinds.index(CallStarted) < kinds.index(CallDetached)
        assert statuses(await session.events()) == {ID: CallStatus.DETACHED}
        await until(lambda: any(isinstance(e, CallOutput) and "ready" in e.text for e in seen))
        assert zoo.runs(pid)
        await world.check()
    assert not zoo.runs(pid)


async def test_a_stop_of_the_session_tells_of_it_and_leads_to_no_turn(tmp_path: Path) -> None:
    async with house([starting(), [Say("Up")], [Say("Next")]], tmp_path) as (world, session):
        await completes(session, "Serve")
        pid = await pid_in(tmp_path)
        receipt = await session.interrupt(scope="session", by="anna")
        assert receipt.status is ReceiptStatus.STOPPED
        (step,) = receipt.steps
        assert (step.kind, step.name, step.call_id, step.status) == (
            StepKind.TOOL,
            "terminal",
            ID,
            CallStatus.STOPPED,
        )
        assert step.detail is not None
        assert pid in [each.pid for each in step.detail.processes]
        assert step.detail.confirmed
        assert not zoo.runs(pid)
        assert (receipt.held, receipt.stored) == (("bg-t1_1_1",), True)
        assert any(isinstance(e, BackgroundEnded) for e in events_of(await session.events()))
        await a_while()
        assert (await session.state()).turn is None
        assert turns_begun(events_of(await session.events())) == ["t1"]
        assert (await completes(session, "And?")).text == "Next"
        assert "in the background: stopped" in str(world.model.requests[-1].messages[-1])
        await world.check()


async def test_it_is_stopped_alone_and_the_other_one_and_the_turn_go_on(tmp_path: Path) -> None:
    other = starting("echo $$ > other; exec sleep 1000")
    heard: list[Step] = [
        Expect(user="in the background: stopped"),
        Say("Done"),
    ]
    script: Script = [[*starting(), *other], [Wait("hold"), Say("Up")], heard]
    async with house(script, tmp_path) as (world, session):
        sent = await session.send("Serve")
        await world.model.gate("hold").reached()
        pid, other_pid = await pid_in(tmp_path), await pid_in(tmp_path, "other")
        receipt = await session.interrupt(scope="call", target=ID)
        assert (receipt.status, [s.call_id for s in receipt.steps]) == ("stopped", [ID])
        assert not zoo.runs(pid)
        assert zoo.runs(other_pid)
        assert (await session.state()).background == ("t1_1_2",)
        assert (await session.state()).turn == "t1"
        world.model.gate("hold").open()
        assert (await answered(sent)).text == "Done"


@pytest.mark.parametrize("scope", ["session", "call"])
async def test_a_receipt_says_if_the_end_could_not_be_stored(tmp_path: Path, scope: str) -> None:
    async with house([starting(), [Say("Up")]], tmp_path) as (world, session):
        await completes(session, "Serve")
        pid = await pid_in(tmp_path)
        world.held_store.fail_next(BackgroundEnded)
        receipt = await session.interrupt(scope=scope, target=ID if scope == "call" else None)
        assert (receipt.status, receipt.stored) == (ReceiptStatus.STOPPED, False)
        assert not zoo.runs(pid)


async def test_a_stop_of_the_turn_leaves_it_alone(tmp_path: Path) -> None:
    async with house([starting(), [Wait("hold")]], tmp_path) as (world, session):
        await session.send("Serve")
        await world.model.gate("hold").reached()
        receipt = await session.interrupt()
        assert [step.kind for step in receipt.steps] == [StepKind.MODEL]
        assert zoo.runs(await pid_in(tmp_path))
        await world.check()


async def test_its_end_is_announced_and_told_to_the_model(tmp_path: Path) -> None:
    command = "while [ ! -e go ]; do sleep 0.02; done; echo broken; exit 3"
    heard: list[Step] = [Expect(user="broken"), Say("It broke")]
    async with house([starting(command), [Say("Up")], heard], tmp_path) as (world, session):
        await completes(session, "Serve")
        (tmp_path / "go").touch()
        await wait_for(session, TurnSettled, 2)
        log = await session.events()
        (ended,) = [e for e in events_of(log) if isinstance(e, BackgroundEnded)]
        assert (ended.call_id, ended.result.status) == (ID, CallStatus.FINISHED)
        assert ended.result.summary == "exit code 3"
        assert (await session.state()).background == ()
        await world.check()


async def test_one_that_the_model_ends_itself_is_not_told_to_it_again(tmp_path: Path) -> None:
    kill: list[Step] = [Call("process", {"action": "kill", "id": ID})]
    script: Script = [starting(), kill, [Expect(result="Killed t1_1_1"), Say("Over")]]
    async with house(script, tmp_path) as (world, session):
        assert (await completes(session, "Serve")).text == "Over"
        await session.settled()
        log = events_of(await session.events())
        (ended,) = [e for e in log if isinstance(e, BackgroundEnded)]
        assert ended.result.status is CallStatus.STOPPED
        assert ended.result.stop is not None
        assert ended.result.stop.processes != ()
        assert turns_begun(log) == ["t1"]
        assert [e.message.sender for e in log if isinstance(e, MessageAccepted)] == ["user"]
        await world.check()


async def test_one_whose_end_the_model_waited_for_is_not_told_again(tmp_path: Path) -> None:
    wait: list[Step] = [Call("process", {"action": "wait", "id": ID})]
    script: Script = [starting("echo over"), wait, [Expect(result="over"), Say("Good")]]
    async with house(script, tmp_path) as (world, session):
        assert (await completes(session, "Run")).text == "Good"
        await wait_for(session, BackgroundEnded)
        await a_while()
        log = events_of(await session.events())
        told = [e for e in log if isinstance(e, MessageAccepted) and e.message.sender != "user"]
        # It may have ended before the model asked; then the message was there first.
        assert len(turns_begun(log)) == 1 or told
        await world.check()


async def test_a_time_limit_of_its_own_is_the_worlds_doing_and_told(tmp_path: Path) -> None:
    heard: list[Step] = [Expect(user="its time limit of 0.2 s was reached"), Say("Too slow")]
    script: Script = [starting(timeout_s=0.2), [Say("Up")], heard]
    async with house(script, tmp_path) as (world, session):
        await completes(session, "Serve")
        await wait_for(session, TurnSettled, 2)
        assert (await session.state()).background == ()
        await world.check()


async def test_one_that_cannot_start_fails_as_any_call_does(tmp_path: Path) -> None:
    failing = starting("true", cwd="nowhere")
    async with house([failing, [Expect(result="nowhere"), Say("No")]], tmp_path) as (
        world,
        session,
    ):
        assert (await completes(session, "Serve")).text == "No"
        assert statuses(await session.events()) == {ID: CallStatus.FAILED}
        assert not [e for e in events_of(await session.events()) if isinstance(e, CallDetached)]
        await world.check()


async def test_many_begun_at_once_stay_within_the_limit(tmp_path: Path) -> None:
    begun = [step for _ in range(6) for step in starting("exec sleep 1000")]
    settings = ToolSettings(background_max=2)
    async with house([begun, [Say("Up")]], tmp_path, settings=settings) as (_, session):
        await completes(session, "Serve")
        told = list(statuses(await session.events()).values())
        assert told.count(CallStatus.DETACHED) == 2
        assert told.count(CallStatus.FAILED) == 4
        assert len((await session.state()).background) == 2


async def test_one_in_the_background_takes_no_place_from_the_calls_of_the_turn(
    tmp_path: Path,
) -> None:
    begun = [step for _ in range(3) for step in starting("exec sleep 1000")]
    script: Script = [[*begun, Call("terminal", {"command": "echo here"})], [Say("Done")]]
    async with house(script, tmp_path, calls_at_once_max=1) as (_, session):
        assert (await completes(session, "Serve")).text == "Done"
        assert statuses(await session.events())["t1_1_4"] is CallStatus.FINISHED


async def test_a_crash_is_told_with_the_users_next_message_and_begins_no_turn(
    tmp_path: Path,
) -> None:
    store = HeldStore()
    async with house([starting(), [Say("Up")]], tmp_path, store=store) as (_, session):
        await completes(session, "Serve")
        crash = store.snapshot()
    again = HeldStore()
    again.restore(crash)
    script: Script = [[Expect(user="in the background: unknown"), Say("I see")]]
    async with house(script, tmp_path, store=again) as (world, session):
        (ended,) = await wait_for(session, BackgroundEnded)
        assert isinstance(ended.event, BackgroundEnded)
        assert ended.event.result.status is CallStatus.UNKNOWN
        await a_while()
        assert turns_begun(events_of(await session.events())) == ["t1"]
        assert (await completes(session, "And?")).text == "I see"
        await world.check()


async def test_a_tool_of_ones_own_goes_on_in_the_background_when_it_says_so() -> None:
    gate, moved = Gate(), list[bool]()

    @tool
    async def index(context: ToolContext) -> str:
        """Index everything."""
        moved.append(context.detach("The index is being made."))
        moved.append(context.detach("Twice."))
        await gate()
        return "indexed"

    heard: list[Step] = [Expect(user="indexed"), Say("Good")]
    script: Script = [[Call("index")], [Expect(result="is being made"), Say("Meanwhile")], heard]
    async with a_world(script, tools=[index]) as world:
        session = await world.session()
        assert (await completes(session, "Index")).text == "Meanwhile"
        assert moved == [True, False]
        gate.opened.set()
        await wait_for(session, TurnSettled, 2)
        assert set(outcomes(await session.events())) == {"t1", "t2"}
        await world.check()


async def test_a_tool_in_a_thread_is_told_that_it_cannot_move_itself() -> None:
    @tool
    def index(context: ToolContext) -> str:
        """Index everything."""
        context.detach("The index is being made.")
        return ""

    async with a_world(
        [[Call("index")], [Expect(result="async def"), Say("No")]], tools=[index]
    ) as w:
        session = await w.session()
        assert (await completes(session, "Index")).text == "No"
        assert (await session.state()).background == ()


async def test_a_call_that_finishes_in_spite_of_the_stop_of_its_session_begins_no_turn() -> None:
    gate = Gate()

    @tool
    async def deaf(context: ToolContext) -> str:
        """Finish whatever happens."""
        context.detach("Begun.")
        with anyio.CancelScope(shield=True):
            await gate()
        return "finished anyway"

    async with a_world([[Call("deaf")], [Say("Meanwhile")], [Say("Next")]], tools=[deaf]) as world:
        session = await world.session()
        await completes(session, "Go")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.interrupt(scope="session"))
            await a_while()
            gate.opened.set()
        await wait_for(session, BackgroundEnded)
        await a_while()
        assert turns_begun(events_of(await session.events())) == ["t1"]
        assert (await completes(session, "And?")).text == "Next"
        await world.check()


async def test_code_cannot_leave_a_command_behind_that_nobody_sees(tmp_path: Path) -> None:
    code = (
        "from bargein_tools import terminal\nprint(terminal(command='sleep 99', background=True))"
    )
    script: Script = [[Call("python", {"code": code})], [Say("Done")]]
    async with house(script, tmp_path) as (world, session):
        await completes(session, "Serve")
        assert "cannot move to the background" in str(world.model.requests[-1].messages[-1])
        assert (await session.state()).background == ()


# Sub-agents


async def test_what_a_sub_agent_leaves_behind_ends_with_it_and_its_parent_is_told(
    tmp_path: Path,
) -> None:
    script: Script = [
        delegating("go", "ann"),
        saying("ann", *starting()),
        holding("ann"),
        saying("go", Expect(result="ended with it"), Say("Done")),
    ]
    async with house(script, tmp_path) as (world, session):
        sent = await session.send("go")
        await world.model.gate("ann").reached()
        pid = await pid_in(tmp_path)
        world.model.gate("ann").open()
        assert (await answered(sent)).text == "Done"
        assert not zoo.runs(pid)
        await check_family(world)


async def test_a_stop_of_a_sub_agent_tells_of_its_background_too(tmp_path: Path) -> None:
    script: Script = [
        delegating("go", "ann"),
        saying("ann", *starting()),
        holding("ann"),
        saying("go", Say("Done")),
    ]
    async with house(script, tmp_path) as (world, session):
        sent = await session.send("go")
        await world.model.gate("ann").reached()
        pid = await pid_in(tmp_path)
        child = "alice/t1_1_1.1"
        receipt = await session.interrupt(scope="child", target=child)
        (step,) = [each for each in receipt.steps if each.call_id == f"{child}/{ID}"]
        assert step.status is CallStatus.STOPPED
        assert step.detail is not None
        assert pid in [each.pid for each in step.detail.processes]
        assert not zoo.runs(pid)
        assert (await answered(sent)).text == "Done"
        await check_family(world)
