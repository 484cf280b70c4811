"""Where the parts are joined: an agent's model and tools, a store, and the engine over them.

`Engine` is what `from bargein import Engine` gives. Heavy parts are imported when they are used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from bargein.cancel import CancelSource, Reason, TaskOwner
from bargein.cli.home import make_home, own_home
from bargein.contracts.budget import Budget
from bargein.contracts.choice import choose
from bargein.contracts.given import check_callable_or_none, check_path_or_none, check_texts, wrong
from bargein.contracts.model import Model, ToolSchema
from bargein.contracts.permission import PermissionMode, ProjectGrants, Standing
from bargein.contracts.store import SessionHead, Store
from bargein.errors import UserError
from bargein.session.actor import Landing
from bargein.session.agent import LoopAgent, LoopSettings
from bargein.session.broadcast import Observe
from bargein.session.children import Below
from bargein.session.engine import SessionEngine
from bargein.session.hooks import Hooks
from bargein.session.limits import Limits
from bargein.session.permits import PermissionSettings
from bargein.session.session import Session
from bargein.session.state import SessionState
from bargein.session.title import Titles
from bargein.session.turn import AgentFunction

if TYPE_CHECKING:
    from bargein.cli.config import Config
    from bargein.cli.instructions import ProjectInstructions
    from bargein.cli.models import ModelInUse
    from bargein.cli.staff import Staff
    from bargein.process import Containment
    from bargein.stores.reserve import FileReserve
    from bargein.tools import Policy, Tool, ToolRegistry, ToolSettings

__all__ = [
    "Agent",
    "Engine",
    "default_agent",
]

DATABASE = "sessions.sqlite3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A model with tools and instructions, run by the built-in loop.

    `model` is a name such as `openai:gpt-5-mini`, a `Model`, or None for the best there is. `tools`
    are functions or tools made with `@tool`; with a `workspace` the built-in ones are offered as
    well, at work in that folder, and its `AGENTS.md` is read. `policy` decides which calls need the
    user's yes. `budget` is for each turn, `session_budget` for all of them together. `titles`: the
    model gives sessions titles, in the background.

    With `sub_agents` it can delegate: to sub-agents like itself, and to those that are named here,
    each told to the model by its `description`. `sub_models` are models that it may ask for then.
    With `asks` it can put questions to the user. `mode` is what runs unasked in sessions whose mode
    nobody has set; of a sub-agent it is the loosest that it can have.
    """

    model: str | Model | None = None
    tools: Sequence["Tool[..., Any] | Callable[..., object]"] = ()
    workspace: str | Path | None = None
    instructions: str = ""
    policy: "Policy | None" = None
    budget: Budget = LoopSettings().budget
    session_budget: Budget = LoopSettings().session_budget
    tool_settings: "ToolSettings | None" = None
    project_instructions: bool = True
    titles: bool = False
    description: str = ""
    sub_agents: Mapping[str, "Agent"] | None = None
    sub_models: Sequence[str] = ()
    asks: bool = False
    mode: PermissionMode | str = PermissionMode.ASK

    def __post_init__(self) -> None:
        model = self.model
        if not (model is None or isinstance(model, str) or callable(getattr(model, "open", None))):
            right = (
                'give a name such as "openai:gpt-5-mini", a Model, or None for the best there is'
            )
            raise wrong("model", model, right)
        if not isinstance(self.tools, list | tuple) or not all(map(callable, self.tools)):
            raise wrong("tools", self.tools, "give a list of functions or of tools made with @tool")
        check_path_or_none(workspace=self.workspace)
        choose(PermissionMode, self.mode)
        check_texts(instructions=self.instructions, description=self.description)
        if self.policy is not None and not callable(getattr(self.policy, "decide", None)):
            raise wrong("policy", self.policy, "give a Policy or None")
        for name in ("budget", "session_budget"):
            if not isinstance(getattr(self, name), Budget):
                raise wrong(name, getattr(self, name), "give a Budget, such as Budget(steps=100)")
        if self.sub_agents is not None and not isinstance(self.sub_agents, Mapping):
            raise wrong("sub_agents", self.sub_agents, "give a dict of names and Agents, or None")
        for name, agent in (self.sub_agents or {}).items():
            if not isinstance(agent, Agent):
                raise wrong(f"sub_agents[{name!r}]", agent, "give an Agent")
        if not isinstance(self.sub_models, list | tuple):
            raise wrong("sub_models", self.sub_models, "give a list of names of models")
        check_texts(**{f"sub_models[{at}]": name for at, name in enumerate(self.sub_models)})


