"""`Engine`: opens the data directory, the store, the model and the tools, runs sessions over them,
and closes all of it again.

`from bargein import Engine` gives this class. It imports heavy parts when it opens them.
"""

import hashlib
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio
import msgspec

from bargein.cancel import CancelSource, TaskOwner
from bargein.contracts.given import check_callable_or_none, check_path_or_none, wrong
from bargein.contracts.model import ToolSchema
from bargein.contracts.output_type import T
from bargein.contracts.permission import PermissionMode, ProjectGrants, Standing
from bargein.contracts.place import SessionPlace
from bargein.contracts.receipt import Receipt, Scope
from bargein.contracts.store import LeasedStore, SessionHead, SessionUnreadable, Store
from bargein.errors import UserError
from bargein.runtime.agent import Agent
from bargein.runtime.data_directory import (
    CHECKPOINTS,
    DATABASES,
    SESSIONS_FILE,
    make_data_directory,
    own_data_directory,
)
from bargein.runtime.directory_lock import DirectoryLock
from bargein.session.actor import Parts
from bargein.session.agent import LoopAgent
from bargein.session.broadcast import Observe
from bargein.session.children import Below
from bargein.session.engine import PartsOf, SessionEngine
from bargein.session.hooks import Hooks
from bargein.session.limits import Limits
from bargein.session.permits import PermissionSettings
from bargein.session.session import Session
from bargein.session.snapshot import stored_in
from bargein.session.state import SessionState
from bargein.session.title import Titles
from bargein.session.turn import AgentFunction

if TYPE_CHECKING:
    from bargein.checkpoints.keeper import Keeper
    from bargein.mcp.overview import McpOverview, ServerStatus
    from bargein.mcp.servers import ClosedIn, McpServers
    from bargein.mcp.tasks import LostTasks
    from bargein.process import CommandLimits, Containment, Hiding, Network, SandboxReport
    from bargein.runtime.agent_tree import SandboxParts
    from bargein.runtime.config import Config
    from bargein.runtime.hook_config import OutsideHook
    from bargein.runtime.opened_agent import OpenedAgent, Surroundings
    from bargein.runtime.placed_agent import AgentOf
    from bargein.runtime.places import Places
    from bargein.stores.reserve import FileReserve

__all__ = ["Engine"]

