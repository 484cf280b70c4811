"""The agent of the terminal program, as the configuration describes it: its model, instructions,
budgets, the bounds of its tools, and which calls need approval."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bargein.cli.granted import grants_file
from bargein.contracts.budget import Budget
from bargein.contracts.place import SessionPlace
from bargein.errors import UserError
from bargein.runtime.agent import Agent
from bargein.runtime.config import Config, load_config
from bargein.runtime.placed_agent import PlacedAgent
from bargein.runtime.settings import SETTINGS
from bargein.tools import DEFAULT_POLICY, Decision, Policy, Rule, ToolSettings
from bargein.tools.todo import todo_tool

INSTRUCTIONS = """\
You help a person at a terminal, in the folder {folder}. Use the tools to look, run and change
things; say briefly what you did. The person may interrupt you at any moment: when you are told
that something was stopped, believe it, and check before you assume that it happened or not."""

TOOL_SETTINGS = "tools."


def default_agent(config: Config, folder: Path | None = None) -> Agent:
    """Returns an agent with the configured model, or the best one found, that works in `folder`, or
    else in the current one."""
    folder = folder or Path.cwd()
    own = config.text("instructions")
    return Agent(
        config.models.model,
        workspace=folder,
        instructions="\n\n".join(filter(None, [INSTRUCTIONS.format(folder=folder), own])),
        budget=budget_of(config, "budget"),
        session_budget=budget_of(config, "session_budget"),
        tool_settings=tool_settings_of(config),
        policy=policy_of(config),
        mode=config.text("mode"),
        titles=True,
        sub_agents={},
        asks=True,
        tools=[todo_tool()],
        mcp=config.mcp.servers if config.mcp is not None else (),
    )


def agent_of(config: Config, place: SessionPlace, environment: Mapping[str, str]) -> PlacedAgent:
    """Returns the agent that works in a place, by the settings that hold there. What a project's
    file asks for beyond tightening counts if the user has approved exactly that."""
    folder = Path(place.workspace)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; make it, or move the session to another")
    mine = {**(environment or config.environment), "BARGEIN_HOME": str(config.home)}
    there = load_config(mine, folder=folder)
    return PlacedAgent(default_agent(there, folder), there, grants_file(there).project(folder))


def tool_settings_of(config: Config) -> ToolSettings:
    keys = [setting.key for setting in SETTINGS if setting.key.startswith(TOOL_SETTINGS)]
    values = {key.removeprefix(TOOL_SETTINGS): config[key] for key in keys}
    return msgspec.convert(values, ToolSettings)


def budget_of(config: Config, prefix: str) -> Budget:
    values = {kind: config[f"{prefix}.{kind}"] for kind in Budget.__struct_fields__}
    return msgspec.convert(values, Budget)


def policy_of(config: Config) -> Policy:
    return DEFAULT_POLICY.before(_rules(config))


def _rules(config: Config) -> Iterator[Rule]:
    for decision in (Decision.DENY, Decision.ASK, Decision.ALLOW):
        key = f"approval.{decision}"
        for entry in config.texts(key):
            tool, _, pattern = entry.strip().partition(" ")
            try:
                yield Rule(decision, tool, pattern.strip())
            except ValueError as error:
                where = config.effective[key].source
                raise UserError(f"{where}: {key} has {entry!r}: {error}") from None


def describe_found_model(name: str, why: str) -> list[str]:
    """Tells a user who named no model which one was found, why, and what it cannot do."""
    found = [f"{name}: {why}"]
    if name == "local":
        found.append("it is tiny: it can talk, but use no tools, so it sees and changes no files")
    return found
