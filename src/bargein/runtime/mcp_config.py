"""The MCP servers of the user and of the project, from the files that people already have.

    mcp.json in the user's config directory, and `[mcpServers.NAME]` in their config.toml
    .mcp.json of the project, and `[mcpServers.NAME]` in its bargein.toml

If both have a server of the same name, the user's is used. A project's server is used only if the
user approved it (`runtime.project_trust`). The approval is checked again at each start, because the
agent can write to the scripts that the server runs.

`${VAR}` and `${VAR:-default}` stand for variables of the environment. A server with a mistake in
its configuration is left out and named; the other servers and the session start.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeGuard

from bargein.errors import UserError
from bargein.mcp.server import McpServer
from bargein.runtime.project_trust import NamedScript, Trust, TrustRequest, scripts_named

USER_FILE: Final = "mcp.json"
PROJECT_FILE: Final = ".mcp.json"
TABLE: Final = "mcpServers"
FILE_BYTES_MAX: Final = 1 << 20
KIND: Final = "MCP servers"

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SAME: Final = (
    *("command", "args", "env", "cwd", "url", "headers", "bearer_token_env_var"),
    *("enabled_tools", "disabled_tools", "on_stop"),
    *("oauth_client_id", "oauth_client_secret_env_var", "oauth_client_metadata_url"),
)
_NAME_VARIABLES: Final = ("bearer_token_env_var", "oauth_client_secret_env_var")
_RENAMED: Final = {"startup_timeout_sec": "startup_timeout_s", "tool_timeout_sec": "tool_timeout_s"}
_KNOWN: Final = (*_SAME, *_RENAMED, "type", "enabled", "disabled")
_HTTP: Final = ("http", "streamable-http", "streamableHttp")
_NODE: Final = ("npm", "npx", "yarn", "pnpm", "pnpx", "bun", "bunx")
_READ_BY: Final = {
    **dict.fromkeys(_NODE, "package.json"),
    **dict.fromkeys(("uv", "uvx", "poetry", "hatch", "pdm"), "pyproject.toml"),
    **dict.fromkeys(("docker", "podman"), "compose.yaml"),
    "make": "Makefile",
    "just": "justfile",
    "deno": "deno.json",
}
"""The file by which a program knows what to start."""

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerTable:
    """The servers that one file names, as they are written. `project` is the real path of the
    project whose file it is; empty for the user's own."""

    path: Path
    specs: Mapping[str, Spec]
    project: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def request(self) -> TrustRequest:
        """What the file asks for, with the scripts as they are now."""
        effects = tuple(_effect(name, spec) for name, spec in sorted(self.specs.items()))
        named = {found[1] for each in effects for found in _VARIABLE.finditer(each)}
        named |= {
            name
            for spec in self.specs.values()
            for key in _NAME_VARIABLES
            if isinstance(name := spec.get(key), str) and name
        }
        scripts = {each.path: each for spec in self.specs.values() for each in self._scripts(spec)}
        found = tuple(scripts[path] for path in sorted(scripts))
        return TrustRequest(
            KIND, self.project, str(self.path), effects, tuple(sorted(named)), found
        )

    def _scripts(self, spec: Spec) -> tuple[NamedScript, ...]:
        """By what is written, and by what it means with the variables filled in."""
        meant = _filled("", spec, _Lenient(self.environment))
        words = [*_words(spec), *_words(meant)]
        folder = meant.get("cwd")
        starts_in = folder if isinstance(folder, str) else ""
        return scripts_named(Path(self.project), words, starts_in=starts_in)


@dataclass(frozen=True, slots=True)
class McpConfig:
    """`servers` can be used; `left_out` waits for the user's approval. `mistakes` are sentences
    about servers that cannot be used as they are written. `unset` says of a server which variable
    it lacks. `sources` says which file names a server, and `written` what stands there."""

    servers: tuple[McpServer, ...] = ()
    left_out: tuple[TrustRequest, ...] = ()
    sources: Mapping[str, Path] = field(default_factory=dict)
    projects: Mapping[str, ServerTable] = field(default_factory=dict)
    trust: Trust | None = None
    mistakes: tuple[str, ...] = ()
    unset: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Spec] = field(default_factory=dict)

    def why_not(self, server: McpServer) -> str:
        """Says why a server must not be started now; empty if it may."""
        if server not in self.servers:
            return ""
        if server.name in self.unset:
            return self.unset[server.name]
        table = self.projects.get(server.name)
        if table is None or self.trust is None:
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


