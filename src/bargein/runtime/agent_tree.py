"""An `Agent` and its sub-agents as a tree that can build each of them for a task.

A task that names no agent gets a copy of its parent: the same model, tools and instructions, unless
the task asks for fewer tools, other instructions or an allowed model. A named sub-agent is an
`Agent` of its own.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bargein.contracts.model import Model
from bargein.contracts.output_type import output_type
from bargein.contracts.permission import PermissionMode
from bargein.contracts.tool import ChildTask
from bargein.errors import ModelMisbehaved, UserError
from bargein.runtime.project_instructions import ProjectInstructions
from bargein.sandbox.command_sandbox import CommandSandbox
from bargein.session.agent import LoopAgent, LoopSettings, ReadContext
from bargein.session.children import AgentKind
from bargein.tools import DEFAULT_POLICY, Tool, ToolRegistry
from bargein.tools.ask import ask_tool
from bargein.tools.delegate import NAME as DELEGATE
from bargein.tools.delegate import delegate_tool
from bargein.tools.isolation import ProcessIsolation
from bargein.tools.standard import open_tool_environment, standard_tools

if TYPE_CHECKING:
    from bargein.mcp.servers import McpServers
    from bargein.process import Containment, Hiding
    from bargein.runtime.agent import Agent
    from bargein.runtime.config import Config
    from bargein.runtime.model_in_use import ModelInUse
    from bargein.sandbox.command_sandbox import SandboxSettings

SUB_AGENT = (
    "You are a sub-agent: another agent gave you one task. Do it, and end with what you found and "
    "did; your last message is all that the other agent reads."
)


@dataclass(frozen=True, slots=True)
class SandboxParts:
    """What the sandboxes of all agents of an engine share. `folder` holds the sessions' /tmp."""

    containment: "Containment"
    folder: Path
    settings: "SandboxSettings"
    door: str = ""
    """Of the proxy through which commands reach the hosts that the user named."""
    beside: "Containment | None" = None
    """For a stage: where it can be seen without the sandbox."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that all agents of an engine share."""

    config: "Config"
    containment: "Containment | None"
    hiding: "Hiding"
    models: "ModelInUse"
    open_mcp: "Callable[[Agent[Any]], McpServers | None]"
    """Opens the MCP servers of an agent; None if it has none."""
    sandbox: SandboxParts | None = None
    stage: "tuple[str, str] | None" = None
    """A workspace, and the folder in which the agents work instead. Needs the sandbox."""


@dataclass(frozen=True, slots=True)
class AgentTree:
    """An agent with everything needed to build it and its sub-agents.

    `model` is called when a sub-agent begins, so that a change of the model reaches it. `named`
    has the sub-agents that a task can name, `models` the models that it can ask for. `mode` is the
    loosest permission mode that a sub-agent of this kind can have; None leaves it to its parent's.
    """

    model: Callable[[], Model]
    registry: ToolRegistry
    settings: LoopSettings
    read_context: ReadContext | None
    named: Mapping[str, "AgentTree"]
    models: Mapping[str, Callable[[], Model]]
    mode: PermissionMode | None = None

    def loop_agent(self) -> LoopAgent:
        prepare = self.registry.prepare if self.registry.has_foreign else None
        return LoopAgent(self.model(), self.registry, self.settings, self.read_context, prepare)

    def sub_agent(self, task: ChildTask, may_delegate: bool, /) -> AgentKind:
        """Builds the sub-agent for a task. Raises `ModelMisbehaved` if the task asks for an agent,
        a model or a tool that it cannot have."""
        tree = self._named(task.agent)
        if tree is self:
            # A copy of its parent uses the parent's mode at that time.
            tree = replace(tree, mode=None)
        if task.model:
            tree = replace(tree, model=self._model(task.model))
        if task.tools is not None:
            tree = replace(tree, registry=tree.registry.subset(task.tools))
        if not may_delegate:
            names = [name for name in tree.registry.names if name != DELEGATE]
            tree = replace(tree, registry=tree.registry.subset(names))
        own = task.instructions or tree.settings.instructions
        settings = LoopSettings(
            instructions="\n\n".join(filter(None, [own, SUB_AGENT])),
            budget=tree.settings.budget,
            output_tokens_max=tree.settings.output_tokens_max,
            temperature=tree.settings.temperature,
            # The type is for the parent's own answer: a copy reports on its task in words.
            output_type=tree.settings.output_type if task.agent else None,
        )
        return AgentKind(replace(tree, settings=settings).loop_agent(), tree.sub_agent, tree.mode)

    def _named(self, name: str) -> "AgentTree":
        if not name:
            return self
        tree = self.named.get(name)
        if tree is None:
            names = ", ".join(self.named) or "none; leave agent out"
            raise ModelMisbehaved(f"there is no sub-agent named {name!r}; there are: {names}")
        return tree

    def _model(self, name: str) -> Callable[[], Model]:
        model = self.models.get(name)
        if model is None:
            names = ", ".join(self.models) or "none; leave model out"
            raise ModelMisbehaved(f"model {name!r} is not available; available: {names}")
        return model


