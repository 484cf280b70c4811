"""The address of a server, and the certificate by which a client recognises it."""

from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from bargein.errors import UserError
from bargein.runtime.data_directory import socket_path

UNIX = "unix:"
FINGERPRINT_CHARACTERS = 64


class Address(msgspec.Struct, frozen=True):
    """`url` has no path. `token` comes from the fragment of the address; for an invitation to a
    shared chat the fragment has a `code` instead. `fingerprint` is the SHA-256 of the certificate
    that the server must show."""

    url: str
    unix: Path | None = None
    token: str | None = None
    fingerprint: bytes | None = None
    code: str | None = None

    @property
    def socket_url(self) -> str:
        return f"ws{self.url.removeprefix('http')}/v1/socket"

    def connector(self, stack: ExitStack) -> aiohttp.BaseConnector:
        """`stack` keeps open what the connector needs; close it after the connector."""
        if self.unix is None:
            return aiohttp.TCPConnector()
        try:
            return aiohttp.UnixConnector(stack.enter_context(socket_path(self.unix)))
        except OSError as error:
            raise UserError(f"{self.unix} cannot be reached: {error.strerror}") from error

    @property
    def ssl(self) -> SSLContext | aiohttp.Fingerprint | bool:
        """With a fingerprint, exactly that certificate is accepted, whoever signed it."""
        return aiohttp.Fingerprint(self.fingerprint) if self.fingerprint is not None else True


def parse_address(text: str, fingerprint: str | None = None, *, plain: bool = False) -> Address:
    """Reads `http://`, `https://` or `unix:PATH`, with `#token=...` behind it or not. `plain` lets
    a token go to another machine without TLS."""
    address, _, fragment = text.partition("#")
    kind, _, secret = fragment.partition("=")
    token = unquote(secret) if kind == "token" else None
    code = unquote(secret) if kind == "join" else None
    pinned = _fingerprint(fingerprint) if fingerprint is not None else None
    if address.startswith(UNIX):
        return Address("http://localhost", Path(address.removeprefix(UNIX)), token)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{address!r} is not the address of a server; write it like http://127.0.0.1:8484/, "
            "https://example.org/ or unix:/path/to/socket"
        )
    if parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise UserError(f"{address!r}: give the address of the server alone, without a path")
    if parts.scheme == "http" and pinned is not None:
        raise UserError(f"{address!r} shows no certificate; a fingerprint needs https://")
    if parts.scheme == "http" and not plain and not _is_here(parts.hostname):
        raise UserError(
            f"{address!r} is another machine, and the token would go there unencrypted; use "
            "https://, or a tunnel to it"
        )
    return Address(f"{parts.scheme}://{parts.netloc}", None, token, pinned, code)


def _fingerprint(text: str) -> bytes:
    digits = text.replace(":", "").replace(" ", "").lower().removeprefix("sha256")
    try:
        if len(digits) != FINGERPRINT_CHARACTERS:
            raise ValueError
        return bytes.fromhex(digits)
    except ValueError:
        raise UserError(
            f"{text!r} is not a fingerprint; give the SHA-256 of the certificate, "
            f"{FINGERPRINT_CHARACTERS} hexadecimal digits"
        ) from None


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
