"""Finds out where to sign in: from a server's challenge to its authorization server's metadata.

    401 with a challenge -> the resource's metadata (RFC 9728) -> the server's (RFC 8414)

Strangers wrote all of it. So reading is bounded, no redirect is followed, addresses must be https
or on this machine, and names that have to agree are compared character by character.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bargein.mcp.errors import McpError

BODY_BYTES_MAX: Final = 256 << 10
REQUEST_S: Final = 15.0
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)


class OAuthFailed(McpError):
    """Signing in did not work. The message says why, and what to do."""


class Challenge(msgspec.Struct, frozen=True):
    """The challenge in a server's 401 or 403: RFC 6750 and RFC 9728."""

    metadata_url: str = ""
    scope: str = ""
    error: str = ""

    @property
    def wants_more(self) -> bool:
        """Whether the token is valid but allows too little."""
        return self.error == "insufficient_scope"


# Without the word boundary a long word would be read again from each of its letters.
_PARAMETER: Final = re.compile(r'\b([A-Za-z_]+)=(?:"([^"]*)"|([^\s,]+))')


def read_challenge(header: str) -> Challenge:
    found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(header)}
    return Challenge(
        found.get("resource_metadata", ""), found.get("scope", ""), found.get("error", "")
    )


class AuthorizationServer(msgspec.Struct, frozen=True):
    """The parts of RFC 8414's metadata that are used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class Discovered(msgspec.Struct, frozen=True):
    """`scopes` are what the resource wants; None if it does not say."""

    resource: str
    server: AuthorizationServer
    scopes: tuple[str, ...] | None = None


async def discover(
    http: aiohttp.ClientSession, name: str, url: str, challenge: Challenge, proxy: str | None
) -> Discovered:
    """Finds the authorization server of an MCP server. Raises `OAuthFailed`."""
    resource, scopes, issuers = url, None, []
    for address in _resource_metadata_urls(url, challenge):
        found = await _get_json(http, name, address, url, proxy)
        if found is None:
            continue
        resource = _resource_of(name, url, found)
        listed = found.get("authorization_servers")
        issuers = [each for each in listed if isinstance(each, str)] if listed else []
        wanted = found.get("scopes_supported")
        scopes = tuple(map(str, wanted)) if isinstance(wanted, list) else None
        break
    if issuers:
        return Discovered(resource, await _metadata(http, name, issuers[0], url, proxy), scopes)
    # Servers of 2025-03-26 have no resource metadata: they are their own authorization server.
    parts = urlsplit(url)
    own = f"{parts.scheme}://{parts.netloc}"
    return Discovered(resource, await _metadata(http, name, own, url, proxy), scopes)


def _resource_metadata_urls(url: str, challenge: Challenge) -> list[str]:
    parts = urlsplit(url)
    known = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource"
    path = parts.path.rstrip("/")
    urls = [challenge.metadata_url] if challenge.metadata_url else []
    return [*urls, *([f"{known}{path}"] if path else []), known]


def _resource_of(name: str, url: str, found: Mapping[str, Any]) -> str:
    """The resource that a token is asked for. Raises `OAuthFailed` if it is another's: a token for
    that must not be sent here."""
    resource = str(found.get("resource") or "")
    ours, theirs = urlsplit(url), urlsplit(resource)
    same = (ours.scheme, ours.netloc.lower()) == (theirs.scheme, theirs.netloc.lower())
    below = f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")
    if not (same and below):
        raise OAuthFailed(name, f"its metadata are those of another resource, {resource!r}")
    return resource


async def _metadata(
    http: aiohttp.ClientSession, name: str, issuer: str, url: str, proxy: str | None
) -> AuthorizationServer:
    check_address(name, issuer, url)
    for address in _server_metadata_urls(issuer):
        found = await _get_json(http, name, address, url, proxy)
        if found is None:
            continue
        try:
            server = msgspec.convert(found, AuthorizationServer)
        except msgspec.ValidationError as error:
            raise OAuthFailed(name, f"the metadata at {address} cannot be used: {error}") from None
        if not _is_same_issuer(server.issuer, issuer):
            raise OAuthFailed(
                name, f"the metadata of {issuer} were written by another, {server.issuer!r}"
            )
        _check(name, server, url)
        return server
    raise OAuthFailed(
        name,
        f"{issuer} has no metadata that say how to sign in; check its url, or set "
        "bearer_token_env_var if you have a token",
    )


def _is_same_issuer(one: str, other: str) -> bool:
    """Issuers are compared as they are written; only the slash of a bare host may be missing."""
    bare = urlsplit(one).path in ("", "/") and urlsplit(other).path in ("", "/")
    return one == other or (bare and one.rstrip("/") == other.rstrip("/"))


def _server_metadata_urls(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    if path:
        return [f"{base}{oauth}{path}", f"{base}{openid}{path}", f"{base}{path}{openid}"]
    return [f"{base}{oauth}", f"{base}{openid}"]


def _check(name: str, server: AuthorizationServer, url: str) -> None:
    for address in (
        server.authorization_endpoint,
        server.token_endpoint,
        server.registration_endpoint or server.token_endpoint,
        server.revocation_endpoint or server.token_endpoint,
    ):
        check_address(name, address, url)
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise OAuthFailed(name, f"{server.issuer} does not offer PKCE with S256; it is not safe")


def check_address(name: str, address: str, url: str) -> None:
    """Raises `OAuthFailed` unless secrets may be sent there. Plain http is for servers on this
    machine alone: another's metadata must not lead us to what listens here."""
    if not (address.isascii() and address.isprintable()):
        # It is shown in the terminal, which obeys control characters.
        raise OAuthFailed(name, f"{address[:200]!r} has characters that no address has")
    parts = urlsplit(address)
    near = _is_here(address) and _is_here(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and near):
        raise OAuthFailed(name, f"{address[:200]!r} is not https, and so not safe")


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


async def _get_json(
    http: aiohttp.ClientSession, name: str, address: str, url: str, proxy: str | None
) -> dict[str, Any] | None:
    """The object at an address; None if there is none."""
    check_address(name, address, url)
    try:
        async with http.get(
            address,
            headers={"Accept": "application/json"},
            allow_redirects=False,
            proxy=proxy,
            timeout=aiohttp.ClientTimeout(total=REQUEST_S),
        ) as answer:
            return await read_object(answer) if answer.status == 200 else None
    except _BROKEN:
        return None


async def read_object(answer: aiohttp.ClientResponse) -> dict[str, Any] | None:
    """The object in the body of an answer; None if there is none, or it is too long."""
    body = bytearray()
    while piece := await answer.content.readany():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            return None
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
