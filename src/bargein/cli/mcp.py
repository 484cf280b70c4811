"""`bargein mcp`: adds, lists, tests and removes MCP servers in the user's own file, signs in to
them, and serves the agent as one."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bargein.cli.event_loop import run_in_loop
from bargein.cli.trusting import tell_left_out
from bargein.errors import UserError
from bargein.mcp.errors import McpError
from bargein.mcp.overview import ServerStatus
from bargein.mcp.server import McpServer
from bargein.mcp.servers import McpServers
from bargein.runtime.config import Config, user_file
from bargein.runtime.mcp_config import TABLE, USER_FILE, AsWritten, McpConfig, server_of
from bargein.stores.user_file import UserFile

Content = dict[str, Any]


def main(given: argparse.Namespace, config: Config) -> int:
    if given.action == "add":
        return _add(given, config)
    if given.action == "remove":
        return _remove(given, config)
    if given.action == "serve":
        from bargein.cli.mcp_serve import serve

        return run_in_loop(serve, config)
    found = config.mcp or McpConfig()
    if given.action in ("login", "logout"):
        from bargein.cli.mcp_login import login, logout

        server = _over_http(given.name, found)
        if given.action == "login":
            return run_in_loop(login, server, config, given.browser)
        return run_in_loop(logout, server, config)
    for request in found.left_out:
        tell_left_out(request)
    for mistake in found.mistakes:
        print(f"bargein: {mistake}", file=sys.stderr)
    if given.action == "test":
        return run_in_loop(_test, given, config, found)
    for server in found.servers:
        # As it is written: a variable may hold a key.
        spec = found.written[server.name]
        where = spec.get("url") or " ".join([spec["command"], *spec.get("args", ())])
        print(f"{server.name}  {where}  ({found.sources[server.name]})")
        if server.name in found.unset:
            print(f"  {found.unset[server.name]}")
    if not found.servers:
        print("no MCP servers; add one with  bargein mcp add NAME COMMAND ...", file=sys.stderr)
    return 0


def _add(given: argparse.Namespace, config: Config) -> int:
    spec: dict[str, Any] = {}
    words: list[str] = given.words
    if given.url:
        if words:
            raise UserError("give either a command or --url")
        spec = {"type": "http", "url": given.url}
        if given.header:
            spec["headers"] = dict(_pair(each, ":") for each in given.header)
        if given.bearer_token_env_var:
            spec["bearer_token_env_var"] = given.bearer_token_env_var
    elif words:
        spec = {"command": words[0], "args": words[1:]}
    else:
        raise UserError("give the command that starts the server, or --url ADDRESS")
    if given.env:
        spec["env"] = dict(_pair(each, "=") for each in given.env)
    path = _path(config)
    # Checked as it will be read; a variable that is not set yet is no mistake of this command.
    server_of(path, given.name, spec, AsWritten())

    def added(content: Content) -> Content:
        table = dict(content.get(TABLE) or {})
        if given.name in table and not given.replace:
            raise UserError(f"{path} has a server {given.name} already; --replace replaces it")
        return {**content, TABLE: {**table, given.name: spec}}

    _file(path).change(added)
    print(f"added {given.name} to {path}; try it with  bargein mcp test {given.name}")
    return 0


def _remove(given: argparse.Namespace, config: Config) -> int:
    path = _path(config)

    def without(content: Content) -> Content:
        table = dict(content.get(TABLE) or {})
        if given.name not in table:
            raise UserError(f"{path} has no server {given.name}; `bargein mcp list` has them all")
        del table[given.name]
        return {**content, TABLE: table}

    _file(path).change(without)
    print(f"removed {given.name} from {path}")
    return 0


async def _test(given: argparse.Namespace, config: Config, found: McpConfig) -> int:
    """Starts each server and lists its tools. Nothing is called."""
    from bargein import __version__
    from bargein.process import containment_when_needed
    from bargein.runtime.hiding import hiding_without_workspace
    from bargein.runtime.mcp_tokens import authorizers

    names = [given.name] if given.name else [each.name for each in found.servers]
    servers = [each for each in found.servers if each.name in names]
    if not servers:
        raise UserError(f"there is no MCP server {given.name}" if given.name else "no MCP servers")
    failed = 0 if given.name else len(found.mistakes)
    hiding = hiding_without_workspace(config, config.home)
    async with (
        containment_when_needed(home=config.home, hiding=hiding) as containment,
        McpServers(
            servers,
            containment=containment,
            folder=Path.cwd(),
            environment=config.environment,
            client_version=__version__,
            proxy_for=config.models.proxy_for,
            why_not=found.why_not,
            authorizer_of=authorizers(config),
        ) as opened,
    ):
        for server in servers:
            began = time.monotonic()
            try:
                await opened.life_of(server.name).connected()
            except McpError as error:
                failed += 1
                print(f"{server.name}  failed: {error}")
                continue
            elapsed_s = time.monotonic() - began
            status = next(each for each in opened.status() if each.name == server.name)
            print("\n".join([f"{status_line(status)}, in {elapsed_s:.1f} s", *details(status)]))
    return 1 if failed else 0


def _over_http(name: str, found: McpConfig) -> McpServer:
    server = next((each for each in found.servers if each.name == name), None)
    if server is None:
        raise UserError(f"there is no MCP server {name}; `bargein mcp list` has them all")
    if not server.url:
        raise UserError(f"{name} is a command, which gets its keys by --env; it has no sign-in")
    if name in found.unset:
        raise UserError(found.unset[name])
    return server


def status_line(status: ServerStatus) -> str:
    """A server in one line: what it does, what it is."""
    words = [f"{status.name}  {status.state}"]
    if status.server:
        words.append(status.server)
    if status.version:
        words.append(f"MCP {status.version}")
    if status.tools:
        words.append(f"{len(status.tools)} tools")
    return ", ".join(words)


def details(status: ServerStatus) -> list[str]:
    """The rest of what is known, a line each."""
    lines = [f"  {name}" for name in status.tools]
    lines += [f"  left out: {each}" for each in status.left_out]
    lines += [f"  process: {each}" for each in status.processes]
    if status.oddities:
        lines.append(f"  odd: {status.oddities}")
    if status.error:
        lines.append(f"  last error: {status.error}")
    return lines


def _pair(text: str, between: str) -> tuple[str, str]:
    name, found, value = text.partition(between)
    if not found or not name.strip():
        example = "NAME=VALUE" if between == "=" else "'Name: value'"
        raise UserError(f"{text!r} is not valid; write it like {example}")
    return name.strip(), value.strip() if between == ":" else value


def _path(config: Config) -> Path:
    return user_file(config.environment).parent / USER_FILE


def _file(path: Path) -> UserFile[Content]:
    return UserFile(path, Content, {}, mends="repair it")