class _ClosedWhole(AsyncExitStack):
    """What is in it is closed to the end also where a cancelled scope is left: each is bounded, and
    the lock on the data must not be let go before the store is."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool:
        with anyio.CancelScope(shield=True):
            absorbed = await super().__aexit__(kind, error, trace)
        return bool(absorbed)


class Engine:
    """`async with Engine(Agent(...)) as engine:` sessions that can be interrupted at any moment.

    Sessions are kept in `home` (the user's data directory unless given), which one process owns
    at a time; `store="memory"` keeps them nowhere. `on_notice` hears, in words for people, what
    takes long: fetching and loading the embedded model. `observe` is told of everything that any
    session shows, for figures and traces. `tidies=False` leaves deleting old sessions, if
    `retention.sessions_days` is set, to somebody else. `grants` keeps what users allow for always;
    without it they can allow things for a session at most.
    """

    def __init__(
        self,
        agent: Agent | AgentFunction,
        *,
        home: str | Path | None = None,
        store: Store | Literal["memory"] | None = None,
        config: "Config | None" = None,
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        on_notice: Callable[[str], object] | None = None,
        observe: Observe | None = None,
        tidies: bool = True,
        grants: ProjectGrants | None = None,
    ) -> None:
        if not isinstance(agent, Agent) and not callable(agent):
            raise TypeError(f"an agent is an Agent or an async function, not {agent!r}")
        if home is not None and store is not None:
            raise TypeError("give either home or store: home is for the default store")
        check_path_or_none(home=home)
        if store not in (None, "memory") and not callable(getattr(store, "events", None)):
            raise wrong("store", store, 'give "memory", a Store, or None for the one in home')
        if limits is not None and not isinstance(limits, Limits):
            raise wrong("limits", limits, "give Limits or None")
        check_callable_or_none(on_notice=on_notice, observe=observe)
        self._agent = agent
        self._home = Path(home) if home is not None else None
        self._store = store
        self._config = config
        self._hooks = hooks
        self._limits = limits
        self._on_notice = on_notice
        self._observe = observe
        self._tidies = tidies
        self._grants = grants
        self._stack: AsyncExitStack = _ClosedWhole()
        self._engine: SessionEngine | None = None
        self._containment: Containment | None = None
        self._owners: Containment | None = None
        self._opening_owners = anyio.Lock()
        self._models: ModelInUse | None = None
        self._registry: ToolRegistry | None = None
        self._loop: LoopAgent | None = None
        self._source: CancelSource | None = None
        self._reserve: FileReserve | None = None

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise RuntimeError("an Engine was entered twice; make a new one")
        async with _ClosedWhole() as stack:
            owner = await stack.enter_async_context(TaskOwner(apart=True))
            self._source = source = stack.enter_context(CancelSource("engine wiring"))
            config = self._config or _load_config()
            store = await self._open_store(stack, config)
            agent = self._agent
            titles: Titles | None = None
            below: Below | None = None
            if isinstance(agent, Agent):
                wanted = agent.titles
                staff = await self._wire(agent, config, owner, source, stack)
                agent = self._loop = staff.agent()
                below = staff.below
                titles = _titles(self._loop) if wanted else None
            engine = SessionEngine(
                agent,
                store,
                compact=self._loop.compact if self._loop is not None else None,
                titles=titles,
                hooks=self._hooks,
                limits=self._limits,
                owner=owner,
                observe=self._observe,
                below=below,
                reserve=self._reserve,
                permission=PermissionSettings(
                    PermissionMode(getattr(self._agent, "mode", PermissionMode.ASK)),
                    Standing.APPROVER if self.agent_sees_data else Standing.WRITER,
                    self._grants,
                ),
            )
            self._engine = await stack.enter_async_context(engine)
            if self._tidies:
                _begin_to_tidy(engine, config)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def session(self, session_id: str) -> Session:
        """The session of this name, made if there is none."""
        return await self._opened.session(session_id)

    def land(
        self, session_id: str, reason: Reason, expected_turn: str | None = None
    ) -> Landing | None:
        """Cancel the running turn of a session at once. Any thread, any signal handler.

        None if the session is not in memory, so that nothing runs. The receipt is
        `Session.interrupt(landing=...)`'s to give.
        """
        actor = self._opened.actor_in_memory(session_id)
        return actor.land(reason, expected_turn) if actor is not None else None

    def state(self, session_id: str) -> SessionState | None:
        """What a session is doing; None if it is not in memory."""
        actor = self._opened.actor_in_memory(session_id)
        return actor.state if actor is not None else None

    def in_background(self, *, but: str) -> list[str]:
        """What runs in the background of the sessions in memory, except for one of them. Any
        thread; nothing if the engine is closed."""
        engine = self._engine
        if engine is None:
            return []
        actors = [engine.actor_in_memory(each) for each in engine.in_memory if each != but]
        running = [call for actor in actors if actor for call in list(actor.background.values())]
        return [f"{call.planned.call.name}  {call.planned.title}" for call in running]

    @property
    def core(self) -> SessionEngine:
        """The engine itself, for a surface that serves many sessions."""
        return self._opened

    async def hurry(self) -> None:
        """Go straight to the kill with processes that are being stopped already."""
        for containment in (self._containment, self._owners):
            if containment is None:
                continue
            for own in containment.own_processes:
                own.hurry()
            for process in containment.processes:
                if process.stopping:
                    await process.stop(hurry=True)

    @property
    def model_name(self) -> str:
        return self._models.model.name if self._models is not None else ""

    @property
    def model_why(self) -> str:
        """In a few words, why it is this model."""
        return self._models.why if self._models is not None else ""

    def use_model(self, name: str) -> None:
        """Change the model, from the next step on."""
        if self._models is None or self._loop is None:
            raise UserError("this engine runs an agent of its own, which chooses its model")
        self._models.use(name)
        self._loop.model = self._models.model

    async def warm_up(self) -> None:
        """Have a model that runs on this machine loaded before it is asked."""
        if self._models is not None and self._source is not None:
            await self._models.warm_up(self._source.token)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """What the model is offered, if it takes tools."""
        return self._registry.schemas() if self._registry is not None else ()

    @property
    def takes_tools(self) -> bool:
        """False if it is known that the model is given none, because it cannot use them."""
        return self._models.takes_tools if self._models is not None else True

    @property
    def containment(self) -> "Containment | None":
        """Where commands run, if there is a workspace or a tool of the user's own."""
        return self._containment

    @property
    def agent_sees_data(self) -> bool:
        """Whether commands of the agent can read the data directory, and so all that is in it."""
        return self._containment is not None and not self._containment.report.hiding.works

    async def owners_containment(self) -> "Containment | None":
        """Where the user's own commands run: contained, but not kept from anything."""
        if self._containment is None or not self._containment.report.hiding.works:
            return self._containment
        from bargein.process import open_containment

        async with self._opening_owners:
            if self._owners is None:
                home = self._home or (self._config or _load_config()).home
                self._owners = await self._stack.enter_async_context(
                    await open_containment(home=home)
                )
        return self._owners

    async def sessions(self, *, limit: int = 100) -> list[SessionHead]:
        """What is kept, the last used first; without those in which nothing was ever said."""
        return [head for head in await self._opened.store.sessions(limit=limit) if head.seq]

    @property
    def _opened(self) -> SessionEngine:
        if self._engine is None:
            raise UserError("the engine is not open; use `async with Engine(...) as engine:`")
        return self._engine

    async def _open_store(self, stack: AsyncExitStack, config: "Config") -> Store:
        if self._store == "memory":
            from bargein.stores.memory import MemoryStore

            return MemoryStore()
        if self._store is not None:
            return self._store
        from bargein.cli.keeping import keep_copy_before_upgrade
        from bargein.stores.reserve import FILE as RESERVE
        from bargein.stores.reserve import FileReserve
        from bargein.stores.sqlite import SqliteStore

        home = self._home or config.home
        make_home(home)
        stack.enter_context(own_home(home))
        keep_copy_before_upgrade(home, self._on_notice)
        store = await SqliteStore.open(home / DATABASE)
        stack.push_async_callback(store.aclose)
        self._reserve = FileReserve.open(home / RESERVE)
        if self._reserve is not None:
            stack.callback(self._reserve.close)
        return store

    async def _wire(
        self,
        agent: Agent,
        config: "Config",
        owner: TaskOwner,
        source: CancelSource,
        stack: AsyncExitStack,
    ) -> "Staff":
        from bargein.cli.models import ModelInUse
        from bargein.cli.secluded import NOTHING, hiding_of, local_hiding_of
        from bargein.cli.staff import (
            Workplace,
            may_start_processes,
            staff_of,
            starts_processes,
        )
        from bargein.process import containment_when_needed, open_containment

        home = self._home or config.home
        hiding = hiding_of(agent, config, home)
        on = bool(config["sandbox.hide_data"])
        hidden = hiding if on else NOTHING
        containment: Containment | None = None
        if starts_processes(agent):
            containment = await open_containment(home=home, hiding=hidden)
        elif may_start_processes(agent) and _runs_asyncio():
            containment = containment_when_needed(home=home, hiding=hidden)
        if containment is not None:
            self._containment = await stack.enter_async_context(containment)
        local = local_hiding_of(config, home) if on else NOTHING
        self._models = models = ModelInUse(config, stack, local, self._on_notice)
        await models.begin(agent.model, source.token)
        place = Workplace(config, self._containment, hiding, models, _project_instructions)
        staff = staff_of(agent, place, lambda: models.model)
        self._registry = staff.registry
        _refuse_unpriced(staff.settings, models.model)
        return staff


def _runs_asyncio() -> bool:
    """Processes are held on asyncio's loops alone."""
    import asyncio

    return asyncio._get_running_loop() is not None


def _begin_to_tidy(engine: SessionEngine, config: "Config") -> None:
    """Delete sessions that were not used for as long as is set, beside all else."""
    unused_s = config.seconds_of_days("retention.sessions_days")
    if unused_s is None:
        return
    from bargein.session.retention import delete_unused, deleting, repeat

    async def work() -> None:
        before = time.time() - unused_s
        await delete_unused(engine, before=before, delete=deleting(engine.store))

    engine.beside(partial(repeat, work))


def _project_instructions(agent: Agent, config: "Config") -> "ProjectInstructions | None":
    from bargein.cli.instructions import ProjectInstructions

    if agent.workspace is None or not agent.project_instructions:
        return None
    home = config.environment.get("HOME")
    return ProjectInstructions(Path(agent.workspace), Path(home) if home else None)


def _titles(loop: LoopAgent) -> Titles:
    # A script answers in its order: a title would take what is meant for the user.
    if loop.model.name.startswith("scripted"):
        return Titles()
    return Titles(lambda: loop.model)


def _refuse_unpriced(settings: LoopSettings, model: Model) -> None:
    """A budget of cost for a model whose price is not known could not be kept."""
    from bargein.models.retrying import RetryingModel

    wanted = settings.budget.cost is not None or settings.session_budget.cost is not None
    if wanted and isinstance(model, RetryingModel) and model.unpriced:
        raise UserError(
            f"a budget of cost cannot be kept: the price of {', '.join(model.unpriced)} is not "
            "known; set BARGEIN_PRICE, or a budget of tokens instead"
        )


def _load_config() -> "Config":
    from bargein.cli.config import load_config

    return load_config()


INSTRUCTIONS = """\
You help a person at a terminal, in the folder {folder}. Use the tools to look, run and change
things; say briefly what you did. The person may interrupt you at any moment: when you are told
that something was stopped, believe it, and check before you assume that it happened or not."""


def default_agent(config: "Config") -> Agent:
    """The agent of the terminal program: the model that was named, or the best there is, at work
    in the folder it was started in, as the configuration says."""
    from bargein.cli.rules import budget_of, policy_of, tool_settings_of

    folder = Path.cwd()
    own = config.text("instructions")
    return Agent(
        model=config.models.model,
        workspace=folder,
        instructions="\n\n".join(filter(None, [INSTRUCTIONS.format(folder=folder), own])),
        budget=budget_of(config, "budget"),
        session_budget=budget_of(config, "session_budget"),
        tool_settings=tool_settings_of(config),
        policy=policy_of(config),
        mode=config.text("mode"),
        titles=True,
        sub_agents={},
        asks=True,
    )


def found_in_words(name: str, why: str) -> list[str]:
    """For one who named no model: which was found, why, and what it cannot do."""
    found = [f"{name}: {why}"]
    if name == "local":
        found.append("it is tiny: it can talk, but use no tools, so it sees and changes no files")
    return found
