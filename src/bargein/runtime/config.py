"""The configuration: the value of every setting, and where it was set. The only module that reads
the environment.

A later place overrides an earlier one: the project's `bargein.toml` (in this folder or above it),
the user's own `config.toml`, the environment, flags. A project's file may tighten settings; the
rest of it counts only if the user has approved it (`runtime.project_trust`). A mistake in any of
them raises a `UserError` that names the place, the key, the value and what to do. A program that
uses `Engine` without a configuration gets only the environment; only the terminal program reads
files.
"""

import difflib
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bargein.errors import UserError
from bargein.models.settings import ModelSettings, settings_from_environment
from bargein.runtime.data_directory import SESSIONS_FILE
from bargein.runtime.settings import ACTIONS, BY_KEY, SETTINGS, Unfit, Value

if TYPE_CHECKING:
    from bargein.runtime.hook_config import OutsideHook
    from bargein.runtime.mcp_config import McpConfig
    from bargein.runtime.project_trust import TrustFile, TrustRequest

PROJECT_FILE = "bargein.toml"
USER_FILE = "config.toml"
MAY_NAME_SERVERS = (PROJECT_FILE, ".mcp.json")
SERVERS_TABLE = "mcpServers"
"""Read by `runtime.mcp_config`."""
HOOKS_TABLE = "hooks"
"""Read by `runtime.hook_config`."""
DEFAULT = "default"
COMMAND_LINE = "the command line"
FILE_BYTES_MAX = 1024 * 1024
PREFIX = "BARGEIN_"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
TOKEN_VARIABLE = "BARGEIN_TOKEN"
"""The token that `bargein attach` shows."""
LISTED = "`bargein config` lists all settings"


@dataclass(frozen=True, slots=True)
class Effective:
    """A value and its source: a file, a variable, a flag, or `DEFAULT`."""

    value: Value | None
    source: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Config:
    """`home` is the data directory. `environment` has our variables; commands inherit some of them.
    `effective` has the settings by their keys; a missing one has its default. `left_out` has
    what the project's file sets and the user has not approved. `mcp` has the MCP servers, `hooks`
    the commands and webhooks that learn what sessions do."""

    home: Path
    models: ModelSettings
    environment: Mapping[str, str]
    effective: Mapping[str, Effective] = field(default_factory=dict)
    left_out: "tuple[TrustRequest, ...]" = ()
    mcp: "McpConfig | None" = None
    hooks: "tuple[OutsideHook, ...]" = ()

    def __getitem__(self, key: str) -> Value | None:
        found = self.effective.get(key)
        return found.value if found is not None else BY_KEY[key].default

    def text(self, key: str) -> str:
        return str(self[key] or "")

    def number(self, key: str) -> float:
        value = self[key]
        assert isinstance(value, int | float), key
        return value

    def seconds_of_days(self, key: str) -> float | None:
        """Returns a setting in days as seconds, or None if it is not set."""
        return self.number(key) * 86400.0 if self[key] is not None else None

    @property
    def store_address(self) -> str | Path:
        """Where sessions are stored: the data directory, unless a setting names another place."""
        return self.text("store") or self.home / SESSIONS_FILE

    def texts(self, key: str) -> tuple[str, ...]:
        value = self[key]
        assert isinstance(value, tuple), key
        return value

    def keys(self) -> dict[str, tuple[str, ...]]:
        """Returns the keys of each action of the chat; no key belongs to two actions."""
        return {action: self.texts(f"keys.{action}") for action in ACTIONS}


