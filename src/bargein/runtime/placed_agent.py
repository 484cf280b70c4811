"""The agent for a place. In a file of its own, so that `import bargein` stays cheap."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bargein.contracts.permission import ProjectGrants
from bargein.contracts.place import SessionPlace

if TYPE_CHECKING:
    from bargein.runtime.agent import Agent
    from bargein.runtime.config import Config


@dataclass(frozen=True, slots=True)
class PlacedAgent:
    """Which agent works in a place, with which settings; `grants` are those of its project."""

    agent: "Agent[Any]"
    config: "Config"
    grants: ProjectGrants | None = None


AgentOf = Callable[[SessionPlace, Mapping[str, str]], PlacedAgent]
"""Returns the agent for a place and the environment that its user lends. Raises `UserError`."""
