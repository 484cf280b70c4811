"""The user's file with the tokens of MCP servers, `mcp_tokens.json` beside their settings. Only the
user can read it (mode 0600), and commands of the agent do not see its folder.

A token belongs to the address of a server. Several processes use the file: a process that refreshes
a token writes it here, and the others find it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from bargein.mcp.oauth.authorizer import Authorizer
from bargein.mcp.oauth.flow import Visit
from bargein.mcp.oauth.kept import KeptToken
from bargein.mcp.server import McpServer
from bargein.runtime.config import Config, user_file
from bargein.stores.user_file import UserFile

FILE: Final = "mcp_tokens.json"

Tokens = dict[str, KeptToken]


class TokenFile:
    """A `TokenKeeper`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file: UserFile[Tokens] = UserFile(
            self.path, Tokens, {}, mends="remove it, and sign in again"
        )

    def get(self, url: str) -> KeptToken | None:
        return self._file.read().get(url)

    def put(self, url: str, token: KeptToken) -> None:
        self._file.change(lambda tokens: {**tokens, url: token})

    def remove(self, url: str) -> KeptToken | None:
        found = self.get(url)
        self._file.change(lambda tokens: {key: tokens[key] for key in tokens if key != url})
        return found


def authorizers(
    config: Config, *, redirect: str = "", visit: Visit | None = None
) -> Callable[[McpServer], Authorizer | None]:
    """Returns what makes the authorizer of a server. `visit` asks the user in a browser, where
    there is a user."""
    tokens = TokenFile(user_file(config.environment).parent)

    def make(server: McpServer) -> Authorizer | None:
        if not server.url:
            return None
        secret = config.environment.get(server.oauth_client_secret_env_var, "")
        return Authorizer(
            server,
            tokens,
            secret=secret.strip(),
            proxy=config.models.proxy_for(server.url),
            redirect=redirect,
            visit=visit,
        )

    return make