def load_config(
    environment: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    flags: Mapping[str, Value] | None = None,
) -> Config:
    """Reads the configuration. Reads no file without a `folder`: a library must not behave
    differently in different folders."""
    environment = os.environ if environment is None else environment
    effective = {setting.key: Effective(setting.default) for setting in SETTINGS}
    left_out: tuple[TrustRequest, ...] = ()
    for path in config_files(environment, folder) if folder is not None else ():
        own = path.name != PROJECT_FILE
        read = read_file(path, own=own)
        if not own:
            read, left_out = _approved(environment, path, read)
        effective.update(_where_not_tighter(effective, read))
    effective.update(_from_variables(environment))
    for key, value in (flags or {}).items():
        effective[key] = Effective(value, COMMAND_LINE)
    _refuse_double_keys(effective)
    # A setting in a file means the same as its variable.
    merged = dict(environment)
    for setting in SETTINGS:
        found = effective[setting.key]
        if found.source != DEFAULT and isinstance(found.value, str | int):
            merged[setting.variable] = str(found.value)
    home = data_home(merged)
    effective["home"] = Effective(str(home), effective["home"].source)
    models = settings_from_environment(merged)
    mcp = _mcp_servers(environment, folder) if folder is not None else None
    left_out = (*left_out, *(mcp.left_out if mcp is not None else ()))
    hooks, unapproved = _hooks(environment, folder) if folder is not None else ((), ())
    left_out = (*left_out, *unapproved)
    if folder is not None:
        left_out = (*left_out, *_custom_commands(environment, folder))
    return Config(home, models, dict(environment), effective, left_out, mcp, hooks)


def _hooks(
    environment: Mapping[str, str], folder: Path
) -> "tuple[tuple[OutsideHook, ...], tuple[TrustRequest, ...]]":
    files = [(path, path.name != PROJECT_FILE) for path in config_files(environment, folder)]
    if not files:
        return (), ()
    from bargein.runtime.hook_config import read_hooks

    return read_hooks(files, environment, trust_file(environment))


def _mcp_servers(environment: Mapping[str, str], folder: Path) -> "McpConfig | None":
    """Imports nothing where no file could name a server."""
    own = user_file(environment)
    above = [each / name for each in (folder, *folder.parents) for name in MAY_NAME_SERVERS]
    if not any(os.path.lexists(path) for path in (*above, own, own.parent / "mcp.json")):
        return None
    from bargein.runtime.mcp_config import load_servers

    return load_servers(own, folder, environment, trust_file(environment))


def _custom_commands(environment: Mapping[str, str], folder: Path) -> "Iterator[TrustRequest]":
    """What waits for approval of the project's own commands."""
    if not any((each / ".bargein").is_dir() for each in (folder, *folder.parents)):
        return
    from bargein.runtime.custom_commands import project_request

    request = project_request(folder)
    if request is not None and not trust_file(environment).is_approved(request):
        yield request


def trust_file(environment: Mapping[str, str]) -> "TrustFile":
    from bargein.runtime.project_trust import FILE, TrustFile

    return TrustFile(user_file(environment).parent / FILE)


def _approved(
    environment: Mapping[str, str], path: Path, read: dict[str, Effective]
) -> "tuple[dict[str, Effective], tuple[TrustRequest, ...]]":
    """Returns what counts of a project's settings, and what waits for the user's approval."""
    tightening = {
        key: found
        for key, found in read.items()
        if found.value is not None and BY_KEY[key].only_tightens(found.value)
    }
    if len(tightening) == len(read):
        return read, ()
    from bargein.runtime.project_trust import TrustRequest

    rest = (f"{key} = {_written(read[key].value)}" for key in read if key not in tightening)
    project = os.path.realpath(path.parent)
    request = TrustRequest("settings", project, str(path), tuple(sorted(rest)))
    if trust_file(environment).is_approved(request):
        return read, ()
    return tightening, (request,)


def _written(value: Value | None) -> str:
    """Returns the value as it would be written in the file, on one line."""
    return json.dumps(value, ensure_ascii=False)


def _where_not_tighter(
    before: Mapping[str, Effective], found: Mapping[str, Effective]
) -> dict[str, Effective]:
    """Leaves out your own values where the project has set tighter ones."""

    def is_kept(key: str) -> bool:
        order = BY_KEY[key].project_may
        was = before[key]
        return bool(
            order
            and was.source != DEFAULT
            and was.value in order
            and found[key].value not in order[: order.index(str(was.value))]
        )

    return {key: value for key, value in found.items() if not is_kept(key)}


