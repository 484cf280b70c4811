"""Chooses the directories that an engine hides from its agent's commands and its local model."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bargein.models.local.options import default_weights_dir
from bargein.process import Hiding
from bargein.runtime.config import Config, user_file
from bargein.runtime.data_directory import PEOPLE
from bargein.sandbox.hiding import hiding_for

if TYPE_CHECKING:
    from bargein.runtime.agent import Agent

NOTHING = Hiding()


def hiding_of(agent: "Agent[Any]", config: Config, home: Path) -> Hiding:
    """Returns the directories that this agent's commands and file tools must not see."""
    return hiding_for(
        home,
        own=[_settings_folder(config, home)],
        workspaces=_workspaces(agent),
        kept=_existing(home / PEOPLE),
    )


def hiding_without_workspace(config: Config, home: Path) -> Hiding:
    """Returns the directories that commands of an agent without a workspace must not see."""
    return hiding_for(home, own=[_settings_folder(config, home)], kept=_existing(home / PEOPLE))


def local_hiding_of(config: Config, home: Path) -> Hiding:
    """Returns the directories that a model on this machine must not see. It can read its
    weights."""
    weights = config.models.weights_dir or default_weights_dir()
    return hiding_for(home, own=[_settings_folder(config, home)], kept=[weights])


def _existing(folder: Path) -> list[Path]:
    return [folder] if folder.is_dir() else []


def _settings_folder(config: Config, home: Path) -> Path:
    """Returns the folder of the user's settings, and makes it: a missing folder cannot be hidden,
    and a command could create it and put rules into it."""
    folder = user_file(config.environment).parent
    if home.is_dir():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _workspaces(agent: "Agent[Any]") -> Iterator[Path]:
    if agent.workspace is not None:
        yield Path(agent.workspace)
    for below in (agent.sub_agents or {}).values():
        yield from _workspaces(below)
