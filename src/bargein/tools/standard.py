"""Puts the built-in tools together. The only module that knows all of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bargein.process import Containment
from bargein.sandbox.command_sandbox import CommandSandbox
from bargein.tools.approval import DEFAULT_POLICY, Policy
from bargein.tools.background import ProcessTable
from bargein.tools.declaration import Tool
from bargein.tools.environment import scrubbed
from bargein.tools.files import file_tools
from bargein.tools.isolation import ProcessIsolation
from bargein.tools.process_tool import process_tool
from bargein.tools.python_tool import python_tool
from bargein.tools.registry import ToolRegistry
from bargein.tools.search import search_tool
from bargein.tools.terminal import terminal_tool
from bargein.tools.tool_environment import ToolEnvironment, ToolSettings
from bargein.tools.web_fetch import web_fetch_tool
from bargein.tools.workspace import Workspace


def open_tool_environment(
    containment: Containment,
    folder: str | Path,
    environment: Mapping[str, str],
    settings: ToolSettings | None = None,
    *,
    hidden: Iterable[str] = (),
    sandbox: CommandSandbox | None = None,
    stage: str = "",
) -> ToolEnvironment:
    """Opens an environment for tools. Secrets are removed from `environment`, which is the
    program's own. File tools refuse the `hidden` directories, wherever the workspace is. `terminal`
    and `python` run in `sandbox`, if there is one. File tools work in `stage` instead of the
    folder, if it is given, as the sandbox has to."""
    settings = settings or ToolSettings()
    clean = scrubbed(environment, settings.environment_allowed)
    workspace = Workspace(stage or folder, hidden, shown=folder if stage else "")
    return ToolEnvironment(containment, workspace, clean, settings, sandbox)


def standard_tools(tool_environment: ToolEnvironment) -> tuple[Tool[..., Any], ...]:
    table = ProcessTable(tool_environment.settings.background_max)
    sandbox = tool_environment.sandbox
    commands: tuple[Tool[..., Any], ...] = ()
    # Where nobody may allow a command to go without the sandbox, it needs one that holds.
    if sandbox is None or not (sandbox.sealed and sandbox.why_not):
        commands = (
            terminal_tool(tool_environment, table),
            process_tool(table),
            python_tool(tool_environment),
        )
    return (
        *commands,
        *file_tools(tool_environment.workspace),
        search_tool(tool_environment),
        web_fetch_tool(tool_environment),
    )


def standard_registry(
    tool_environment: ToolEnvironment,
    more: Iterable[Tool[..., Any]] = (),
    *,
    policy: Policy = DEFAULT_POLICY,
) -> ToolRegistry:
    """Returns a registry with the built-in tools and `more`; it can run tools in own processes."""
    tools = [*standard_tools(tool_environment), *more]
    return ToolRegistry(
        tools,
        policy=policy,
        isolated=ProcessIsolation(tool_environment).run,
        tool_environment=tool_environment,
    )