def config_files(environment: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Yields the files that exist; a later one overrides an earlier one."""
    for above in (folder, *folder.parents):
        if os.path.lexists(above / PROJECT_FILE):
            yield above / PROJECT_FILE
            break
    own = user_file(environment)
    if os.path.lexists(own):
        yield own


def user_file(environment: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "bargein" / USER_FILE
    named = environment.get("XDG_CONFIG_HOME")
    base = Path(named) if named and Path(named).is_absolute() else _home(environment) / ".config"
    return base / "bargein" / USER_FILE


def read_file(path: Path, *, own: bool) -> dict[str, Effective]:
    if not os.path.isfile(path):
        # Opening a pipe would wait for a writer.
        raise UserError(f"{path} is not a file that can be read; remove or replace it")
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if len(body) > FILE_BYTES_MAX:
        raise UserError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        tree = tomllib.loads(body.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    tree.pop(SERVERS_TABLE, None)
    tree.pop(HOOKS_TABLE, None)
    return {
        key: Effective(_checked(path, key, value, own=own), str(path))
        for key, value in _leaves(tree)
    }


def _leaves(tree: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and any(each.startswith(f"{key}.") for each in BY_KEY):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _checked(path: Path, key: str, value: object, *, own: bool) -> Value:
    setting = BY_KEY.get(key)
    if setting is None:
        raise UserError(f"{path}: there is no setting {key}{_hint(key)}")
    if setting.own_only and not own:
        raise UserError(
            f"{path}: {key} cannot be set by a project; remove it, or set it in your own file "
            "(`bargein config` says where that is)"
        )
    may = setting.project_may
    if may is not None and not own and value not in may:
        raise UserError(
            f"{path}: {key} = {_shown(value)} cannot be set by a project, which may only tighten "
            f"it to {' or '.join(may)}; remove it, or set it in your own file"
        )
    try:
        return setting.kind.of(value)
    except Unfit as unfit:
        raise UserError(f"{path}: {key} = {_shown(value)} is not valid: {unfit}") from None


def _from_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Effective]]:
    for setting in SETTINGS:
        text = environment.get(setting.variable, "").strip()
        if not text:
            continue
        try:
            yield setting.key, Effective(setting.kind.read(text), f"${setting.variable}")
        except Unfit as unfit:
            raise UserError(f"{setting.variable} is {text!r}: {unfit}") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns a sentence about each variable that begins with `BARGEIN_` and sets nothing."""
    ours = [setting.variable for setting in SETTINGS] + [*KEYS, TOKEN_VARIABLE]
    # Compared without the prefix, which all of them share.
    bare = {name.removeprefix(PREFIX): name for name in ours}
    told = []
    for name in sorted(environment):
        value = environment[name].strip()
        if (
            not name.startswith(PREFIX)
            or name in ours
            or not value
            or _is_of_a_cluster(name, value)
        ):
            continue
        near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
        hint = f"did you mean {bare[near[0]]}?" if near else LISTED
        told.append(f"${name} sets nothing; {hint}")
    return told


def _is_of_a_cluster(name: str, value: str) -> bool:
    """Kubernetes and Docker set such variables for a service named bargein."""
    rest = name.removeprefix(PREFIX)
    return rest.startswith(("SERVICE_HOST", "SERVICE_PORT", "PORT_")) or value.startswith("tcp://")


def _refuse_double_keys(effective: Mapping[str, Effective]) -> None:
    taken: dict[str, str] = {}
    for action in ACTIONS:
        found = effective[f"keys.{action}"]
        assert isinstance(found.value, tuple)
        for name in found.value:
            other = taken.setdefault(name.lower(), action)
            if other != action:
                sources = {effective[f"keys.{each}"].source for each in (other, action)}
                raise UserError(
                    f"{', '.join(sorted(sources - {DEFAULT}))}: {name} is the key of both "
                    f"{other} and {action}; give keys.{other} or keys.{action} another one"
                )


def _hint(key: str) -> str:
    last = key.rpartition(".")[2].lower()
    if last.endswith("key") or "token" in last or "secret" in last:
        return "; keys are read from the environment only, such as OPENAI_API_KEY"
    near = difflib.get_close_matches(key, BY_KEY, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; {LISTED}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _home(environment: Mapping[str, str]) -> Path:
    named = environment.get("HOME")
    return Path(named) if named else Path.home()


def data_home(environment: Mapping[str, str]) -> Path:
    """Returns BARGEIN_HOME, or else the place where this system keeps a user's data."""
    named = environment.get("BARGEIN_HOME")
    if named:
        path = Path(named).expanduser()
        if os.path.exists(path) and not os.path.isdir(path):
            raise UserError(f"BARGEIN_HOME is {named}, which is a file; name a directory")
        return path.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "bargein"
    data = environment.get("XDG_DATA_HOME")
    base = Path(data) if data and Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "bargein"
