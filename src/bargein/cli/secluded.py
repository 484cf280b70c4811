"""What commands must not see of this program, and what follows where they can see it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bargein.cli.config import Config, user_file
from bargein.models.local.options import default_weights_dir
from bargein.process import Hiding, HidingReport
from bargein.sandbox.hiding import hiding_for

if TYPE_CHECKING:
    from bargein.cli.wiring import Agent

NOTHING = Hiding()


def hiding_of(agent: "Agent", config: Config, home: Path) -> Hiding:
    """What commands of this agent, and its file tools, must not see."""
    return hiding_for(home, own=[_own_folder(config, home)], workspaces=_workspaces(agent))


def own_hiding_of(config: Config, home: Path) -> Hiding:
    """The same without a workspace, to try it."""
    return hiding_for(home, own=[_own_folder(config, home)])


def local_hiding_of(config: Config, home: Path) -> Hiding:
    """The same for a model that runs on this machine, which has to read its weights."""
    weights = config.models.weights_dir or default_weights_dir()
    return hiding_for(home, own=[_own_folder(config, home)], kept=[weights])


def _own_folder(config: Config, home: Path) -> Path:
    """The folder of the user's settings. It is made, like the data directory: one that is not there
    cannot be hidden, and a command could make it and put rules into it."""
    folder = user_file(config.environment).parent
    if home.is_dir():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def sandbox_in_words(report: HidingReport) -> str:
    """What holds on this machine, for `doctor` and `/status`."""
    if not report.works:
        return (
            f"commands can read and change the data directory ({report.detail}), so only the "
            "owner's terminal and pages that are signed in can approve calls"
        )
    if report.how == "user namespace":
        return (
            "commands do not see the data directory or your settings, and cannot look into "
            "processes outside (user namespace); sudo does not work in them"
        )
    if report.fenced:
        return (
            "commands do not see the data directory or your settings, cannot look into processes "
            "outside, and cannot mount (mount namespace, Landlock)"
        )
    return (
        "commands do not see the data directory or your settings (mount namespace), but as root "
        f"they can undo that: there is no Landlock here ({report.detail})"
    )


def _workspaces(agent: "Agent") -> Iterator[Path]:
    if agent.workspace is not None:
        yield Path(agent.workspace)
    for below in (agent.sub_agents or {}).values():
        yield from _workspaces(below)
