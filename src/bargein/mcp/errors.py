"""The errors of MCP servers.

WorldError
└── McpError              an MCP server failed; the message names it
    ├── ServerDown        it cannot be started or reached, or the connection was lost
    │   └── NotSent       the same, and the request certainly had no effect
    │       └── SignInNeeded    it demands that the user sign in
    └── Rejected          it answered a request with an error
"""

from bargein.errors import WorldError


class McpError(WorldError):
    """`server` is the name in the configuration."""

    def __init__(self, server: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(f"MCP server {server}: {message}", retryable=retryable)
        self.server = server
        self.words = message

    def __reduce__(self) -> tuple[object, ...]:
        return WorldError.__reduce__(self)


class ServerDown(McpError):
    """There is no connection to the server, or no longer."""


class NotSent(ServerDown):
    """The server never got the request, or refused it before it read it."""


class SignInNeeded(NotSent):
    """`challenge` is what the server said about how to sign in."""

    def __init__(self, server: str, message: str, challenge: str = "") -> None:
        super().__init__(server, message)
        self.challenge = challenge


class Rejected(McpError):
    """The server answered with an error. `code` is JSON-RPC's."""

    def __init__(self, server: str, code: int, message: str, data: object = None) -> None:
        super().__init__(server, f"{message} ({code})")
        self.code = code
        self.data = data
