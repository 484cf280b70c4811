"""A world that lives one plan: its users beside the lives of its engine, on one virtual clock.

When the users are done the world calms down: faults end, pauses are resumed, questions are
answered, and every session is visited until nothing moves. Then the engine is closed and the
verdict is given.
"""

import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial

import anyio
from anyio.abc import TaskGroup

from bargein.cancel._loops import knowing_its_loop
from bargein.contracts.model import Model, ModelRequest, Text, UserMessage
from bargein.contracts.store import Store
from bargein.contracts.tool import Approval, Toolbox
from bargein.errors import BargeinError
from bargein.session.commands import Command, Settled, Stop
from bargein.session.decide import decide
from bargein.session.engine import SessionEngine
from bargein.session.limits import Limits
from bargein.session.rules.moves import Decision
from bargein.session.session import Session
from bargein.session.state import Phase, SessionState
from bargein.session.title import Titles
from bargein.session.turn import AgentFunction, Turn
from bargein.stores.memory import MemoryStore
from bargein.testing.engine_invariants import check_request
from bargein.testing.invariants import LawBroken
from bargein.testing.seeded import Seeded
from bargein.testing.simulation.agent import SimulatedAgent, SimulatedHooks
from bargein.testing.simulation.life import Life
from bargein.testing.simulation.model import simulated_model, title_model
from bargein.testing.simulation.plan import LifeEnd, LifePlan, Moment, Plan, Titling
from bargein.testing.simulation.record import Record
from bargein.testing.simulation.store import Disk, LifeStore
from bargein.testing.simulation.tools import SimulatedToolbox
from bargein.testing.simulation.users import User
from bargein.testing.simulation.verdict import check_state, give_verdict

WORLD_S_MAX = 3000.0
CALM_ROUND_S = 20.0
CALM_ROUNDS_MAX = 120
"""Sub-agents that delegate again, to models that stall, have taken 1,300 s."""


