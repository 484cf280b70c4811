"""What the user has set. The only place that reads the environment."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bargein.errors import UserError
from bargein.models.settings import ModelSettings, settings_from_environment


@dataclass(frozen=True, slots=True)
class Config:
    """`home` is where sessions are kept. `environment` is what commands may be given of ours."""

    home: Path
    models: ModelSettings
    environment: Mapping[str, str]


def load_config(environment: Mapping[str, str] | None = None) -> Config:
    environment = os.environ if environment is None else environment
    return Config(
        home=data_home(environment),
        models=settings_from_environment(environment),
        environment=dict(environment),
    )


def data_home(environment: Mapping[str, str]) -> Path:
    """BARGEIN_HOME, else the place where this system keeps a user's data."""
    named = environment.get("BARGEIN_HOME")
    if named:
        path = Path(named).expanduser()
        if path.exists() and not path.is_dir():
            raise UserError(f"BARGEIN_HOME is {named}, which is a file; name a directory")
        return path.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "bargein"
    data = environment.get("XDG_DATA_HOME")
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "bargein"
