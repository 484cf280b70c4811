"""The sub-agents of an `Agent`: which there are, and how one is made for a task.

One that is not asked for by name is like its parent: the same model, tools and instructions, or
fewer tools, other instructions, or a model that was allowed. A named one is an `Agent` of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from bargein.contracts.model import Model
from bargein.contracts.permission import PermissionMode
from bargein.contracts.tool import ChildTask
from bargein.errors import ModelMisbehaved
from bargein.session.agent import LoopAgent, LoopSettings, ReadContext
from bargein.session.children import AgentKind
from bargein.tools import DEFAULT_POLICY, Tool, ToolRegistry
from bargein.tools.ask import ask_tool
from bargein.tools.delegate import NAME as DELEGATE
from bargein.tools.delegate import delegate_tool
from bargein.tools.isolation import Isolation
from bargein.tools.standard import open_workshop, standard_tools

if TYPE_CHECKING:
    from bargein.cli.config import Config
    from bargein.cli.models import ModelInUse
    from bargein.cli.wiring import Agent
    from bargein.process import Containment, Hiding

SUB_AGENT = (
    "You are a sub-agent: another agent gave you one task. Do it, and end with what you found and "
    "did; your last message is all that it gets of you."
)


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all agents of an engine share. `read_context` gives what else an agent is told."""

    config: "Config"
    containment: "Containment | None"
    hiding: "Hiding"
    models: "ModelInUse"
    read_context: Callable[["Agent", "Config"], ReadContext | None]


@dataclass(frozen=True, slots=True)
class Staff:
    """An agent with what is needed to make it. `model` is looked up when a sub-agent begins, so
    that a change of the model is heard of. `models` gives the models that may be asked for."""

    model: Callable[[], Model]
    registry: ToolRegistry
    settings: LoopSettings
    read_context: ReadContext | None
    named: Mapping[str, "Staff"]
    models: Mapping[str, Callable[[], Model]]
    mode: PermissionMode | None = None

    def agent(self) -> LoopAgent:
        return LoopAgent(self.model(), self.registry, self.settings, self.read_context)

    def below(self, task: ChildTask, may_delegate: bool, /) -> AgentKind:
        """A sub-agent for this task."""
        staff = self._kind(task.agent)
        if staff is self:
            # Like its parent, whose mode it has anyway, as that changes.
            staff = replace(staff, mode=None)
        if task.model:
            staff = replace(staff, model=self._model(task.model))
        if task.tools is not None:
            staff = replace(staff, registry=staff.registry.subset(task.tools))
        if not may_delegate:
            names = [name for name in staff.registry.names if name != DELEGATE]
            staff = replace(staff, registry=staff.registry.subset(names))
        own = task.instructions or staff.settings.instructions
        settings = LoopSettings(
            instructions="\n\n".join(filter(None, [own, SUB_AGENT])),
            budget=staff.settings.budget,
            output_tokens_max=staff.settings.output_tokens_max,
            temperature=staff.settings.temperature,
        )
        return AgentKind(replace(staff, settings=settings).agent(), staff.below, staff.mode)

    def _kind(self, name: str) -> "Staff":
        if not name:
            return self
        staff = self.named.get(name)
        if staff is None:
            names = ", ".join(self.named) or "none; leave agent out"
            raise ModelMisbehaved(f"there is no sub-agent named {name!r}; there are: {names}")
        return staff

    def _model(self, name: str) -> Callable[[], Model]:
        model = self.models.get(name)
        if model is None:
            names = ", ".join(self.models) or "none; leave model out"
            raise ModelMisbehaved(f"model {name!r} cannot be asked for; these can: {names}")
        return model


def staff_of(agent: "Agent", place: Workplace, model: Callable[[], Model]) -> Staff:
    """An agent and its sub-agents, each with tools of its own."""
    named = {
        name: staff_of(each, place, place.models.like(each.model, model))
        for name, each in (agent.sub_agents or {}).items()
    }
    return Staff(
        model=model,
        registry=_registry_of(agent, place),
        settings=LoopSettings(agent.instructions, agent.budget, agent.session_budget),
        read_context=place.read_context(agent, place.config),
        named=named,
        models={name: partial(place.models.named, name) for name in agent.sub_models},
        mode=_mode_of(agent),
    )


def _mode_of(agent: "Agent") -> PermissionMode | None:
    """A sub-agent's own, if it is tighter than usual."""
    mode = PermissionMode(agent.mode)
    return mode if mode is PermissionMode.PLAN else None


def starts_processes(agent: "Agent") -> bool:
    """Whether its tools, or those of a sub-agent, need a place for processes."""
    below = (agent.sub_agents or {}).values()
    return (
        agent.workspace is not None
        or any(
            isinstance(each, Tool) and each.options.isolation == "process" for each in agent.tools
        )
        or any(starts_processes(each) for each in below)
    )


def may_start_processes(agent: "Agent") -> bool:
    """Whether it, or a sub-agent, has tools of the user's own, which may start some by
    themselves."""
    below = (agent.sub_agents or {}).values()
    return bool(agent.tools) or any(may_start_processes(each) for each in below)


def _registry_of(agent: "Agent", place: Workplace) -> ToolRegistry:
    policy = agent.policy or DEFAULT_POLICY
    if place.containment is None:
        registry = ToolRegistry(policy=policy)
    else:
        # Without a workspace it has only tools of its own, at work in the folder we are in.
        folder = "." if agent.workspace is None else agent.workspace
        workshop = open_workshop(
            place.containment,
            folder,
            place.config.environment,
            agent.tool_settings,
            hidden=place.hiding.directories,
        )
        built_in = standard_tools(workshop) if agent.workspace is not None else ()
        isolated = Isolation(workshop).run
        registry = ToolRegistry(
            built_in,
            policy=policy,
            isolated=isolated,
            workshop=workshop,
        )
    if agent.asks:
        registry.add(ask_tool())
    if agent.sub_agents is not None:
        kinds = {name: each.description for name, each in agent.sub_agents.items()}
        registry.add(delegate_tool(kinds, agent.sub_models))
    for each in agent.tools:
        registry.add(each)
    return registry