class World:
    """Subclass it to replace a part: the agent, the model, the tools, `decide` or the limits."""

    def __init__(self, plan: Plan, run: Seeded) -> None:
        self.plan = plan
        self.limits = Limits(
            idle_s=plan.temper.idle_s, hook_s=1.0, enrich_s=2.0, children_deep_max=2
        )
        self.record = Record(self.limits, self._break_off)
        self.engine_limits = self.limits
        self.clock = run.clock
        self.steps = 0
        self.calming = False
        self.current: Life | None = None
        self.disk = self.make_disk()
        self.backend = run.backend
        self._scope = anyio.CancelScope()
        self._lives: list[Life] = []
        self._moments: dict[tuple[Moment, str], anyio.Event] = {}
        self._changed = anyio.Event()
        self._over = False
        self._ending = False
        self._waiting: dict[str, tuple[str, str]] = {}
        self._group: TaskGroup | None = None
        self.stop_changed: dict[str, bool] = {}

    @property
    def group(self) -> TaskGroup:
        """The group for tasks that live beside all lives of the engine."""
        assert self._group is not None
        return self._group

    # Parts

    def decide(self, state: SessionState, command: Command) -> Decision:
        return decide(state, command)

    def make_engine(self, life: Life) -> SessionEngine:
        return SessionEngine(
            self.make_agent(life),
            life.store,
            hooks=SimulatedHooks(life) if self.plan.temper.hooks else None,
            limits=self.engine_limits,
            compact=self.make_compact(life),
            titles=self.make_titles(life),
            clock=self.clock,
            now=self.now,
            decide=partial(self._watched, life),
        )

    def make_disk(self) -> Disk:
        """A new disk. After a crash the one before gets nothing more."""
        return MemoryStore(shared=True)

    def make_store(self, life: Life, disk: Disk) -> Store:
        return LifeStore(life, disk)

    def make_agent(self, life: Life) -> AgentFunction:
        return SimulatedAgent(life)

    def make_compact(self, life: Life) -> AgentFunction:
        return SimulatedAgent(life).compact

    def make_titles(self, life: Life) -> Titles | None:
        match self.plan.temper.titling:
            case Titling.NONE:
                return None
            case Titling.WORDS:
                return Titles()
            case Titling.MODEL:
                return Titles(partial(title_model, life))

    def make_model(self, life: Life, turn: Turn) -> Model:
        return simulated_model(life, turn)

    def make_toolbox(self, life: Life, turn: Turn) -> Toolbox:
        return SimulatedToolbox(life, turn)

    def now(self) -> float:
        return anyio.current_time()

    def random(self, *name: object) -> random.Random:
        return random.Random(f"{self.plan.seed} {name}")

    def chance(self, *name: object) -> float:
        return self.random(*name).random()

    def note(self, life: int, words: tuple[object, ...]) -> None:
        self.record.history.append((self.now(), life, words))

    def happens(self, moment: Moment, session: str) -> None:
        """Wakes the users who wait for this."""
        event = self._moments.pop((moment, session), None)
        if event is not None:
            event.set()

    async def wait_for(self, moment: Moment, session: str, timeout_s: float) -> None:
        event = self._moments.setdefault((moment, session), anyio.Event())
        with anyio.move_on_after(timeout_s):
            await event.wait()

    def changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # Living

    async def live(self) -> None:
        """Lives until the end of the world; raises the first broken law."""
        with self._scope, anyio.move_on_after(WORLD_S_MAX) as limit:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._live_all)
                await self._be_users()
                await self._calm_down()
                await self._close()
                group.cancel_scope.cancel()
        if self.record.broken is None:
            if limit.cancelled_caught:
                self.record.blame(6, f"something hangs: {self._hanging()}")
            give_verdict(self)

    async def _be_users(self) -> None:
        async with anyio.create_task_group() as users:
            for number, steps in enumerate(self.plan.users):
                users.start_soon(User(self, number).live, steps)

    async def _live_all(self) -> None:
        """Runs one life after the other; an unplanned one lives to the end."""
        plans = iter(self.plan.lives)
        while not self._over:
            life = Life(self, len(self._lives) + 1, next(plans, LifePlan()), self.disk)
            self._lives.append(life)
            self.current = life
            life.note("begins")
            self.group.start_soon(life.run)
            if life.plan.at_s is not None:
                self.group.start_soon(self._end_later, life, life.plan.at_s)
            while not life.ended.is_set() and self.current is life:
                await self._changed.wait()

    async def _end_later(self, life: Life, seconds: float) -> None:
        await life.sleep(seconds)
        self._end(life)

    def step(self) -> None:
        """Counts a step of the scheduler; where it cannot report steps, a happening."""
        self.steps += 1
        life = self.current
        at_step = life.plan.at_step if life is not None else None
        if life is None or at_step is None or self._ending:
            return
        if self.steps - life.began_at_step >= at_step:
            self._ending = True
            self._end(life)
            self._ending = False

    def _end(self, life: Life) -> None:
        if self.current is not life or life.dead or life.closing or self.calming:
            return
        if life.plan.end is LifeEnd.CRASHED:
            self.crash()
        elif life.plan.end is LifeEnd.CLOSED:
            life.close()
        elif life.engine is not None:
            life.note("is overtaken")
            self.disk.bury(life.name)
            self.record.disturbed.update(f"s{number}" for number in range(self.plan.sessions))
            self.current = None
            self.changed()
            # Called in the middle of a life, whose tasks end with their starter, possibly from a
            # callback that knows its loop only by its context.
            knowing_its_loop(Context()).run(self.group.start_soon, self._close_later, life)

    async def _close_later(self, life: Life) -> None:
        await life.sleep(3.0)
        life.close()

    def crash(self) -> None:
        """Crashes the machine: only what is durable is left."""
        durable = self.disk.snapshot()
        for life in self._lives:
            if not life.ended.is_set() and not life.dead:
                life.crash()
        self.disk = self.make_disk()
        self.disk.restore(durable)
        self._waiting.clear()
        self.changed()

    async def usable_life(self) -> Life:
        while self.current is None or not self.current.usable:
            await self._changed.wait()
        return self.current

    def wait_beside(
        self,
        life: Life,
        *,
        name: str,
        session: str,
        message: str,
        wait: Callable[[], Awaitable[None]],
    ) -> None:
        """Lets a user wait in the background for the result of a message, as long as this life
        lasts."""

        async def until_told() -> None:
            self._waiting[name] = session, message
            with life.calling():
                await wait()
            self._waiting.pop(name, None)

        self.group.start_soon(until_told)

    def _break_off(self) -> None:
        self._scope.cancel()

    # Calming down

    async def _calm_down(self) -> None:
        self.calming = True
        quiet = 0
        for _ in range(CALM_ROUNDS_MAX):
            life = await self.usable_life()
            assert life.engine is not None
            with life.calling(), life.asking(*self.record.laws):
                try:
                    quiet = quiet + 1 if await self._visit_all(life.engine) else 0
                except BargeinError:
                    # The last fault of the store was still on its way.
                    quiet = 0
            if quiet == 2:
                return
            await anyio.sleep(CALM_ROUND_S)
        self.record.blame(3, f"the world does not come to rest: {self._hanging()}")

    async def _visit_all(self, engine: SessionEngine) -> bool:
        quiet = not self._others()
        for name in sorted(self.record.laws):
            session = await engine.session(name)
            await self._let_go_on(session)
            state = await session.state()
            waits = bool(state.waiting) and not state.held and state.phase is not Phase.ENDED
            actor = engine.actor_in_memory(name)
            # A decision may still be on its way to the store.
            unwritten = actor is None or not actor.is_quiet
            if state.busy or state.background or state.children or waits or unwritten:
                quiet = False
            elif self.record.owners.get(name) == (self.current and self.current.number):
                check_state(self.record, name, state)
        return quiet

    async def _let_go_on(self, session: Session) -> None:
        """Does what a user would have to do for the session to come to rest."""
        for question in list(self.record.laws_of(session.id).questions):
            try:
                await session.answer(question, Approval.ALLOW, by="calm")
            except BargeinError:
                pass
        if (await session.state()).phase is Phase.PAUSED:
            try:
                await session.resume()
            except BargeinError:
                pass

    def _others(self) -> list[Life]:
        return [
            each for each in self._lives if each is not self.current and not each.ended.is_set()
        ]

    async def _close(self) -> None:
        self._over = True
        life = await self.usable_life()
        for name, (session, message) in self._waiting.items():
            if message not in self.record.laws_of(session).waiting:
                self.record.blame(3, f"nobody tells {name} what became of {session} {message}")
        life.close()
        await life.ended.wait()

    def _hanging(self) -> str:
        states = {}
        if self.current is not None and self.current.engine is not None:
            engine = self.current.engine
            for name in engine.in_memory:
                actor = engine.actor_in_memory(name)
                states[name] = actor.state if actor is not None else None
        return f"{states} {self._waiting}"

    # Looking

    def _watched(self, life: Life, state: SessionState, command: Command) -> Decision:
        after, effects = self.decide(state, command)
        life.note("decides", command, "in", state.phase, state.turn, "->", after.phase, after.turn)
        if isinstance(command, Stop):
            self.stop_changed[command.by] = after != state
        if after.phase is Phase.STOPPING:
            self.happens_somewhere(Moment.STOPPING)
        elif isinstance(command, Settled):
            self.happens_somewhere(Moment.SETTLES)
        return after, effects

    def happens_somewhere(self, moment: Moment) -> None:
        for number in range(self.plan.sessions):
            self.happens(moment, f"s{number}")

    def check_request(self, life: Life, session: str, request: ModelRequest) -> None:
        """Laws 5 and 3: the request is well formed, and has each taken message once and none of a
        hidden turn. An owner that lost the session unknowingly may ask, with old words."""
        try:
            check_request(request)
        except LawBroken as broken:
            self.record.breaks(broken)
        if self.record.owners.get(session) != life.number:
            return
        said = [
            part.text
            for message in request.messages
            if isinstance(message, UserMessage)
            for part in message.content
            if isinstance(part, Text)
        ]
        laws = self.record.laws_of(session)
        for message, turn in laws.taken.items():
            settled = laws.turns[turn].settled
            times = 0 if settled is not None and settled.hidden else 1
            words = laws.messages[message].text
            ours = laws.messages[message].sender == "background" or message in laws.late_answers
            if laws.may_be_summarised(message):
                times = min(times, said.count(words))
            if not ours and said.count(words) != times:
                self.record.blame(3, f"{session}: the model is told {words} {said.count(words)} x")
