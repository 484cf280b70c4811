"""The agents and hooks of a simulated world: mostly the built-in loop, sometimes odd ones."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from bargein.contracts.budget import Budget
from bargein.contracts.event import TurnSettled
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Model, Text
from bargein.contracts.tool import CallResult, PlannedCall, Refused, Toolbox
from bargein.errors import WorldError
from bargein.session.agent import LoopAgent, LoopSettings, loop_agent
from bargein.session.hooks import Hooks
from bargein.session.turn import AgentFunction, Turn
from bargein.testing.simulation.plan import Moment
from bargein.testing.simulation.record import Work

if TYPE_CHECKING:
    from bargein.testing.simulation.life import Life

FRUGAL = (
    (0.1, LoopSettings(budget=Budget(steps=3))),
    (0.2, LoopSettings(budget=Budget(time_s=20.0))),
    (0.3, LoopSettings(session_budget=Budget(steps=8))),
    (1.0, LoopSettings()),
)
"""The budgets of a session, by chance: the first row whose number is above the drawn one."""


class SimulatedAgent:
    def __init__(self, life: "Life") -> None:
        self._life = life

    async def __call__(self, turn: Turn) -> str | None:
        return await self._recorded(turn, self._run)

    async def compact(self, turn: Turn) -> None:
        await self._recorded(turn, self._compact)

    async def _recorded(
        self, turn: Turn, run: Callable[[Turn], Awaitable[str | None]]
    ) -> str | None:
        life = self._life
        if life.dead:
            return None
        work = Work(life.number, turn.session, turn.id, turn.token, "agent")
        life.note("the agent begins", turn.session, turn.id)
        life.record.agent_begins(work)
        life.world.happens(Moment.STARTS, turn.session)
        self._check_state(turn)
        try:
            return await run(turn)
        finally:
            if not life.dead:
                life.note("the agent ends", turn.session, turn.id)
                life.record.ends(work)

    def _check_state(self, turn: Turn) -> None:
        """Law 3: the state that an agent stored is there in the next turn."""
        record = self._life.record
        if record.owners.get(turn.session) == self._life.number:
            durable = record.laws_of(turn.session).agent_state
            if turn.state != durable:
                record.blame(
                    3, f"{turn.session} {turn.id} is given {turn.state!r}, not {durable!r}"
                )

    async def _compact(self, turn: Turn) -> None:
        try:
            await self._loop(turn).compact(turn)
        except WorldError:
            # The model failed, or said nothing.
            self._life.record.failing.add((turn.session, turn.id))
            raise

    def _loop(self, turn: Turn) -> LoopAgent:
        life = self._life
        model, toolbox = life.world.make_model(life, turn), life.world.make_toolbox(life, turn)
        chance = life.world.chance("budget", turn.session)
        settings = next(each for most, each in FRUGAL if chance < most)
        return loop_agent(model, toolbox, settings)

    async def _run(self, turn: Turn) -> str | None:
        life = self._life
        rng = life.world.random("agent", turn.session, turn.id)
        if rng.random() >= life.world.plan.temper.odd_agents:
            life.record.looping.add((turn.session, turn.id))
            await self._loop(turn)(turn)
            return None
        seconds = rng.choice((0.0, 0.2, 1.0, 5.0))
        match rng.choice(("says", "raises", "deaf", "shielded", "keeps")):
            case "raises":
                await life.sleep(seconds)
                life.record.failing.add((turn.session, turn.id))
                raise WorldError("the agent failed (simulated)", retryable=False)
            case "deaf":
                return await self._deaf(turn, seconds)
            case "shielded":
                with anyio.CancelScope(shield=True):
                    await life.sleep(seconds)
            case "keeps":
                turn.state = f"{turn.id} was here".encode()
                await turn.keep("note", b"kept")
                await turn.boundary()
        await life.sleep(seconds)
        return f"{turn.id} says."

    async def _deaf(self, turn: Turn, seconds: float) -> str:
        """Swallows the cancel and goes on; what it says then must not count."""
        try:
            await self._life.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._life.sleep(seconds)
            raise
        return f"{turn.id} says."


BuildAgent = Callable[[Model, Toolbox], AgentFunction]
"""Makes the agent under test from the simulated model and tools, for one turn."""


class AgentUnderTest(SimulatedAgent):
    """Runs an agent of the user's own. It fails of itself if it raises though its model did not."""

    def __init__(self, life: "Life", build: BuildAgent) -> None:
        super().__init__(life)
        self._build = build

    async def _run(self, turn: Turn) -> str | None:
        life = self._life
        model, toolbox = life.world.make_model(life, turn), life.world.make_toolbox(life, turn)
        return await self._build(model, toolbox)(turn)


class SimulatedHooks(Hooks):
    """Some are slow, some hang, some raise."""

    def __init__(self, life: "Life") -> None:
        self._life = life
        self._count = 0

    async def session_started(self, session: str) -> None:
        await self._take_part("session_started", session)

    async def message(self, session: str, message: Message) -> None:
        await self._take_part("message", session)

    async def turn_started(self, session: str, turn: str) -> None:
        await self._take_part("turn_started", session)

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        chance = await self._take_part("before_tool", session)
        return Refused("the hook says no") if chance > 0.9 else None

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None:
        await self._take_part("after_tool", session)

    async def turn_settled(self, session: str, settled: TurnSettled) -> None:
        await self._take_part("turn_settled", session)

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        await self._take_part("enrich", session)
        return (Text(f"[{attachment.name} shows a cat]"),)

    async def _take_part(self, hook: str, session: str) -> float:
        life = self._life
        self._count += 1
        rng = life.world.random(hook, session, life.number, self._count)
        kind = rng.random()
        if kind < 0.2:
            await life.sleep(rng.choice((0.1, 1.0)))
        elif kind < 0.3:
            await life.sleep(100.0)
        elif kind < 0.35:
            with anyio.CancelScope(shield=True):
                await life.sleep(3.0)
        elif kind < 0.4:
            raise WorldError("the hook failed (simulated)", retryable=False)
        return rng.random()
