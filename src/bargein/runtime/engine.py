"""`Engine`: opens the data directory, the store, the model and the tools, runs sessions over them,
and closes all of it again.

`from bargein import Engine` gives this class. It imports heavy parts when it opens them.
"""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio

from bargein.cancel import CancelSource, TaskOwner
from bargein.contracts.given import check_callable_or_none, check_path_or_none, wrong
from bargein.contracts.model import Model, ToolSchema
from bargein.contracts.output_type import T
from bargein.contracts.permission import PermissionMode, ProjectGrants, Standing
from bargein.contracts.store import LeasedStore, SessionHead, Store
from bargein.errors import UserError
from bargein.runtime.agent import Agent
from bargein.runtime.data_directory import (
    SESSIONS_FILE,
    make_data_directory,
    own_data_directory,
)
from bargein.runtime.directory_lock import DirectoryLock
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
    from bargein.mcp.prompts import ListedPrompt
    from bargein.mcp.servers import McpServers, ServerStatus
    from bargein.process import Containment, Hiding
    from bargein.runtime.agent_tree import AgentTree
    from bargein.runtime.config import Config
    from bargein.runtime.model_in_use import ModelInUse
    from bargein.stores.reserve import FileReserve
    from bargein.tools import ToolRegistry

__all__ = ["Engine"]

LEASE_LOST = (
    "this node could not renew its lease, so other nodes may go on with its sessions; it stopped "
    "all of them"
)


