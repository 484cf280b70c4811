"""An HTTP model endpoint: its address, dialect, key and limits."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bargein.cancel import Token
from bargein.contracts.model import ModelRequest
from bargein.errors import UserError
from bargein.models.costs import Price
from bargein.models.dialects import Dialect
from bargein.models.endpoint import Attempt
from bargein.models.errors import Secret
from bargein.models.explain import Target
from bargein.models.watchdog import Timeouts

if TYPE_CHECKING:
    import ssl

    from bargein.net.resolver import Lookup


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An `Endpoint`. It holds no connection: every attempt opens and closes its own.

    `dialect.path` is appended to `base_url`. `tls` replaces the default trust store, `lookup` the
    system's resolver, and `proxy` is the address of an HTTP proxy.
    """

    name: str
    model: str
    base_url: str
    dialect: Dialect
    key: Secret | None = None
    context_tokens: int | None = None
    price: Price | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    tls: ssl.SSLContext | None = None
    proxy: str | None = None
    lookup: Lookup = socket.getaddrinfo

    def __post_init__(self) -> None:
        split_base_url(self.base_url, self.dialect.url_variable)
        if self.key and not _fits_header(self.key):
            raise UserError(
                f"{self.dialect.key_variable} has a character that no key has "
                "(a line break, or not plain ASCII); copy the key again"
            )

    def __repr__(self) -> str:
        # Addresses may contain passwords.
        return f"<HttpEndpoint {self.name} at {self.target.host}>"

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + self.dialect.path

    @property
    def target(self) -> Target:
        host = split_base_url(self.base_url, self.dialect.url_variable)
        variables = (self.dialect.url_variable, self.dialect.key_variable)
        return Target(self.name, host, *variables, self.key)

    def attempt(self, request: ModelRequest, token: Token) -> Attempt:
        # Imported here: the HTTP client is heavy, and naming a model does not need it.
        from bargein.models.http_attempt import HttpAttempt

        return HttpAttempt(self, request, token)

    async def aclose(self) -> None:
        """Does nothing: nothing is held between requests."""


def split_base_url(url: str, variable: str) -> str:
    """Returns the host of an API address, with the port if given, without user and password.
    Raises `UserError` if `url` cannot be such an address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        example = "https://api.openai.com/v1"
        raise UserError(f"{variable} is not the address of an API; it should look like {example}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return host if port is None else f"{host}:{port}"


def _fits_header(key: Secret) -> bool:
    value = key.reveal()
    return value.isascii() and value.isprintable()
