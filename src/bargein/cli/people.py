"""Gives each person who shares a server with others a folder and a sandbox of their own.

Every session of a principal works in that principal's folder below the data directory. Its commands
run in a sandbox without network, which no approval can open; they see no folder of other principals
and no home directory. If the sandbox cannot hold all that, sessions get no commands, only files.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bargein.cli.default_agent import default_agent
from bargein.contracts.place import SessionPlace
from bargein.process import SandboxReport
from bargein.runtime.config import Config, Effective
from bargein.runtime.data_directory import PEOPLE
from bargein.runtime.placed_agent import PlacedAgent
from bargein.runtime.settings import Value

_PLAIN: Final = re.compile(r"(?!x-)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
# Directories in which a machine keeps people's files.
_OTHERS: Final = ("/home", "/root", "/srv", "/mnt", "/media", "/var/www", "/var/backups")
# So that the commands of one person leave the others enough of the machine.
_LIMITS: Final = {"limits.memory_megabytes": 2048, "limits.processes": 512}
_SPELT_MAX: Final = 200
_SOURCE: Final = "several principals"

INSTRUCTIONS: Final = """\
You help a person through a server that others use, too. Your tools work in a folder of that
person's, and commands run in a sandbox without network. The person may interrupt you at any moment:
when you are told that something was stopped, believe it, and check before you assume that it
happened or not."""


def make_folder(home: Path) -> None:
    """Makes the folder of all people. Call it before the first command starts, because only folders
    that exist then can be hidden."""
    (home / PEOPLE).mkdir(mode=0o700, exist_ok=True)


def place_of(home: Path, principal: str) -> SessionPlace | None:
    """Returns the place of a principal's sessions; None for a session without an owner."""
    if not principal:
        return None
    return SessionPlace(str(home / PEOPLE / _folder_name(principal)))


def _folder_name(principal: str) -> str:
    """Returns a name that no other principal has."""
    if _PLAIN.match(principal):
        return principal
    spelt = principal.encode().hex()
    if len(spelt) <= _SPELT_MAX:
        return f"x-{spelt}"
    # Too long for a file system.
    return f"x-sha256-{hashlib.sha256(principal.encode()).hexdigest()}"


def agent_for_person(
    config: Config, place: SessionPlace, environment: Mapping[str, str]
) -> PlacedAgent:
    """Makes the agent for a person's folder (a `runtime.placed_agent.AgentOf`). No file in the
    folder changes a setting, because the person's agent can write there."""
    del environment
    folder = Path(place.workspace)
    folder.mkdir(mode=0o700, exist_ok=True)
    there = closed_in(config)
    own = there.text("instructions")
    agent = replace(
        default_agent(there, folder),
        mcp=(),
        instructions="\n\n".join(filter(None, [INSTRUCTIONS, own])),
    )
    return PlacedAgent(agent, there)


def closed_in(config: Config) -> Config:
    """Returns the server's settings, with a sandbox that no approval can open."""
    others = [*_OTHERS, config.environment.get("HOME", ""), os.getcwd(), str(config.home)]
    # A server that was started in / must not hide the whole system.
    hidden = [path for path in others if path.count("/") > 1 or path in _OTHERS]
    values: dict[str, Value] = {
        "sandbox.commands": "on",
        "sandbox.outside": "never",
        "sandbox.writable": (),
        "sandbox.network": "none",
        "sandbox.hosts": (),
        "sandbox.mcp": "off",
        # The operator's keys are for the operator's own commands.
        "tools.environment_allowed": (),
        "sandbox.hidden": tuple(dict.fromkeys([*config.texts("sandbox.hidden"), *hidden])),
    }
    values |= {key: value for key, value in _LIMITS.items() if config[key] is None}
    changed = {key: Effective(value, _SOURCE) for key, value in values.items()}
    return replace(config, effective={**config.effective, **changed})


def describe(report: SandboxReport | None, count: int) -> str:
    """Returns what the operator reads at the start of the server."""
    if report is not None and report.holds:
        return (
            f"{count} principals have tokens, so each has a folder and a sandbox of its own, "
            "without network; --let-everyone-run-commands-on-this-machine lets them work here"
        )
    why = (report.detail if report is not None else "") or "no sandbox holds here"
    return (
        f"Terminal and Python are off, because {count} principals have tokens and no sandbox "
        f"holds ({why}); each has a folder of its own. --let-everyone-run-commands-on-this-machine "
        "turns them on, as this user"
    )
