"""`McpServer`: the configuration of a server. Plain data, checked when it is made."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from bargein.contracts.given import wrong

OnStop = Literal["tell", "restart"]

STARTUP_TIMEOUT_S: Final = 30.0
TOOL_TIMEOUT_S: Final = 60.0
SECONDS_MAX: Final = 86_400.0

_NAME: Final = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9_-]{0,30}[A-Za-z0-9])?$")

_OAUTH: Final = ("oauth_client_id", "oauth_client_secret_env_var", "oauth_client_metadata_url")


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server whose tools an agent may use:

        Agent(mcp=[McpServer("time", "uvx", ["mcp-server-time"])])

    Give `command` and `args` for a program that is started, or `url` for a server that runs
    elsewhere. The program gets `env` and little else of the environment. `headers` go with each
    request; `bearer_token_env_var` names a variable whose value is the bearer token. A server that
    wants you to sign in is signed in to by `bargein mcp login NAME`; `oauth_client_id` is for a
    server that knows us beforehand (`oauth_client_secret_env_var` names the variable with its
    secret), `oauth_client_metadata_url` the address of a metadata document of yours.

    `startup_timeout_s` bounds the start, `tool_timeout_s` each call, without the time in which the
    user is asked something. `enabled_tools` offers only these tools, `disabled_tools` all but
    these. `on_stop` is what happens to a program that no longer responds after a call of it was
    stopped: it is left alone ("tell"), or ended, and started again when it is next needed
    ("restart").
    """

    name: str
    command: str = ""
    args: Sequence[str] = ()
    _: KW_ONLY
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    bearer_token_env_var: str = ""
    oauth_client_id: str = ""
    oauth_client_secret_env_var: str = ""
    oauth_client_metadata_url: str = ""
    startup_timeout_s: float = STARTUP_TIMEOUT_S
    tool_timeout_s: float = TOOL_TIMEOUT_S
    enabled_tools: Sequence[str] | None = None
    disabled_tools: Sequence[str] = ()
    on_stop: OnStop = "tell"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name) or "__" in self.name:
            right = "use letters, digits, - and single _, 32 at most, such as github"
            raise wrong("name", self.name, right)
        _check_texts(self, "command", "url", "bearer_token_env_var", *_OAUTH)
        if bool(self.command) == bool(self.url):
            raise wrong(
                f"the MCP server {self.name}",
                {"command": self.command, "url": self.url},
                "give either a command or a url",
            )
        for name in ("args", "disabled_tools", "enabled_tools"):
            _check_list(self, name)
        for name in ("env", "headers"):
            _check_map(self, name)
        if self.url:
            _check_url(self)
        elif self.headers or self.bearer_token_env_var or any(getattr(self, e) for e in _OAUTH):
            raise wrong("headers", "given", f"MCP server {self.name} is a command and takes none")
        if self.oauth_client_metadata_url and not _is_document(self.oauth_client_metadata_url):
            right = "give an address that begins with https:// and has a path"
            raise wrong("oauth_client_metadata_url", self.oauth_client_metadata_url, right)
        if self.cwd is not None and not isinstance(self.cwd, str | os.PathLike):
            raise wrong("cwd", self.cwd, "give a path or None")
        for name in ("startup_timeout_s", "tool_timeout_s"):
            value = getattr(self, name)
            usable = isinstance(value, int | float) and not isinstance(value, bool)
            if not usable or not 0 < value <= SECONDS_MAX:
                raise wrong(name, value, f"give seconds above 0, {SECONDS_MAX:g} at most")
        if self.on_stop not in ("tell", "restart"):
            raise wrong("on_stop", self.on_stop, 'give "tell" or "restart"')

    @property
    def is_process(self) -> bool:
        return bool(self.command)

    def offers(self, tool: str) -> bool:
        """Whether the configuration lets this tool be used."""
        if self.enabled_tools is not None and tool not in self.enabled_tools:
            return False
        return tool not in self.disabled_tools


def _is_document(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname) and parts.path not in ("", "/")


def _check_texts(server: McpServer, *names: str) -> None:
    for name in names:
        value = getattr(server, name)
        if not isinstance(value, str) or "\0" in value:
            raise wrong(name, value, "give a text")


def _check_list(server: McpServer, name: str) -> None:
    value = getattr(server, name)
    if value is None and name == "enabled_tools":
        return
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise wrong(name, value, "give a list of texts")


def _check_map(server: McpServer, name: str) -> None:
    value = getattr(server, name)
    texts = isinstance(value, Mapping) and all(
        isinstance(each, str) for pair in value.items() for each in pair
    )
    if not texts:
        raise wrong(name, value, "give a table of texts")
    if name == "headers" and any(
        not each.isprintable() or not each.isascii() for pair in value.items() for each in pair
    ):
        raise wrong(name, sorted(value), "a header has printable ASCII characters only")


def _check_url(server: McpServer) -> None:
    try:
        parts = urlsplit(server.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise wrong("url", server.url, "give an address that begins with https:// or http://")
    for name in ("args", "env"):
        if getattr(server, name):
            raise wrong(name, "given", f"MCP server {server.name} has a url and takes none")
    if server.cwd is not None:
        raise wrong("cwd", server.cwd, f"MCP server {server.name} has a url and takes none")
