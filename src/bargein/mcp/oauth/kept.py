"""The data of a sign-in that is stored. Plain data; `runtime.mcp_tokens` has the file."""

import time
from typing import Final, Protocol

import msgspec

EARLY_S: Final = 30.0
"""A token that ends so soon is refreshed before it is used."""


class RegisteredClient(msgspec.Struct, frozen=True):
    """The client that we are to one authorization server. `method` is how the secret is sent."""

    issuer: str
    id: str
    secret: str = ""
    method: str = "none"
    redirect: str = ""


class KeptToken(msgspec.Struct, frozen=True):
    """`scope` is what was asked for so far, and what a server has demanded since."""

    access: str = ""
    refresh: str = ""
    expires_at: float = 0.0
    scope: str = ""
    resource: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str = ""
    client: RegisteredClient | None = None

    @property
    def usable(self) -> bool:
        return bool(self.access) and (not self.expires_at or time.time() < self.expires_at)

    @property
    def ends_soon(self) -> bool:
        return bool(self.expires_at) and time.time() > self.expires_at - EARLY_S


class TokenKeeper(Protocol):
    """Where the tokens are, by the address of their server. Raises `BargeinError` if it cannot be
    read or written."""

    def get(self, url: str) -> KeptToken | None: ...

    def put(self, url: str, token: KeptToken) -> None: ...

    def remove(self, url: str) -> KeptToken | None: ...