DATABASE_NAME_CHARACTERS = 16

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
    several people: they never share the process of an MCP server. `agent_of` says which agent a
    session works with that has a place (`Session.set_place`): one engine can work in many folders.
    Without it all sessions have the engine's own agent. `place_of` says where a session works that
    was given no place.
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
        agent_of: "AgentOf | None" = None,
        place_of: "Callable[[str], SessionPlace | None] | None" = None,
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
        check_callable_or_none(agent_of=agent_of, place_of=place_of)
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
        self._agent_of = agent_of
        self._stack: AsyncExitStack = _ShieldedExitStack()
        self._opened_late: AsyncExitStack = _ShieldedExitStack()
        self._engine: SessionEngine | None = None
        self._containment: Containment | None = None
        self._users_containment: Containment | None = None
        self._opening_users_containment = anyio.Lock()
        self._mcp_containment: Containment | None = None
        self._sandboxes: dict[object, tuple[Containment, Path]] = {}
        self._place_of = place_of
        self._open_sandbox_for: Callable[[Config], Awaitable[SandboxParts | None]] | None = None
        self._opening_sandbox = anyio.Lock()
        self._doors: dict[tuple[str, ...], str] = {}
        self._mcp: list[McpServers] = []
        self._own: OpenedAgent | None = None
        self._loop: LoopAgent | None = None
        self._places: Places | None = None
        self._stage_in: Callable[[], Places] | None = None
        self._stages: Places | None = None
        self._beside_stages: Containment | None = None
        self._source: CancelSource | None = None
        self._reserve: FileReserve | None = None
        self._keeper: Keeper | None = None
        self._temporary: Path | None = None

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise RuntimeError("an Engine was entered twice; make a new one")
        async with _ShieldedExitStack() as stack:
            owner = await stack.enter_async_context(TaskOwner(apart=True))
            # Sessions use it until they are closed, whenever it was opened.
            await stack.enter_async_context(self._opened_late)
            self._source = source = stack.enter_context(CancelSource("engine"))
            config = self._config or _load_config()
            store = await self._open_store(stack, config)
            if isinstance(store, LeasedStore):
                stack.callback(_heed_deadline_of(store))
            agent = self._agent
            titles: Titles | None = None
            below: Below | None = None
            around: Surroundings | None = None
            if isinstance(agent, Agent) or self._agent_of is not None:
                around = await self._open_surroundings(config, source, stack)
            if around is not None and isinstance(agent, Agent):
                self._own = await self._open_own(agent, config, around, stack)
                self._loop, tree = self._own.loop_agent()
                below = tree.sub_agent
                titles = self._own.titles(self._loop)
                self._keeper = around.keeper_of(self._own.agent, config)
            if self._keeper is not None:
                stack.push_async_callback(self._keeper.aclose)
            if around is not None:
                self._open_places(config, around, stack)
            observe = await self._observe_for_hooks(config, stack)
            engine = SessionEngine(
                self._loop or agent,  # type: ignore[arg-type]  # an Agent has become its loop
                store,
                compact=self._loop.compact if self._loop is not None else None,
                toolbox=self._own.tree.registry if self._own is not None else None,
                side_request=self._loop.side_request if self._loop is not None else None,
                titles=titles,
                hooks=self._hooks,
                limits=self._limits,
                owner=owner,
                observe=observe,
                below=below,
                reserve=self._reserve,
                permission=PermissionSettings(
                    PermissionMode(getattr(self._agent, "mode", PermissionMode.ASK)),
                    Standing.APPROVER if self.agent_sees_data else Standing.WRITER,
                    self._grants,
                ),
                output_type=self._loop.output_type if self._loop is not None else None,
                checkpoints=self._keeper,
                parts_of=self._parts_of(),
                place_of=self._place_of or self._staged_place(config),
                lost_calls=self._lost_calls(),
                machine=_machine_of(store, config),
            )
            if self._places is not None:
                self._places.show_notices_in(engine.actor_in_memory)
            if isinstance(store, LeasedStore):
                store.on_lost(partial(engine.lose_everything, LEASE_LOST))
            self._engine = await stack.enter_async_context(engine)
            if isinstance(store, LeasedStore):
                engine.spawn(partial(engine.recovery.rescue, store))
            if self._deletes_old_sessions:
                _delete_old_sessions(engine, config)
            if self._keeper is not None:
                _drop_old_snapshots(engine, self._keeper, config)
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

    own_senders = frozenset({"user", "operator"})
    """The senders that stand for the user at the terminal of this process;
    `operator` where a host ran the session before."""

    sharing = None
    """Only a host or a server shares its sessions with guests."""

    @property
    def has_places(self) -> bool:
        """Whether sessions work in folders of their own."""
        return self._places is not None

    async def session(self, session_id: str) -> Session[T]:
        """Returns the session of this name, and creates it if it does not exist."""
        return await self._opened.session(session_id)

    def child(self, session_id: str) -> Session[Any]:
        """Returns the session of a sub-agent that exists, to look at."""
        return Session(self._opened, session_id)

    async def sessions(self, *, limit: int = 100) -> list[SessionHead]:
        """Lists stored sessions, the last used first; skips empty ones."""
        return [head for head in await self._opened.store.sessions(limit=limit) if head.seq]

    def workspace_of(self, session: SessionHead) -> str:
        """Returns the folder of a session in a list; empty if nobody has said."""
        with suppress(SessionUnreadable):
            place = stored_in(session).state.place
            return place.workspace if place is not None else ""
        return ""

    async def stop_all(self, *, by: str = "user") -> tuple[Receipt, ...]:
        """Stops everything in all sessions, the background included. Returns what was stopped."""
        return await self._opened.stop_all(scope=Scope.SESSION, by=by)

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

    def opened_for(self, session_id: str) -> "tuple[OpenedAgent, LoopAgent] | None":
        """The agent that a session in memory works with, and its loop; None for a session without a
        place, in an engine that has no agent of its own."""
        places = self._places or self._stages
        found = places.agent_in(session_id) if places is not None else None
        if found is None and self._own is not None and self._loop is not None:
            return self._own, self._loop
        return found

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
        return self._own.models.model.name if self._own is not None else ""

    @property
    def model_why(self) -> str:
        """Says in a few words why the engine uses this model."""
        return self._own.models.why if self._own is not None else ""

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the model reads at most; None if that is not known."""
        return self._own.models.model.context_tokens if self._own is not None else None

    def use_model(self, name: str) -> None:
        """Changes the model, from the next step on."""
        if self._own is None or self._loop is None:
            raise UserError(
                "this engine runs a user-written agent, which chooses its model itself; change "
                "the model in the agent"
            )
        self._own.models.use(name)
        self._loop.model = self._own.models.model

    async def use_model_in(self, session_id: str, name: str) -> None:
        """Changes the model of a session: of the place that it has, or else of the engine."""
        session = await self.session(session_id)
        place = await session.place()
        if self._places is not None and place is not None:
            await session.set_place(msgspec.structs.replace(place, model=name))
        else:
            self.use_model(name)

    async def warm_up(self) -> None:
        """Loads a model that runs on this machine before the first request needs it."""
        if self._own is not None and self._source is not None:
            await self._own.models.warm_up(self._source.token)

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the engine offers to a model that can use tools."""
        return self._own.tools if self._own is not None else ()

    @property
    def takes_tools(self) -> bool:
        """False if the model is known to be unable to use tools, so that it gets none."""
        return self._own.models.takes_tools if self._own is not None else True

    def mcp_status(self) -> "tuple[ServerStatus, ...]":
        """What each MCP server is doing."""
        return tuple(status for servers in self._mcp for status in servers.status())

    async def mcp_prompt(self, name: str, words: str = "", principal: str = "") -> str:
        """Returns the text of an MCP server's prompt, by a name such as `mcp__git__review`."""
        for servers in self._mcp:
            if any(name.startswith(f"mcp__{each}__") for each in servers.names):
                return await servers.prompt(name, words, principal)
        raise UserError(f"no MCP server has a prompt /{name}; /mcp lists the servers")

    async def mcp_overview(self, principal: str | None = None) -> "McpOverview":
        """Returns what `/mcp` shows: the MCP servers that a principal uses, or all if it is None,
        and the prompts of those that are running."""
        from bargein.mcp.overview import McpOverview

        found = [await servers.overview(principal) for servers in self._mcp]
        return McpOverview(
            tuple(server for each in found for server in each.servers),
            tuple(prompt for each in found for prompt in each.prompts),
        )

    # Processes

    @property
    def containment(self) -> "Containment | None":
        """Where the agent's commands run; None without a workspace and user-written tools."""
        return self._containment

    async def sandbox_for(self, config: "Config") -> "SandboxReport | None":
        """How commands would be closed in by these settings; None if they would not."""
        if self._open_sandbox_for is None:
            return None
        parts = await self._open_sandbox_for(config)
        return parts.containment.report.sandbox if parts is not None else None

    @property
    def sandbox(self) -> "SandboxReport | None":
        """How the agent's commands are closed in; None if the sandbox is off."""
        return next((each.report.sandbox for each, _ in self._sandboxes.values()), None)

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
                self._users_containment = await self._opened_late.enter_async_context(
                    await open_containment(home=home)
                )
        return self._users_containment

    async def hurry(self) -> None:
        """Kills every process that is already being stopped, without further grace."""
        for containment in (
            self._containment,
            *(each for each, _ in self._sandboxes.values()),
            self._users_containment,
            self._mcp_containment,
            self._beside_stages,
        ):
            if containment is None:
                continue
            for own in containment.own_processes:
                own.hurry()
            for process in containment.processes:
                if process.stopping:
                    await process.stop(hurry=True)

    def _open_places(self, config: "Config", around: "Surroundings", stack: AsyncExitStack) -> None:
        if self._agent_of is not None:
            from bargein.runtime.places import Places

            own = {} if self._keeper is None else {self._keeper.workspace: self._keeper}
            self._places = Places(self._agent_of, around, own)
            stack.push_async_callback(self._places.aclose)
        elif isinstance(self._agent, Agent) and self.workspace:
            self._stage_in = partial(self._stage_own, self._agent, config, around)

    # Staged turns

    def _staged_place(self, config: "Config") -> "Callable[[str], SessionPlace | None] | None":
        if self._stage_in is None or config["sandbox.staged"] != "on":
            return None
        return lambda session_id: SessionPlace("", staged=True)

    def _parts_of(self) -> PartsOf | None:
        """Without `agent_of` only a session that is staged has parts of its own."""
        if self._places is not None:
            return self._places.parts_of
        return self._parts_if_staged if self._stage_in is not None else None

    async def _parts_if_staged(
        self,
        parts: Parts,
        session_id: str,
        place: SessionPlace,
        *,
        environment: Mapping[str, str] | None = None,
        brought: bool = False,
        created_at: float = 0.0,
    ) -> Parts:
        if not place.staged:
            if self._stages is not None:
                self._stages.forget(session_id)
            return parts
        assert self._stage_in is not None
        if self._stages is None:
            self._stages = self._stage_in()
            if self._engine is not None:
                self._stages.show_notices_in(self._engine.actor_in_memory)
            self._opened_late.push_async_callback(self._stages.aclose)
        return await self._stages.parts_of(
            parts, session_id, place, brought=brought, created_at=created_at
        )

    def _stage_own(self, agent: Agent[T], config: "Config", around: "Surroundings") -> "Places":
        """The stages of an engine whose sessions have no places: copies of its own folder."""
        from bargein.runtime.placed_agent import PlacedAgent
        from bargein.runtime.places import Places

        folder = os.path.realpath(self.workspace)

        def agent_of(place: SessionPlace, environment: Mapping[str, str]) -> PlacedAgent:
            if place.workspace and os.path.realpath(place.workspace) != folder:
                raise UserError(
                    f"this engine stages only its own workspace, {folder}; to work in others it "
                    "needs agent_of"
                )
            return PlacedAgent(agent, config, self._grants)

        return Places(agent_of, around, {})

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
        if reserve_in is None and stores.is_postgres(address):
            reserve_in = _own_directory_for(str(address), home, stack)
        if reserve_in is not None:
            self._open_reserve(reserve_in, stack)
        return store

    def _open_reserve(self, directory: Path, stack: AsyncExitStack) -> None:
        from bargein.stores.reserve import FILE, FileReserve

        self._reserve = FileReserve.open(directory / FILE)
        if self._reserve is not None:
            stack.callback(self._reserve.close)

    async def _open_surroundings(
        self, config: "Config", source: CancelSource, stack: AsyncExitStack
    ) -> "Surroundings":
        """Opens what all agents of this engine share; first of all where their commands run."""
        from bargein.process import containment_when_needed, open_containment
        from bargein.runtime.agent_tree import may_start_processes, starts_processes
        from bargein.runtime.hiding import (
            NOTHING,
            hiding_of,
            hiding_without_workspace,
            local_hiding_of,
        )
        from bargein.runtime.opened_agent import Surroundings

        home = self._home or config.home
        agent = self._agent if isinstance(self._agent, Agent) else None
        hiding = (
            hiding_of(agent, config, home)
            if agent is not None
            else hiding_without_workspace(config, home)
        )
        is_on = bool(config["sandbox.hide_data"])
        hidden = hiding if is_on else NOTHING
        containment: Containment | None = None
        if self._agent_of is not None or (agent is not None and starts_processes(agent)):
            limits = command_limits_of(config)
            containment = await open_containment(home=home, hiding=hidden, limits=limits)
        elif agent is not None and may_start_processes(agent) and _runs_asyncio():
            containment = containment_when_needed(home=home, hiding=hidden)
        if containment is not None:
            self._containment = await stack.enter_async_context(containment)
        self._open_sandbox_for = partial(self._open_sandbox, home, hidden)
        return Surroundings(
            containment=self._containment,
            sandbox=self._open_sandbox_for,
            hiding=hiding,
            local_hiding=local_hiding_of(config, home) if is_on else NOTHING,
            open_mcp=partial(self._open_mcp, home, hidden),
            users_containment=self.users_containment,
            checkpoints=partial(self._checkpoints_directory, config),
            source=source,
            stage_sandbox=partial(self._open_stage_sandbox, home, hidden),
        )

    async def _open_own(
        self,
        agent: Agent[T],
        config: "Config",
        around: "Surroundings",
        stack: AsyncExitStack,
    ) -> "OpenedAgent":
        from bargein.runtime.opened_agent import open_agent

        return await open_agent(
            agent, config, around, stack, grants=self._grants, on_notice=self._on_notice
        )

    async def _open_sandbox(
        self, home: Path, hidden: "Hiding", config: "Config"
    ) -> "SandboxParts | None":
        if config["sandbox.commands"] != "on" or self._containment is None:
            return None
        return await self._sandbox_parts(home, hidden, config)

    async def _open_stage_sandbox(
        self, home: Path, hidden: "Hiding", config: "Config", stages: Path
    ) -> "SandboxParts":
        """Staged commands run in the sandbox whatever the settings say, and see the stages."""
        from bargein.process import open_containment

        hidden = _showing(stages, hidden)
        parts = await self._sandbox_parts(home, hidden, config, with_stages=True)
        async with self._opening_sandbox:
            if self._beside_stages is None:
                limits = command_limits_of(config)
                self._beside_stages = await self._opened_late.enter_async_context(
                    await open_containment(home=home, hiding=hidden, limits=limits)
                )
        return replace(parts, beside=self._beside_stages)

    async def _sandbox_parts(
        self, home: Path, hidden: "Hiding", config: "Config", *, with_stages: bool = False
    ) -> "SandboxParts":
        """What is in the sandbox has a containment of its own, whose helper closes it in; one for
        each kind of network."""
        from bargein.process import open_containment
        from bargein.runtime.agent_tree import SandboxParts
        from bargein.sandbox.command_sandbox import SandboxSettings, temporary_folder

        network: Network = "all" if config["sandbox.network"] == "all" else "none"
        limits = command_limits_of(config)
        key = network, limits, with_stages
        async with self._opening_sandbox:
            opened = self._sandboxes.get(key)
            if opened is None:
                containment = await self._opened_late.enter_async_context(
                    await open_containment(home=home, hiding=hidden, network=network, limits=limits)
                )
                folder = Path(self._opened_late.enter_context(temporary_folder()))
                opened = self._sandboxes[key] = containment, folder
        settings = SandboxSettings(
            writable=config.texts("sandbox.writable"),
            hidden=config.texts("sandbox.hidden"),
            sealed=config["sandbox.outside"] == "never",
        )
        hosts = config.texts("sandbox.hosts") if network == "none" else ()
        return SandboxParts(*opened, settings, await self._door_to(hosts))

    async def _door_to(self, hosts: tuple[str, ...]) -> str:
        """The proxy for these hosts; empty if there are none."""
        if not hosts or not _runs_asyncio():
            return ""
        from bargein.sandbox.command_sandbox import temporary_folder
        from bargein.sandbox.host_proxy import HostProxy

        async with self._opening_sandbox:
            if hosts not in self._doors:
                folder = Path(self._opened_late.enter_context(temporary_folder()))
                proxy = await self._opened_late.enter_async_context(HostProxy(hosts, folder))
                self._doors[hosts] = proxy.door
            return self._doors[hosts]

    async def _close_mcp_in(
        self, home: Path, hidden: "Hiding", config: "Config", agent: Agent[Any], name: str
    ) -> "ClosedIn":
        from bargein.sandbox.command_sandbox import CommandSandbox

        parts = await self._sandbox_parts(home, hidden, config)
        sandbox = CommandSandbox(
            parts.containment,
            str(agent.workspace or "."),
            parts.folder,
            config.environment,
            parts.settings,
            hidden.directories,
            parts.door,
        )
        view = sandbox.view(f"mcp {name}")
        if view is None or sandbox.why_not:
            raise UserError(f"sandbox.mcp is on, but {sandbox.why_not}; set it to off")
        return parts.containment, view, sandbox.environment(view)

    def _open_mcp(
        self,
        home: Path,
        hidden: "Hiding",
        config: "Config",
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
        from bargein.runtime.mcp_tokens import authorizers

        if self._mcp_containment is None and _runs_asyncio():
            self._mcp_containment = containment_when_needed(home=home, hiding=hidden)
            self._opened_late.push_async_exit(self._mcp_containment)
        servers = McpServers(
            agent.mcp,
            containment=self._mcp_containment,
            folder="." if agent.workspace is None else agent.workspace,
            environment=config.environment,
            client_version=__version__,
            principal_of=self._principal_of or (lambda session_id: ""),
            proxy_for=config.models.proxy_for,
            why_not=config.mcp.why_not if config.mcp is not None else (lambda server: ""),
            authorizer_of=authorizers(config),
            closed_in=partial(self._close_mcp_in, home, hidden, config, agent)
            if config["sandbox.mcp"] == "on"
            else None,
        )
        stack.push_async_exit(servers)
        self._mcp.append(servers)
        stack.callback(self._mcp.remove, servers)
        return servers

    async def _observe_for_hooks(self, config: "Config", stack: AsyncExitStack) -> Observe | None:
        """Returns the observer of the sessions, with the hooks of the configuration. They are
        closed after the sessions, so that they learn how these ended."""
        if not _runs_asyncio() or not (config.hooks or self._places is not None):
            return self._observe
        from bargein.process import containment_when_needed
        from bargein.runtime.outside_hooks import HookRunner, both

        home = self._home or config.home
        runner = HookRunner(
            config.hooks,
            environment=config.environment,
            containment=partial(containment_when_needed, home=home),
            hooks_of=self._hooks_of_project,
        )
        await stack.enter_async_context(runner)
        return both(self._observe, runner.observe)

    def _hooks_of_project(self, session_id: str) -> "tuple[OutsideHook, ...]":
        """The hooks of the project that a session works in, if its folder is its own."""
        placed = self._places.agent_in(session_id) if self._places is not None else None
        if placed is None:
            return ()
        return tuple(hook for hook in placed[0].config.hooks if hook.table is not None)

    def _lost_calls(self) -> "LostTasks | None":
        if not self._mcp and self._places is None:
            return None
        from bargein.mcp.tasks import LostTasks

        return LostTasks(self._mcp)

    def _checkpoints_directory(self, config: "Config") -> Path:
        """Beside the sessions, which name the snapshots; sessions that are kept nowhere have
        snapshots that go with them."""
        from bargein import stores

        if self._store is None:
            return (self._home or config.home) / CHECKPOINTS
        directory = None
        if isinstance(self._store, str | Path):
            directory = stores.directory_of(self._store)
        if directory is None:
            import tempfile

            if self._temporary is None:
                made = tempfile.TemporaryDirectory(prefix="bargein-", ignore_cleanup_errors=True)
                self._temporary = Path(self._opened_late.enter_context(made))
            return self._temporary / CHECKPOINTS
        return directory / CHECKPOINTS


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


def _showing(stages: Path, hidden: "Hiding") -> "Hiding":
    """The same, with the folder of stages, which is made, to be seen."""
    stages.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = os.path.realpath(stages)
    if not hidden.covers(kept):
        return hidden
    return msgspec.structs.replace(hidden, kept=(*hidden.kept, kept))


def command_limits_of(config: "Config") -> "CommandLimits":
    from bargein.process import CommandLimits

    def number(key: str, unit: int = 1) -> int | None:
        value = config[f"limits.{key}"]
        return None if value is None else int(config.number(f"limits.{key}")) * unit

    return CommandLimits(
        memory_bytes=number("memory_megabytes", 1 << 20),
        processes=number("processes"),
        cpu_s=number("cpu_s"),
        file_bytes=number("file_megabytes", 1 << 20),
        tmp_bytes=number("tmp_megabytes", 1 << 20),
    )


def _load_config() -> "Config":
    from bargein.runtime.config import load_config

    return load_config()


def _heed_deadline_of(store: LeasedStore) -> Callable[[], None]:
    """Has helpers kill commands when the lease is over and this process is frozen. Returns a
    function that ends that."""
    from bargein.process.owner_deadline import OWNER_DEADLINE

    store.on_deadline(OWNER_DEADLINE.set)

    def end() -> None:
        store.on_deadline(lambda at: None)
        OWNER_DEADLINE.set(math.inf)

    return end


def _own_directory_for(address: str, home: Path, stack: AsyncExitStack) -> Path | None:
    """A directory in `home` for this process and this database. `home` itself is not taken: it may
    have an owner, whose sessions are elsewhere. None if there is no `home`, if it cannot be
    written to, or if another process of this machine has the directory."""
    from bargein.stores.postgres.address import parse_address

    if not home.is_dir():
        return None
    # Not the whole address: a password or an option may change between two starts.
    name = hashlib.sha256(parse_address(address).name.encode()).hexdigest()
    directory = home / DATABASES / name[:DATABASE_NAME_CHARACTERS]
    with suppress(OSError, UserError):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        stack.enter_context(DirectoryLock.take(directory))
        return directory
    return None


def _machine_of(store: Store, config: "Config") -> str:
    """The name of this machine, if other machines go on with its sessions and have other files."""
    import socket

    is_alone = not isinstance(store, LeasedStore) or config["cluster.shared_files"] is True
    return "" if is_alone else socket.gethostname()


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


def _drop_old_snapshots(engine: SessionEngine, keeper: "Keeper", config: "Config") -> None:
    """Drops, now and then, snapshots that are too old or take too much room."""
    from bargein.runtime.opened_agent import tidy
    from bargein.session.retention import repeat

    engine.spawn(partial(repeat, partial(tidy, keeper, config)))
