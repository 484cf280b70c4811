"""The MCP servers of the user and of the project, from the files that people already have.

    mcp.json in the user's config directory, and `[mcpServers.NAME]` in their config.toml
    .mcp.json of the project, and `[mcpServers.NAME]` in its bargein.toml

The user's own count more: a server of the project with the same name is passed over. What the
project's files name is used only if the user approved it (`runtime.project_trust`), and again at
each start of a server, because the agent can write to the scripts that it names.

`${VAR}` and `${VAR:-default}` stand for variables of the environment.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bargein.errors import UserError
from bargein.mcp.server import McpServer
from bargein.runtime.project_trust import Trust, TrustRequest, scripts_named

USER_FILE: Final = "mcp.json"
PROJECT_FILE: Final = ".mcp.json"
TABLE: Final = "mcpServers"
FILE_BYTES_MAX: Final = 1 << 20
KIND: Final = "MCP servers"

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SAME: Final = (
    *("command", "args", "env", "cwd", "url", "headers", "bearer_token_env_var"),
    *("enabled_tools", "disabled_tools", "on_stop"),
)
_RENAMED: Final = {"startup_timeout_sec": "startup_timeout_s", "tool_timeout_sec": "tool_timeout_s"}
_KNOWN: Final = (*_SAME, *_RENAMED, "type", "enabled", "disabled")
_HTTP: Final = ("http", "streamable-http", "streamableHttp")

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerTable:
    """The servers that one file names, as they are written. `project` is the real path of the
    project whose file it is; empty for the user's own."""

    path: Path
    specs: Mapping[str, Spec]
    project: str = ""

    def request(self) -> TrustRequest:
        """What the file asks for, with the scripts as they are now."""
        effects = tuple(_effect(name, spec) for name, spec in sorted(self.specs.items()))
        named = sorted({found[1] for each in effects for found in _VARIABLE.finditer(each)})
        words = [word for spec in self.specs.values() for word in _words(spec)]
        scripts = scripts_named(Path(self.project), words)
        return TrustRequest(KIND, self.project, str(self.path), effects, tuple(named), scripts)


@dataclass(frozen=True, slots=True)
class McpConfig:
    """`servers` can be used; `left_out` waits for the user's approval. `sources` says which file
    names a server."""

    servers: tuple[McpServer, ...] = ()
    left_out: tuple[TrustRequest, ...] = ()
    sources: Mapping[str, Path] = field(default_factory=dict)
    projects: Mapping[str, ServerTable] = field(default_factory=dict)
    trust: Trust | None = None

    def why_not(self, server: McpServer) -> str:
        """Says why a server of the project must not be started now; empty if it may."""
        table = self.projects.get(server.name)
        if table is None or self.trust is None or server not in self.servers:
            return ""
        try:
            if self.trust.is_approved(table.request()):
                return ""
        except UserError as error:
            return str(error)
        return (
            f"{table.path} or a script that it names has changed since you approved it; look at "
            "it, and approve it again by  bargein config trust"
        )


def find_tables(config_folder: Path, user_toml: Path, folder: Path) -> Iterator[ServerTable]:
    """The files that name servers, the project's first. Raises `UserError`."""
    project_toml = _above(folder, "bargein.toml")
    for path, read in ((project_toml, _toml), (_above(folder, PROJECT_FILE), _json)):
        if path is not None:
            yield from _table(path, read, os.path.realpath(path.parent))
    for path, read in ((user_toml, _toml), (config_folder / USER_FILE, _json)):
        if os.path.lexists(path):
            yield from _table(path, read, "")


def read_servers(
    tables: Iterator[ServerTable], environment: Mapping[str, str], trust: Trust
) -> McpConfig:
    """Raises `UserError` for a mistake in the user's own files or in what they approved."""
    servers: dict[str, McpServer] = {}
    sources: dict[str, Path] = {}
    projects: dict[str, ServerTable] = {}
    left_out: list[TrustRequest] = []
    for table in tables:
        if table.project and not trust.is_approved(request := table.request()):
            left_out.append(request)
            continue
        for name, spec in table.specs.items():
            if not _is_on(spec):
                servers.pop(name, None)
                continue
            servers[name] = server_of(table.path, name, spec, environment)
            sources[name] = table.path
            projects.pop(name, None)
            if table.project:
                projects[name] = table
    return McpConfig(tuple(servers.values()), tuple(left_out), sources, projects, trust)


def server_of(path: Path, name: str, spec: Spec, environment: Mapping[str, str]) -> McpServer:
    """One server, with its variables filled in. Raises `UserError`."""
    where = f"{path}: {TABLE}.{name}"
    for key in spec:
        near = difflib.get_close_matches(key, _KNOWN, n=1, cutoff=0.8)
        if key not in _KNOWN and near:
            raise UserError(f"{where}: there is no {key!r}; did you mean {near[0]}?")
    kind = spec.get("type", "")
    if kind not in ("", "stdio", *_HTTP):
        raise UserError(f"{where}: type {kind!r} is not supported; use stdio or http")
    # What is meant for other programs is passed over.
    given = {key: _filled(where, spec[key], environment) for key in _SAME if key in spec}
    given |= {ours: spec[theirs] for theirs, ours in _RENAMED.items() if theirs in spec}
    try:
        return McpServer(name, **given)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}") from None


def _is_on(spec: Spec) -> bool:
    return spec.get("enabled", True) is not False and spec.get("disabled", False) is not True


def _filled(where: str, value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(where, each, environment) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(where, each, environment) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        given = environment.get(found[1]) or found[2]
        if given is None:
            raise UserError(
                f"{where}: the variable {found[1]} is not set; set it, or write "
                f"${{{found[1]}:-default}}"
            )
        return given

    return _VARIABLE.sub(replaced, value)


def _effect(name: str, spec: Spec) -> str:
    """One server for the one who decides: what it does first, then all that is written of it."""
    command = spec.get("command")
    does = f"sends requests to {spec.get('url')}"
    if command:
        arguments = spec.get("args")
        listed = arguments if isinstance(arguments, list) else []
        does = f"starts {' '.join(map(str, [command, *listed]))}"
    lines = [f"{name}: {does}"]
    lines += [f"{key} = {json.dumps(spec[key], ensure_ascii=False)}" for key in sorted(spec)]
    return "\n".join(lines)


def _words(spec: Spec) -> Iterator[str]:
    """Everything in a server's table that may name a script."""
    for value in (spec.get("command"), spec.get("cwd"), *(spec.get("args") or [])):
        if isinstance(value, str):
            yield value
    environment = spec.get("env")
    for value in environment.values() if isinstance(environment, dict) else ():
        if isinstance(value, str):
            yield value


def _above(folder: Path, name: str) -> Path | None:
    for each in (folder, *folder.parents):
        if os.path.lexists(each / name):
            return each / name
    return None


def _table(path: Path, read: Callable[[Path], Any], project: str) -> Iterator[ServerTable]:
    tree = read(path)
    table = tree.get(TABLE) if isinstance(tree, dict) else None
    if table is None:
        return
    if not isinstance(table, dict) or not all(isinstance(each, dict) for each in table.values()):
        raise UserError(f"{path}: {TABLE} is not a table of servers by their names")
    if table:
        yield ServerTable(path, table, project)


def _toml(path: Path) -> Any:
    try:
        return tomllib.loads(_bounded(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_bounded(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def _bounded(path: Path) -> bytes:
    if not os.path.isfile(path):
        raise UserError(f"{path} is not a file that can be read; remove or replace it")
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if len(body) > FILE_BYTES_MAX:
        raise UserError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return body
