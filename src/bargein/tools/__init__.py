"""Tools: what an agent can do, and how one call of a tool runs within bounds.

- `@tool` turns a function into a tool; `ToolRegistry` offers tools to a session and runs them.
- `standard_tools` returns the built-in tools: terminal, process, python, files, search, web_fetch.
- `Policy` decides which calls need the user's approval.
- `invoke` runs one call from plan to result.

The names below are imported on first use. The small programs that tools run in child processes are
part of this package too, and must start within a few milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bargein.calls.pipeline import invoke as invoke
    from bargein.calls.pipeline import nobody_to_ask as nobody_to_ask
    from bargein.tools.approval import DEFAULT_POLICY as DEFAULT_POLICY
    from bargein.tools.approval import Decision as Decision
    from bargein.tools.approval import Policy as Policy
    from bargein.tools.approval import Rule as Rule
    from bargein.tools.commands import Ran as Ran
    from bargein.tools.context import ToolContext as ToolContext
    from bargein.tools.declaration import Tool as Tool
    from bargein.tools.declaration import tool as tool
    from bargein.tools.registry import ToolRegistry as ToolRegistry
    from bargein.tools.standard import open_tool_environment as open_tool_environment
    from bargein.tools.standard import standard_registry as standard_registry
    from bargein.tools.standard import standard_tools as standard_tools
    from bargein.tools.tool_environment import ToolEnvironment as ToolEnvironment
    from bargein.tools.tool_environment import ToolSettings as ToolSettings

_HOMES = {
    "DEFAULT_POLICY": "bargein.tools.approval",
    "Decision": "bargein.tools.approval",
    "Policy": "bargein.tools.approval",
    "Ran": "bargein.tools.commands",
    "Rule": "bargein.tools.approval",
    "Tool": "bargein.tools.declaration",
    "ToolContext": "bargein.tools.context",
    "ToolRegistry": "bargein.tools.registry",
    "ToolSettings": "bargein.tools.tool_environment",
    "ToolEnvironment": "bargein.tools.tool_environment",
    "invoke": "bargein.calls.pipeline",
    "nobody_to_ask": "bargein.calls.pipeline",
    "open_tool_environment": "bargein.tools.standard",
    "standard_registry": "bargein.tools.standard",
    "standard_tools": "bargein.tools.standard",
    "tool": "bargein.tools.declaration",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bargein.tools' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
