"""An agent that is open: its model, tools, MCP servers and snapshots, ready to run sessions.

An engine opens its own agent when it starts, and one for each folder in which sessions work
(`runtime.places`). The caller's exit stack closes everything that is opened here.
"""

import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bargein.cancel import CancelSource
from bargein.contracts.checkpoint import CheckpointError
from bargein.contracts.permission import PermissionMode, ProjectGrants
from bargein.errors import UserError
from bargein.runtime.agent_tree import (
    AgentTree,
    SandboxParts,
    SharedParts,
    build_agent_tree,
    starts_processes,
)
from bargein.runtime.data_directory import STAGES
from bargein.runtime.model_in_use import ModelInUse
from bargein.session.agent import LoopAgent, LoopSettings
from bargein.session.title import Titles

if TYPE_CHECKING:
    from bargein.checkpoints.keeper import Keeper
    from bargein.checkpoints.repository import StageFolder
    from bargein.contracts.model import Model, ToolSchema
    from bargein.mcp.servers import McpServers
    from bargein.process import Containment, Hiding
    from bargein.runtime.agent import Agent
    from bargein.runtime.config import Config


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all agents of an engine share. `hiding` is what file tools refuse, `local_hiding` what
    a model on this machine must not see. `users_containment` opens the containment in which
    snapshots are taken, and `checkpoints` is their directory. `sandbox` opens the sandbox that a
    configuration asks for."""

    containment: "Containment | None"
    sandbox: "Callable[[Config], Awaitable[SandboxParts | None]]"
    hiding: "Hiding"
    local_hiding: "Hiding"
    open_mcp: "Callable[[Config, AsyncExitStack, Agent[Any]], McpServers | None]"
    users_containment: "Callable[[], Awaitable[Containment | None]]"
    checkpoints: Callable[[], Path]
    source: CancelSource
    stage_sandbox: "Callable[[Config, Path], Awaitable[SandboxParts]]"
    """Opens the sandbox in which commands see a stage in this folder."""

    def stages(self) -> Path:
        return self.checkpoints().parent / STAGES

    def keeper_of(
        self, agent: "Agent[Any]", config: "Config", stage: "StageFolder | None" = None
    ) -> "Keeper | None":
        """Snapshots are taken of an agent's workspace, or of a stage of it, if git is there to take
        them. One keeper at a time can use a workspace."""
        if agent.workspace is None or self.containment is None:
            return None
        if not (config["checkpoints.enabled"] and shutil.which("git")):
            return None
        from bargein.checkpoints.keeper import Keeper
        from bargein.checkpoints.repository import Bounds

        return Keeper(
            agent.workspace,
            self.checkpoints(),
            self.users_containment,
            self.source,
            bounds=Bounds(
                file_bytes_max=int(config.number("checkpoints.file_megabytes_max")) << 20,
                files_max=int(config.number("checkpoints.files_max")),
            ),
            stage=stage,
            stage_bytes_max=int(config.number("sandbox.stage_megabytes_max")) << 20,
        )


@dataclass(frozen=True, slots=True)
class OpenedAgent:
    """`mcp` are the MCP servers of the agent and its sub-agents."""

    agent: "Agent[Any]"
    config: "Config"
    models: ModelInUse
    tree: AgentTree
    mcp: "tuple[McpServers, ...]"
    grants: ProjectGrants | None

    @property
    def mode(self) -> PermissionMode:
        return PermissionMode(self.agent.mode)

    @property
    def tools(self) -> "tuple[ToolSchema, ...]":
        return self.tree.registry.schemas()

    def loop_agent(self, model: "Model | None" = None) -> "tuple[LoopAgent, AgentTree]":
        """Returns the agent's loop, and the tree that makes sub-agents with the same model."""
        if model is None:
            loop = self.tree.loop_agent()
            return loop, self.tree
        loop = replace(self.tree, model=lambda: model).loop_agent()
        return loop, replace(self.tree, model=lambda: loop.model)

    def titles(self, loop: LoopAgent) -> Titles | None:
        if not self.agent.titles:
            return None
        # A scripted model plays its answers in order: asking for a title would use one of them up.
        if loop.model.name.startswith("scripted"):
            return Titles()
        return Titles(lambda: loop.model)


async def open_agent(
    agent: "Agent[Any]",
    config: "Config",
    around: Surroundings,
    stack: AsyncExitStack,
    *,
    grants: ProjectGrants | None,
    on_notice: Callable[[str], object] | None,
    stage: "StageFolder | None" = None,
) -> OpenedAgent:
    """Opens an agent, which works in `stage` instead of its workspace if it is given. Raises
    `UserError` if its model or its settings are wrong."""
    models = ModelInUse(config, stack, around.local_hiding, on_notice)
    await models.begin(agent.model, around.source.token)
    mcp: list[McpServers] = []

    def open_mcp(each: "Agent[Any]") -> "McpServers | None":
        servers = around.open_mcp(config, stack, each)
        if servers is not None:
            servers.on_notice = on_notice
            mcp.append(servers)
        return servers

    if stage is not None:
        sandbox: SandboxParts | None = await around.stage_sandbox(config, around.stages())
    else:
        sandbox = await around.sandbox(config) if starts_processes(agent) else None
    shared = SharedParts(
        config,
        around.containment,
        around.hiding,
        models,
        open_mcp,
        sandbox,
        None if stage is None else (_real(agent), stage.tree),
    )
    tree = build_agent_tree(agent, shared, lambda: models.model)
    _refuse_unpriced(tree.settings, models.model)
    return OpenedAgent(agent, config, models, tree, tuple(mcp), grants)


def _real(agent: "Agent[Any]") -> str:
    return os.path.realpath(agent.workspace or ".")


async def tidy(keeper: "Keeper", config: "Config") -> None:
    """Drops snapshots that are too old or take too much room."""
    keep_s = config.seconds_of_days("checkpoints.keep_days") or 0.0
    bytes_max = int(config.number("checkpoints.megabytes_max")) << 20
    with suppress(CheckpointError):
        await keeper.tidy(keep_s=keep_s, bytes_max=bytes_max)


def _refuse_unpriced(settings: LoopSettings, model: "Model") -> None:
    """Raises if a budget of cost is set for a model whose price is not known."""
    from bargein.models.retrying import RetryingModel

    has_cost = settings.budget.cost is not None or settings.session_budget.cost is not None
    if has_cost and isinstance(model, RetryingModel) and model.unpriced:
        raise UserError(
            f"a budget of cost cannot be kept: the price of {', '.join(model.unpriced)} is not "
            "known; set BARGEIN_PRICE, or a budget of tokens instead"
        )
