"""`Agent`: which model, tools, instructions and bounds an engine runs. Plain data, checked when it
is made, so that a wrong argument fails where it was written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from bargein.contracts.budget import Budget
from bargein.contracts.choice import choose
from bargein.contracts.given import check_path_or_none, check_texts, wrong
from bargein.contracts.model import Model
from bargein.contracts.output_type import T, output_type
from bargein.contracts.permission import PermissionMode
from bargein.session.agent import LoopSettings

if TYPE_CHECKING:
    from bargein.mcp import McpServer
    from bargein.tools import Policy, Tool, ToolSettings

__all__ = ["Agent"]


@dataclass(frozen=True, slots=True)
class Agent(Generic[T]):
    """A model with tools and instructions, run by the built-in loop.

    `model` is a name such as `openai:gpt-5-mini`, a `Model`, or None for the best model found.
    `tools` are functions, or tools made with `@tool`. A `workspace` adds the built-in tools, which
    work in that folder, and the instructions in its `AGENTS.md`. `policy` decides which calls need
    the user's approval. `budget` bounds each turn, `session_budget` all turns of a session
    together. With `titles` the model names each session, in the background.

    `sub_agents` lets the agent delegate tasks: to copies of itself, and to the agents named here,
    which the model chooses by their `description`. `sub_models` names the models that it may choose
    for a sub-agent. With `asks` the agent can ask the user questions. `mode` decides which calls
    run unasked in sessions whose mode nobody has set. A sub-agent has its parent's mode, or `plan`
    if its own says so.

    `mcp` are servers whose tools the agent can use, such as
    `McpServer("time", "uvx", ["mcp-server-time"])`. Sub-agents without servers of their own use
    their parent's.

    `output` is the type of its answers: a msgspec Struct, a dataclass, a TypedDict, a pydantic
    model, or a built-in type such as `list[int]`. The agent asks its model for JSON that fits,
    checks it, and asks again if it does not fit; `result.output` is a value of that type.

    `deps` is for your tools, such as a database or a client: they read it from a parameter that is
    annotated `ToolContext[Deps]`, as `context.deps`. Sub-agents without deps get their parent's.
    """

    model: str | Model | None = None
    _: KW_ONLY
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
    sub_agents: Mapping[str, "Agent[Any]"] | None = None
    sub_models: Sequence[str] = ()
    asks: bool = False
    deps: object = None
    mode: PermissionMode | str = PermissionMode.ASK
    mcp: Sequence["McpServer"] = ()
    output: type[T] | None = None

    def __post_init__(self) -> None:
        model = self.model
        if not (model is None or isinstance(model, str) or callable(getattr(model, "open", None))):
            right = 'give a name such as "openai:gpt-5-mini", a Model, or None for the best found'
            raise wrong("model", model, right)
        if not isinstance(self.tools, list | tuple) or not all(map(callable, self.tools)):
            raise wrong("tools", self.tools, "give a list of functions or of tools made with @tool")
        check_path_or_none(workspace=self.workspace)
        _check_servers(self.mcp)
        choose(PermissionMode, self.mode)
        if self.output is not None:
            output_type(self.output)
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


def _check_servers(servers: object) -> None:
    right = 'give a list of McpServer, such as [McpServer("time", "uvx", ["mcp-server-time"])]'
    if not isinstance(servers, list | tuple):
        raise wrong("mcp", servers, right)
    if servers:
        from bargein.mcp.server import McpServer

        for server in servers:
            if not isinstance(server, McpServer):
                raise wrong("mcp", server, right)
        names = [server.name for server in servers]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise wrong("mcp", double, "two servers have this name; rename one")