class Engine(Generic[T]):
    """Runs sessions that can be interrupted at any moment.

    Open it with `async with Engine(Agent(...)) as engine:`.

    The engine keeps sessions in the data directory `home` (by default the user's), which one
    process owns at a time. With `store="memory"` it keeps them nowhere, with
    `store="sqlite:///path"` in that file, with `store="postgresql://..."` in a database that many
    machines can share. `config` replaces the configuration from files and the environment.
    `on_notice` receives sentences about slow work, such as fetching and loading the embedded model.
    `observe` receives everything that any session shows, for metrics and traces.
    With `deletes_old_sessions=False` the engine ignores `retention.sessions_days`: the caller
    deletes old sessions. `grants` stores what users always allow; without it they can allow
    something only for a session. `principal_of` returns the owner of a session, where there are
    several people: they never share the process of an MCP server.
    """

    def __init__(
        self,
        agent: Agent[T] | AgentFunction,
        *,
        home: str | Path | None = None,
        store: Store | str | Path | None = None,
        config: "Config | None" = None,
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        on_notice: Callable[[str], object] | None = None,
        observe: Observe | None = None,
        deletes_old_sessions: bool = True,
        grants: ProjectGrants | None = None,
        principal_of: Callable[[str], str] | None = None,
    ) -> None:
        if not isinstance(agent, Agent) and not callable(agent):
            raise TypeError(f"an agent is an Agent or an async function, not {agent!r}")
        if home is not None and store is not None:
            raise TypeError("give either home or store: home is for the default store")
        check_path_or_none(home=home)
        is_address = isinstance(store, str | Path)
        if not (store is None or is_address or callable(getattr(store, "events", None))):
            right = 'give an address such as "sqlite:///path" or "memory", a Store, or None'
            raise wrong("store", store, right)
        if limits is not None and not isinstance(limits, Limits):
            raise wrong("limits", limits, "give Limits or None")
        check_callable_or_none(on_notice=on_notice, observe=observe, principal_of=principal_of)
        self._agent = agent
        self._home = Path(home) if home is not None else None
        self._store = store
        self._config = config
        self._hooks = hooks
        self._limits = limits
        self._on_notice = on_notice
        self._observe = observe
        self._deletes_old_sessions = deletes_old_sessions
        self._grants = grants
        self._principal_of = principal_of
        self._stack: AsyncExitStack = _ShieldedExitStack()
        self._engine: SessionEngine | None = None
        self._containment: Containment | None = None
        self._users_containment: Containment | None = None
        self._opening_users_containment = anyio.Lock()
        self._models: ModelInUse | None = None
        self._mcp_containment: Containment | None = None
        self._mcp: list[McpServers] = []
        self._registry: ToolRegistry | None = None
        self._loop: LoopAgent | None = None
        self._source: CancelSource | None = None
        self._reserve: FileReserve | None = None

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise RuntimeError("an Engine was entered twice; make a new one")
        async with _ShieldedExitStack() as stack:
            owner = await stack.enter_async_context(TaskOwner(apart=True))
            self._source = source = stack.enter_context(CancelSource("engine"))
            config = self._config or _load_config()
            store = await self._open_store(stack, config)
            agent = self._agent
            titles: Titles | None = None
            below: Below | None = None
            if isinstance(agent, Agent):
                wants_titles = agent.titles
                tree = await self._open_agent(agent, config, owner, source, stack)
                agent = self._loop = tree.loop_agent()
                below = tree.sub_agent
                titles = _titles(self._loop) if wants_titles else None
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
                output_type=self._loop.output_type if self._loop is not None else None,
            )
            if isinstance(store, LeasedStore):
                store.on_lost(partial(engine.lose_everything, LEASE_LOST))
            self._engine = await stack.enter_async_context(engine)
            if isinstance(store, LeasedStore):
                engine.spawn(partial(engine.recovery.rescue, store))
            if self._deletes_old_sessions:
                _delete_old_sessions(engine, config)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    # Sessions

    attached_to = ""
    """Empty: the engine is in this process, and what it runs ends with it."""

    async def session(self, session_id: str) -> Session[T]:
        """Returns the session of this name, and creates it if it does not exist."""
        return await self._opened.session(session_id)

    async def sessions(self, *, limit: int = 100) -> list[SessionHead]:
        """Lists stored sessions, the last used first; skips empty ones."""
        return [head for head in await self._opened.store.sessions(limit=limit) if head.seq]

    def state(self, session_id: str) -> SessionState | None:
        """Returns what a session is doing; None if it is not in memory."""
        actor = self._opened.actor_in_memory(session_id)
        return actor.state if actor is not None else None

    def mode(self, session_id: str) -> PermissionMode | None:
        """Returns the permission mode of a session; None if it is not in memory."""
        actor = self._opened.actor_in_memory(session_id)
        return actor.permits.mode if actor is not None else None

    def in_background(self, *, but: str) -> list[str]:
        """Lists the background calls of all sessions in memory except `but`. Any thread may call
        it; the list is empty if the engine is closed."""
        engine = self._engine
        if engine is None:
            return []
        actors = [engine.actor_in_memory(each) for each in engine.in_memory if each != but]
        running = [call for actor in actors if actor for call in list(actor.background.values())]
        return [f"{call.planned.call.name}  {call.planned.title}" for call in running]

    @property
    def core(self) -> SessionEngine:
        """The session engine itself, for a surface that serves many sessions."""
        return self._opened

    # The model and its tools

    @property
    def workspace(self) -> str:
        """The folder that the agent works in; empty if it has none."""
        folder = getattr(self._agent, "workspace", None)
        return str(folder) if folder is not None else ""

    @property
    def model_name(self) -> str:
        return self._models.model.name if self._models is not None else ""

    @property
    def model_why(self) -> str:
        """Says in a few words why the engine uses this model."""
        return self._models.why if self._models is not None else ""

    def use_model(self, name: str) -> None:
        """Changes the model, from the next step on."""
        if self._models is None or self._loop is None:
            raise UserError(
                "this engine runs a user-written agent, which chooses its model itself; change "
                "the model in the agent"
            )
        self._models.use(name)
        self._loop.model = self._models.model

    async def warm_up(self) -> None:
        """Loads a model that runs on this machine before the first request needs it."""
        if self._models is not None and self._source is not None:
            await self._models.warm_up(self._source.token)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the engine offers to a model that can use tools."""
        return self._registry.schemas() if self._registry is not None else ()

    @property
    def takes_tools(self) -> bool:
        """False if the model is known to be unable to use tools, so that it gets none."""
        return self._models.takes_tools if self._models is not None else True

    def mcp_status(self) -> "tuple[ServerStatus, ...]":
        """What each MCP server is doing."""
        return tuple(status for servers in self._mcp for status in servers.status())

    async def mcp_prompt(self, name: str, words: str = "") -> str:
        """Returns the text of an MCP server's prompt, by a name such as `mcp__git__review`."""
        for servers in self._mcp:
            if any(name.startswith(f"mcp__{each}__") for each in servers.names):
                return await servers.prompt(name, words)
        raise UserError(f"no MCP server has a prompt /{name}; /mcp lists the servers")

    async def mcp_prompts(self) -> "tuple[ListedPrompt, ...]":
        """Lists the prompts of the MCP servers that are running."""
        found = [await servers.prompts() for servers in self._mcp]
        return tuple(prompt for each in found for prompt in each)

    # Processes

    @property
    def containment(self) -> "Containment | None":
        """Where the agent's commands run; None without a workspace and user-written tools."""
        return self._containment

    @property
    def agent_sees_data(self) -> bool:
        """Whether the agent's commands can read the data directory."""
        return self._containment is not None and not self._containment.report.hiding.works

    async def users_containment(self) -> "Containment | None":
        """Where the user's own commands run: contained, but with nothing hidden from them."""
        if self._containment is None or not self._containment.report.hiding.works:
            return self._containment
        from bargein.process import open_containment

        async with self._opening_users_containment:
            if self._users_containment is None:
                home = self._home or (self._config or _load_config()).home
                self._users_containment = await self._stack.enter_async_context(
                    await open_containment(home=home)
                )
        return self._users_containment

    async def hurry(self) -> None:
        """Kills every process that is already being stopped, without further grace."""
        for containment in (self._containment, self._users_containment, self._mcp_containment):
            if containment is None:
                continue
            for own in containment.own_processes:
                own.hurry()
            for process in containment.processes:
                if process.stopping:
                    await process.stop(hurry=True)

    # Opening

    @property
    def _opened(self) -> SessionEngine:
        if self._engine is None:
            raise UserError("the engine is not open; use `async with Engine(...) as engine:`")
        return self._engine

    async def _open_store(self, stack: AsyncExitStack, config: "Config") -> Store:
        given = self._store
        if given is not None and not isinstance(given, str | Path):
            return given
        from bargein import stores
        from bargein.runtime.backup import keep_copy_before_upgrade
        from bargein.stores.reserve import FILE as RESERVE
        from bargein.stores.reserve import FileReserve

        home = self._home or config.home
        address = given
        if address is None and self._home is None:
            address = config.text("store") or None
        directory = stores.directory_of(home / SESSIONS_FILE if address is None else address)
        if given is None:
            make_data_directory(home)
            stack.enter_context(own_data_directory(home))
        if address is None:
            keep_copy_before_upgrade(home, self._on_notice)
            address = home / SESSIONS_FILE
        elif directory is not None and (given is not None or directory != home.absolute()):
            stack.enter_context(DirectoryLock.take(directory))
        store = await stores.open(address)
        stack.push_async_callback(store.aclose)
        # On this machine, also if the sessions are on another.
        reserve_in = directory or (home if given is None else None)
        if reserve_in is not None:
            self._reserve = FileReserve.open(reserve_in / RESERVE)
        if self._reserve is not None:
            stack.callback(self._reserve.close)
        return store

    async def _open_agent(
        self,
        agent: Agent[T],
        config: "Config",
        owner: TaskOwner,
        source: CancelSource,
        stack: AsyncExitStack,
    ) -> "AgentTree":
        from bargein.process import containment_when_needed, open_containment
        from bargein.runtime.agent_tree import (
            SharedParts,
            build_agent_tree,
            may_start_processes,
            starts_processes,
        )
        from bargein.runtime.hiding import NOTHING, hiding_of, local_hiding_of
        from bargein.runtime.model_in_use import ModelInUse

        home = self._home or config.home
        hiding = hiding_of(agent, config, home)
        is_on = bool(config["sandbox.hide_data"])
        hidden = hiding if is_on else NOTHING
        containment: Containment | None = None
        if starts_processes(agent):
            containment = await open_containment(home=home, hiding=hidden)
        elif may_start_processes(agent) and _runs_asyncio():
            containment = containment_when_needed(home=home, hiding=hidden)
        if containment is not None:
            self._containment = await stack.enter_async_context(containment)
        local = local_hiding_of(config, home) if is_on else NOTHING
        self._models = models = ModelInUse(config, stack, local, self._on_notice)
        await models.begin(agent.model, source.token)
        mcp_of = partial(self._open_mcp, config, home, hidden, stack)
        shared = SharedParts(config, self._containment, hiding, models, mcp_of)
        tree = build_agent_tree(agent, shared, lambda: models.model)
        self._registry = tree.registry
        _refuse_unpriced(tree.settings, models.model)
        return tree

    def _open_mcp(
        self,
        config: "Config",
        home: Path,
        hidden: "Hiding",
        stack: AsyncExitStack,
        agent: Agent[Any],
    ) -> "McpServers | None":
        """Nothing is started here. Servers run apart from the agent's commands, which must not look
        into processes that were given keys."""
        if not agent.mcp:
            return None
        from bargein import __version__
        from bargein.mcp.servers import McpServers
        from bargein.process import containment_when_needed

        if self._mcp_containment is None and _runs_asyncio():
            self._mcp_containment = containment_when_needed(home=home, hiding=hidden)
            stack.push_async_exit(self._mcp_containment)
        servers = McpServers(
            agent.mcp,
            containment=self._mcp_containment,
            folder="." if agent.workspace is None else agent.workspace,
            environment=config.environment,
            client_version=__version__,
            principal_of=self._principal_of or (lambda session_id: ""),
            proxy_for=config.models.proxy_for,
            why_not=config.mcp.why_not if config.mcp is not None else (lambda server: ""),
        )
        stack.push_async_exit(servers)
        self._mcp.append(servers)
        return servers


