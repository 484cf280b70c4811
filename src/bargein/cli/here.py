"""The folder, model and environment of this terminal, which it gives to a session.

A session stores its folder and its model (`contracts.place`). The environment may contain keys, so
it stays in the memory of the process that runs the session.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from bargein.contracts.place import SessionPlace
from bargein.runtime.config import Config

OF_ONE_TERMINAL = frozenset(
    (
        "_",
        "COLUMNS",
        "COLORTERM",
        "GPG_TTY",
        "LINES",
        "OLDPWD",
        "PWD",
        "SHLVL",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "STY",
        "TERM",
        "TERM_PROGRAM",
        "TERM_PROGRAM_VERSION",
        "TERM_SESSION_ID",
        "TMUX",
        "TMUX_PANE",
        "WINDOW",
        "WINDOWID",
        "XTERM_VERSION",
    )
)
OF_THE_PROGRAM = frozenset(("BARGEIN_HOME", "BARGEIN_MODEL", "BARGEIN_TOKEN"))
WITH_A_PATH = ("scripted", "local")


def place_here(config: Config) -> SessionPlace:
    """Returns the place of a new session: this folder, and the model that the user configured."""
    folder = os.path.realpath(Path.cwd())
    model = whole_model_name(config.models.model or "", folder)
    return SessionPlace(folder, model, config["sandbox.staged"] == "on")


def whole_model_name(name: str, folder: str | Path) -> str:
    """Returns a model's name in which the paths of files do not depend on the current folder."""
    return ",".join(_whole(each.strip(), folder) for each in name.split(",")) if name else ""


def _whole(name: str, folder: str | Path) -> str:
    kind, colon, path = name.partition(":")
    if kind not in WITH_A_PATH or not path:
        return name
    return f"{kind}{colon}{Path(folder, os.path.expanduser(path))}"


def lent_environment(config: Config) -> dict[str, str]:
    """Returns the part of this terminal's environment that it lends to a session."""
    return without_terminal(
        {
            name: value
            for name, value in config.environment.items()
            if name not in OF_THE_PROGRAM and _is_text(value)
        }
    )


def without_terminal(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OF_ONE_TERMINAL}


def _is_text(value: str) -> bool:
    """Whether a variable can be sent: its bytes may be no text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