def load_servers(
    user_toml: Path, folder: Path, environment: Mapping[str, str], trust: Trust
) -> McpConfig:
    """Reads the files that name servers: the project's, then the user's. Raises `UserError` if a
    file of the user's own cannot be read."""
    found = _Found(environment, trust)
    project_toml = _above(folder, "bargein.toml")
    for path, read in ((project_toml, _toml), (_above(folder, PROJECT_FILE), _json)):
        if path is not None:
            try:
                specs = _specs(path, read)
                project = os.path.realpath(path.parent)
                found.add_project(ServerTable(path, specs, project, environment))
            except UserError as error:
                found.mistakes.append(str(error))
    for path, read in ((user_toml, _toml), (user_toml.with_name(USER_FILE), _json)):
        if os.path.lexists(path):
            found.add(ServerTable(path, _specs(path, read)))
    return found.config()


class _Found:
    """The servers of one file after another; a later one counts more."""

    def __init__(self, environment: Mapping[str, str], trust: Trust) -> None:
        self._environment = environment
        self._trust = trust
        self._servers: dict[str, McpServer] = {}
        self._unset: dict[str, str] = {}
        self._tables: dict[str, ServerTable] = {}
        self._left_out: list[TrustRequest] = []
        self.mistakes: list[str] = []

    def add_project(self, table: ServerTable) -> None:
        """Raises `UserError` if it cannot be shown to the user."""
        if table.specs and not self._trust.is_approved(request := table.request()):
            self._left_out.append(request)
        else:
            self.add(table)

    def add(self, table: ServerTable) -> None:
        for name, spec in table.specs.items():
            for known in (self._servers, self._unset, self._tables):
                known.pop(name, None)
            if _is_on(spec):
                self._add(table, name, spec)

    def _add(self, table: ServerTable, name: str, spec: Spec) -> None:
        try:
            try:
                self._servers[name] = server_of(table.path, name, spec, self._environment)
            except VariableUnset as error:
                # It can be listed, with its error.
                self._servers[name] = server_of(table.path, name, spec, AsWritten())
                self._unset[name] = str(error)
            self._tables[name] = table
        except UserError as error:
            self.mistakes.append(f"{error}; it is left out")

    def config(self) -> McpConfig:
        tables = self._tables
        return McpConfig(
            tuple(self._servers.values()),
            tuple(self._left_out),
            {name: table.path for name, table in tables.items()},
            {name: table for name, table in tables.items() if table.project},
            self._trust,
            tuple(self.mistakes),
            self._unset,
            {name: table.specs[name] for name, table in tables.items()},
        )


class VariableUnset(UserError):
    """A server wants a variable that is not set."""


class AsWritten(dict[str, str]):
    """An environment in which each variable stands for itself."""

    def get(self, key: str, default: Any = None) -> Any:
        return f"${{{key}}}"


class _Lenient(dict[str, str]):
    """An environment in which variables that are not set and have no default are empty."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, "")


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
        given = environment.get(found[1])
        if found[2] is not None:
            # As in a shell: the default also stands for an empty variable.
            return given or found[2]
        if given is None:
            raise VariableUnset(
                f"{where}: the variable {found[1]} is not set; set it, or write "
                f"${{{found[1]}:-default}}"
            )
        return given

    return _VARIABLE.sub(replaced, value)


def _effect(name: str, spec: Spec) -> str:
    """Describe a server for the user's approval: first what it does, then every key as written."""
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
    """Everything in a server's table that may name a script, with the files by which well-known
    programs find one."""
    listed, environment = spec.get("args"), spec.get("env")
    arguments = [each for each in listed if isinstance(each, str)] if _is_list(listed) else []
    own = environment.values() if isinstance(environment, dict) else ()
    values = [each for each in own if isinstance(each, str)]
    command = spec.get("command")
    if isinstance(command, str):
        yield command
        program = command.rpartition("/")[2]
        if program in _READ_BY:
            yield _READ_BY[program]
        if program in _NODE:
            yield from (f"node_modules/.bin/{each}" for each in arguments)
        # Its own PATH may lead into the project.
        yield from (f"{part}/{command}" for each in values for part in each.split(os.pathsep))
    yield from arguments
    for flag, module in pairwise(arguments):
        if flag == "-m":
            path = module.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__main__.py")
    yield from values


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _above(folder: Path, name: str) -> Path | None:
    for each in (folder, *folder.parents):
        if os.path.lexists(each / name):
            return each / name
    return None


def _specs(path: Path, read: Callable[[Path], Any]) -> Mapping[str, Spec]:
    tree = read(path)
    table = tree.get(TABLE) if isinstance(tree, dict) else None
    if table is None:
        return {}
    if not isinstance(table, dict) or not all(isinstance(each, dict) for each in table.values()):
        raise UserError(f"{path}: {TABLE} is not a table of servers by their names")
    return table


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
