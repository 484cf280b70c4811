"""The built-in tools, put together. The one place that knows all of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bargein.process import Containment
from bargein.tools.approval import DEFAULT_POLICY, Policy
from bargein.tools.background import ProcessTable
from bargein.tools.declaration import Tool
from bargein.tools.environment import scrubbed
from bargein.tools.files import file_tools
from bargein.tools.isolation import Isolation
from bargein.tools.process_tool import process_tool
from bargein.tools.python_tool import python_tool
from bargein.tools.registry import ToolRegistry
from bargein.tools.search import search_tool
from bargein.tools.terminal import terminal_tool
from bargein.tools.web_fetch import web_fetch_tool
from bargein.tools.workshop import ToolSettings, Workshop
from bargein.tools.workspace import Workspace


def open_workshop(
    containment: Containment,
    folder: str | Path,
    environment: Mapping[str, str],
    settings: ToolSettings | None = None,
    *,
    hidden: Iterable[str] = (),
) -> Workshop:
    """`environment` is the program's own; keys are taken out of it here. `hidden` are directories
    that file tools refuse, wherever the workspace is."""
    settings = settings or ToolSettings()
    clean = scrubbed(environment, settings.environment_allowed)
    return Workshop(containment, Workspace(folder, hidden), clean, settings)


def standard_tools(workshop: Workshop) -> tuple[Tool[..., Any], ...]:
    table = ProcessTable(workshop.settings.background_max)
    return (
        terminal_tool(workshop, table),
        process_tool(table),
        python_tool(workshop),
        *file_tools(workshop.workspace),
        search_tool(workshop),
        web_fetch_tool(workshop),
    )


def standard_registry(
    workshop: Workshop,
    more: Iterable[Tool[..., Any]] = (),
    *,
    policy: Policy = DEFAULT_POLICY,
) -> ToolRegistry:
    """The built-in tools and more, able to run tools that ask for a process of their own."""
    tools = [*standard_tools(workshop), *more]
    return ToolRegistry(
        tools,
        policy=policy,
        isolated=Isolation(workshop).run,
        workshop=workshop,
    )