def build_agent_tree(
    agent: "Agent[Any]",
    shared: SharedParts,
    model: Callable[[], Model],
    deps: object = None,
    mcp: "McpServers | None" = None,
) -> AgentTree:
    """Builds the tree of an agent and its sub-agents, each with its own tools. `deps` and
    `mcp` are the parent's."""
    deps = agent.deps if agent.deps is not None else deps
    mcp = shared.open_mcp(agent) or mcp
    named = {
        name: build_agent_tree(each, shared, shared.models.like(each.model, model), deps, mcp)
        for name, each in (agent.sub_agents or {}).items()
    }
    return AgentTree(
        model=model,
        registry=_registry_of(agent, shared, deps, mcp),
        settings=LoopSettings(
            agent.instructions,
            agent.budget,
            agent.session_budget,
            output_type=None if agent.output in (None, str) else output_type(agent.output),
        ),
        read_context=_project_instructions(agent, shared.config.environment),
        named=named,
        models={name: partial(shared.models.named, name) for name in agent.sub_models},
        mode=_mode_of(agent),
    )


def _mode_of(agent: "Agent[Any]") -> PermissionMode | None:
    """Returns a sub-agent's own mode, if it is tighter than the default."""
    mode = PermissionMode(agent.mode)
    return mode if mode is PermissionMode.PLAN else None


def starts_processes(agent: "Agent[Any]") -> bool:
    """Whether the agent or a sub-agent has tools that run commands or their own processes."""
    below = (agent.sub_agents or {}).values()
    return (
        agent.workspace is not None
        or any(
            isinstance(each, Tool) and each.options.isolation == "process" for each in agent.tools
        )
        or any(starts_processes(each) for each in below)
    )


def may_start_processes(agent: "Agent[Any]") -> bool:
    """Whether the agent or a sub-agent has user-written tools, whose code may start processes."""
    below = (agent.sub_agents or {}).values()
    return bool(agent.tools) or any(may_start_processes(each) for each in below)


def _project_instructions(
    agent: "Agent[Any]", environment: Mapping[str, str]
) -> ProjectInstructions | None:
    if agent.workspace is None or not agent.project_instructions:
        return None
    users_home = environment.get("HOME")
    return ProjectInstructions(Path(agent.workspace), Path(users_home) if users_home else None)


def _stage_of(agent: "Agent[Any]", shared: SharedParts) -> str:
    """The folder in which the agent works instead of its workspace; empty if it works there."""
    if shared.stage is None or agent.workspace is None:
        return ""
    workspace, tree = shared.stage
    if os.path.realpath(agent.workspace) != workspace:
        raise UserError(
            f"a sub-agent works in {agent.workspace}, and only {workspace} is staged; give it the "
            "same workspace, or stage nothing"
        )
    return tree


def _registry_of(
    agent: "Agent[Any]", shared: SharedParts, deps: object, mcp: "McpServers | None"
) -> ToolRegistry:
    policy = agent.policy or DEFAULT_POLICY
    if shared.containment is None:
        registry = ToolRegistry(policy=policy, deps=deps, foreign=mcp)
    else:
        # Without a workspace the agent has only user-written tools, which work in this folder.
        folder = "." if agent.workspace is None else agent.workspace
        parts = shared.sandbox
        stage = _stage_of(agent, shared)
        sandbox = None
        if parts is not None and agent.workspace is not None:
            sandbox = CommandSandbox(
                parts.containment,
                str(folder),
                parts.folder,
                shared.config.environment,
                parts.settings,
                shared.hiding.directories,
                parts.door,
                stage,
            )
        if stage and (sandbox is None or sandbox.why_not):
            raise UserError(
                "turns cannot be staged here, because commands could change the workspace: "
                f"{sandbox.why_not if sandbox is not None else 'there is no sandbox'}. Start "
                "without --staged, or set sandbox.staged to off; `bargein doctor` says what is "
                "missing"
            )
        tool_environment = open_tool_environment(
            (parts.beside if parts is not None and stage else None) or shared.containment,
            folder,
            shared.config.environment,
            agent.tool_settings,
            hidden=shared.hiding.directories,
            sandbox=sandbox,
            stage=stage,
        )
        built_in = standard_tools(tool_environment) if agent.workspace is not None else ()
        isolated = ProcessIsolation(tool_environment).run
        registry = ToolRegistry(
            built_in,
            policy=policy,
            isolated=isolated,
            tool_environment=tool_environment,
            deps=deps,
            foreign=mcp,
        )
    if agent.asks:
        registry.add(ask_tool())
    if agent.sub_agents is not None:
        descriptions = {name: each.description for name, each in agent.sub_agents.items()}
        registry.add(delegate_tool(descriptions, agent.sub_models))
    for each in agent.tools:
        registry.add(each)
    return registry