class _ShieldedExitStack(AsyncExitStack):
    """Closes everything in it even if its task is cancelled. Each close has a bound, and the store
    must be closed before the lock on its directory is released."""

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


def _load_config() -> "Config":
    from bargein.runtime.config import load_config

    return load_config()


def _runs_asyncio() -> bool:
    """Containment runs on asyncio's loops only."""
    import asyncio

    return asyncio._get_running_loop() is not None


def _delete_old_sessions(engine: SessionEngine, config: "Config") -> None:
    """Regularly deletes the sessions that nobody used for `retention.sessions_days`."""
    unused_s = config.seconds_of_days("retention.sessions_days")
    if unused_s is None:
        return
    from bargein.session.retention import delete_unused, deleting, repeat

    async def work() -> None:
        before = time.time() - unused_s
        await delete_unused(engine, before=before, delete=deleting(engine.store))

    engine.spawn(partial(repeat, work))


def _titles(loop: LoopAgent) -> Titles:
    # A scripted model plays its answers in order: asking for a title would use one of them up.
    if loop.model.name.startswith("scripted"):
        return Titles()
    return Titles(lambda: loop.model)


def _refuse_unpriced(settings: LoopSettings, model: Model) -> None:
    """Raises if a budget of cost is set for a model whose price is not known."""
    from bargein.models.retrying import RetryingModel

    has_cost = settings.budget.cost is not None or settings.session_budget.cost is not None
    if has_cost and isinstance(model, RetryingModel) and model.unpriced:
        raise UserError(
            f"a budget of cost cannot be kept: the price of {', '.join(model.unpriced)} is not "
            "known; set BARGEIN_PRICE, or a budget of tokens instead"
        )
