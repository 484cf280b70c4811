"""The phases of a turn in which an interrupt may come. Each knows how to get there and to stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from bargein.cancel import Token
from bargein.contracts.event import (
    CallStarted,
    Compressed,
    MessageAccepted,
    MessagesTaken,
    QuestionAsked,
    TurnSettled,
)
from bargein.contracts.tool import StopDetail
from bargein.models.script import Answer, Call, Fail, Say, Step, Wait
from bargein.runtime.project_instructions import ProjectInstructions, ReadFile
from bargein.session.hooks import Hooks
from bargein.session.turn import AgentFunction, Turn
from bargein.tools import Decision, Policy, Rule, ToolContext
from bargein.tools.ask import ask_tool
from bargein.tools.delegate import delegate_tool
from tests.interrupt.stage import Act, HeldHooks, Hold, Stage
from tests.session.world import a_while, until, wait_for

Tool = Callable[..., Any]


@dataclass
class Setting:
    """What the engine of a row is made of, beside what every row has."""

    script: list[Answer] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    hooks: Hooks | None = None
    wrap: Callable[[AgentFunction], AgentFunction] | None = None
    policy: Policy | None = None
    sleep: Callable[[float], Any] = anyio.sleep
    limits: dict[str, float] = field(default_factory=dict)
    context_tokens: int | None = None
    titles: bool = False


Make = Callable[[Hold], Setting]
MakeTool = Callable[[Hold], Tool]


@dataclass(frozen=True)
class Phase:
    """`make` prepares the engine; `reach` brings the session there; `release` lets go of what would
    keep even a stop waiting: a store that is held. `lands`: a stop meets a turn that it can stop;
    `either`: whichever comes first wins; `stopped`: somebody has stopped it already; `abandons`: a
    call has to be abandoned; `steered`: the message that waits to join the turn."""

    name: str
    make: Make
    reach: Act
    release: Callable[[Stage], object] = lambda stage: stage.store.release()
    lands: bool = True
    either: bool = False
    stopped: bool = False
    abandons: bool = False
    steered: str = ""


def for_go(*answers: Sequence[Step]) -> list[Answer]:
    return [Answer(steps, when="go") for steps in answers]


STREAM: Sequence[Step] = [Say("One "), Wait("hold"), Say("two")]
SILENT: Sequence[Step] = [Wait("hold"), Say("One ")]
DONE: Sequence[Step] = [Say("Done")]


def saying(*answers: Sequence[Step]) -> Make:
    return lambda hold: Setting(script=for_go(*answers))


def hooked(name: str) -> Make:
    def make(hold: Hold) -> Setting:
        setting = calling(quick)(hold)
        setting.hooks = HeldHooks(name, hold)
        return setting

    return make


def backing_off(hold: Hold) -> Setting:
    async def sleep(seconds: float) -> None:
        # The bystander's own pace is far below any back-off.
        await (hold() if seconds > 0.1 else anyio.sleep(seconds))

    return Setting(script=for_go([Say("half"), Fail(status=529)], DONE), sleep=sleep)


def calling(*tools: MakeTool, **limits: float) -> Make:
    def make(hold: Hold) -> Setting:
        made = [tool(hold) for tool in tools]
        calls = [Call(tool.__name__) for tool in made]
        return Setting(
            script=for_go([Say("I work."), *calls], DONE), tools=made, limits=dict(limits)
        )

    return make


def asking(hold: Hold) -> Setting:
    setting = calling(quick)(hold)
    setting.policy = Policy((Rule(Decision.ASK),))
    return setting


def returning(hold: Hold) -> Setting:
    """The agent has done its work and is about to return."""

    def wrap(built_in: AgentFunction) -> AgentFunction:
        async def agent(turn: Turn) -> None:
            await built_in(turn)
            if turn.session == "alice" and turn.id == "t1":
                await hold()

        return agent

    return Setting(script=for_go(DONE), wrap=wrap)


LONG = "word " * 330
"""About 400 tokens."""


def summarising(hold: Hold) -> Setting:
    """The first turn reads so much that it must be summarised before it can go on."""

    async def read() -> str:
        """Read something long."""
        return LONG

    summary: Sequence[Step] = [Say("They "), Wait("hold"), Say("read.")]
    steps: list[Sequence[Step]] = [[Call("read")]] * 4
    script = for_go(*steps, summary, DONE)
    return Setting(script=script, tools=[read], context_tokens=2000)


def titling(hold: Hold) -> Setting:
    return Setting(script=for_go(DONE, [Wait("hold"), Say("A title")]), titles=True)


def delegating(*answers: Answer, make_tool: MakeTool | None = None, **limits: float) -> Make:
    """The turn has given tasks to sub-agents, which answer so."""

    def make(hold: Hold) -> Setting:
        tasks = [{"task": answer.when} for answer in answers if answer.when != "cat"]
        call = Call("delegate", {"tasks": tasks})
        tools: list[Tool] = [delegate_tool(), *([make_tool(hold)] if make_tool else [])]
        script = [*for_go([Say("I delegate."), call], DONE), *answers]
        script += [Answer(DONE, when=answer.when) for answer in answers]
        return Setting(script=script, tools=tools, limits=dict(limits))

    return make


NESTED = (
    Answer(STREAM, when="ann"),
    Answer([Call("delegate", {"tasks": [{"task": "cat"}]})], when="ben"),
    Answer(STREAM, when="cat"),
)


def sub_agent_asking(hold: Hold) -> Setting:
    setting = delegating(Answer([Call("quick")], when="ann"), make_tool=quick)(hold)
    setting.policy = Policy((Rule(Decision.ASK, "quick"),))
    return setting


def questioning(hold: Hold) -> Setting:
    question = Call("ask", {"question": "Tea?", "choices": ["yes", "no"]})
    return Setting(script=for_go([Say("Hm."), question], DONE), tools=[ask_tool()])


def reading_instructions(hold: Hold) -> Setting:
    """AGENTS.md is in a place that does not answer."""

    def look(path: Path, top: Path, before: ReadFile | None, bytes_max: int) -> None:
        if not hold.thread_reached.is_set():
            hold.reach_in_thread()
            hold.thread_opened.wait()

    project = ProjectInstructions(Path("/"), None, look=look)

    def wrap(built_in: AgentFunction) -> AgentFunction:
        async def agent(turn: Turn) -> None:
            if turn.session == "alice":
                await turn.read_context(project)
            await built_in(turn)

        return agent

    return Setting(script=for_go(DONE), wrap=wrap)


# Tools


def quick(hold: Hold) -> Tool:
    async def quick() -> str:
        """Be done at once."""
        return "done"

    return quick


def coroutine(hold: Hold) -> Tool:
    async def wait() -> str:
        """Wait."""
        await hold()
        return "waited"

    return wait


def thread(hold: Hold) -> Tool:
    def listen(token: Token) -> str:
        """Wait in a thread that looks at its token."""
        hold.reach_in_thread()
        while not hold.thread_opened.is_set():
            token.sleep(0.001)
        return "listened"

    return listen


def cleaning(hold: Hold) -> Tool:
    async def run(context: ToolContext) -> str:
        """Have something to end first, as one that has started a process."""
        try:
            await hold()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            context.note_stop(StopDetail(elapsed_ms=10.0, means="killed"))
            raise
        return "ran"

    return run


def wedged(hold: Hold) -> Tool:
    def hang() -> str:
        """Hang in a thread."""
        hold.reach_in_thread()
        hold.thread_opened.wait()
        return "late"

    return hang


def deaf(hold: Hold) -> Tool:
    async def ignore() -> str:
        """Swallow every cancel."""
        hold.reached.set()
        while not hold.opened.is_set():
            try:
                await hold.opened.wait()
            except anyio.get_cancelled_exc_class():
                pass
        return "late"

    return ignore


# Getting there


async def send_and_reach(stage: Stage) -> None:
    await stage.send()
    await stage.hold.wait_reached()


async def send_and_stream(stage: Stage) -> None:
    await stage.send()
    await stage.world.model.gate("hold").reached()


async def be_a_family(stage: Stage) -> None:
    """Until one streams, and the deepest one is at work."""
    await send_and_stream(stage)
    deepest = "alice/t1_1_1.2/t1_1_1.1"
    await until(lambda: deepest in stage.world.in_memory)


async def be_accepted(stage: Stage) -> None:
    stage.store.hold(MessageAccepted)
    await stage.send_in_background()


async def be_loading(stage: Stage) -> None:
    async def before_read(operation: str, session: str) -> None:
        if (operation, session) == ("events", "alice") and not stage.hold.reached.is_set():
            await stage.hold()

    stage.store.before_read = before_read
    await send_and_reach(stage)


async def be_asked(stage: Stage) -> None:
    await stage.send()
    await wait_for(stage.session, QuestionAsked)


async def start_call(stage: Stage) -> None:
    stage.store.hold(CallStarted)
    await stage.send()
    await stage.store.reached.wait()


async def take_steer(stage: Stage) -> None:
    await send_and_stream(stage)
    stage.store.hold(MessagesTaken)
    await stage.session.send("and go")
    await stage.store.reached.wait()


async def wait_with_a_steer(stage: Stage) -> None:
    await send_and_reach(stage)
    await stage.session.send("another way")


async def pause(stage: Stage) -> None:
    await send_and_stream(stage)
    await stage.session.pause()
    stage.world.model.gate("hold").open()
    state = await stage.session.state()
    while not state.boundary:
        await a_while()
        state = await stage.session.state()


def return_after(checkpoints: int) -> Act:
    async def reach(stage: Stage) -> None:
        await send_and_reach(stage)
        stage.hold.open()
        for _ in range(checkpoints):
            await anyio.lowlevel.checkpoint()

    return reach


async def settle_already(stage: Stage) -> None:
    await send_and_reach(stage)
    stage.tasks.start_soon(stage.session.interrupt)
    while (await stage.session.state()).phase != "stopping":
        await a_while()


async def settle_undurably(stage: Stage) -> None:
    stage.store.hold(TurnSettled)
    await stage.send()
    await stage.store.reached.wait()


async def be_summarised(stage: Stage) -> None:
    stage.store.hold(Compressed)
    stage.world.model.gate("hold").open()
    await stage.send()
    await stage.store.reached.wait()


async def be_titled(stage: Stage) -> None:
    await stage.send()
    await stage.first_result()
    await stage.world.model.gate("hold").reached()


async def be_idle(stage: Stage) -> None:
    await stage.send()
    await stage.first_result()


SHORT = {"call_grace_s": 0.08, "call_grace_s_max": 0.08}

PHASES = [
    Phase("accepted, not durable", saying(DONE), be_accepted),
    Phase("agent not begun", saying(DONE), be_loading),
    Phase("in turn_started", hooked("turn_started"), send_and_reach),
    Phase("enriching", hooked("enrich"), send_and_reach),
    Phase("model silent", saying(SILENT), send_and_stream),
    Phase("model streaming", saying(STREAM), send_and_stream),
    Phase("between attempts", backing_off, send_and_reach),
    Phase("before a call", hooked("before_tool"), send_and_reach),
    Phase("call awaits approval", asking, be_asked),
    Phase("call awaits its durable start", calling(quick), start_call),
    Phase("call in a task", calling(coroutine), send_and_reach),
    Phase("call in a thread", calling(thread), send_and_reach),
    Phase("call that cleans up", calling(cleaning), send_and_reach),
    Phase("call wedged in a thread", calling(wedged, **SHORT), send_and_reach, abandons=True),
    Phase("call deaf to cancels", calling(deaf, **SHORT), send_and_reach, abandons=True),
    Phase("two calls", calling(coroutine, thread), send_and_reach),
    Phase("a steer waits for a call", calling(coroutine), wait_with_a_steer, steered="m2"),
    Phase("in after_tool", hooked("after_tool"), send_and_reach),
    Phase("at a boundary", saying(STREAM, DONE), take_steer),
    Phase("paused", saying(STREAM, DONE), pause),
    Phase("about to return", returning, return_after(0), either=True),
    Phase("returning", returning, return_after(1), either=True),
    Phase("returned", returning, return_after(3), either=True),
    Phase(
        "settling already", calling(wedged, **SHORT), settle_already, stopped=True, abandons=True
    ),
    Phase("settled, not durable", saying(DONE), settle_undurably, lands=False),
    Phase("idle", saying(DONE), be_idle, lands=False),
    Phase("reading AGENTS.md", reading_instructions, send_and_reach),
    Phase("summarising", summarising, send_and_stream),
    Phase("summarised, not durable", summarising, be_summarised),
    Phase("idle, making a title", titling, be_titled, lands=False),
    Phase("sub-agents streaming", delegating(*NESTED), be_a_family),
    Phase(
        "sub-agent wedged in a thread",
        delegating(Answer([Call("hang")], when="ann"), make_tool=wedged, **SHORT),
        send_and_reach,
        abandons=True,
    ),
    Phase("sub-agent awaits approval", sub_agent_asking, be_asked),
    Phase("question open", questioning, be_asked),
]
