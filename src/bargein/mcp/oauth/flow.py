"""The authorization code flow with PKCE, and the requests to a token endpoint.

    discover -> identify ourselves (a given id, a metadata document, or a registration) -> ask the
    user in a browser -> check state and issuer -> exchange the code -> keep the token

The caller provides the browser: a `Visit` opens an address in it and returns the address to which
the browser was sent back.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import aiohttp
import msgspec

from bargein.calls.text import one_line
from bargein.mcp.oauth.discovery import (
    REQUEST_S,
    AuthorizationServer,
    Challenge,
    Discovered,
    OAuthFailed,
    check_address,
    discover,
    read_object,
)
from bargein.mcp.oauth.kept import KeptToken, RegisteredClient
from bargein.mcp.server import McpServer
from bargein.mcp.wire import parse_number

OFFLINE: Final = "offline_access"
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError)

Visit = Callable[[str], Awaitable[str]]


class OAuthRefused(OAuthFailed):
    """The authorization server refused; `code` is its word for it, such as `invalid_grant`."""

    def __init__(self, server: str, code: str, message: str) -> None:
        super().__init__(server, message)
        self.code = code


class OAuthFlow:
    """Signs in to one server. `redirect` is where the browser comes back to. `secret` is the secret
    of an id that was given to us beforehand."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        server: McpServer,
        *,
        secret: str = "",
        proxy: str | None = None,
    ) -> None:
        self._http = http
        self._server = server
        self._name = server.name
        self._secret = secret
        self._proxy = proxy

    async def sign_in(
        self, challenge: Challenge, before: KeptToken | None, redirect: str, visit: Visit
    ) -> KeptToken:
        """Raises `OAuthFailed`."""
        found = await discover(self._http, self._name, self._server.url, challenge, self._proxy)
        at = found.server
        client = await self._client_for(at, before, redirect)
        scope = _scope(found, challenge, before)
        state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": redirect,
            "state": state,
            "code_challenge": _s256(verifier),
            "code_challenge_method": "S256",
            "resource": found.resource,
            **({"scope": scope} if scope else {}),
        }
        joint = "&" if urlsplit(at.authorization_endpoint).query else "?"
        came = await visit(f"{at.authorization_endpoint}{joint}{urlencode(asked)}")
        code = _code_in(self._name, came, state, at)
        given = await self._post(
            at.token_endpoint,
            client,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": redirect,
                "code_verifier": verifier,
                "resource": found.resource,
            },
        )
        empty = KeptToken(
            scope=scope,
            resource=found.resource,
            token_endpoint=at.token_endpoint,
            revocation_endpoint=at.revocation_endpoint,
            client=client,
        )
        return self._token_in(given, empty)

    async def refresh(self, kept: KeptToken) -> KeptToken:
        """Raises `OAuthRefused` if the user must sign in again, else `OAuthFailed`."""
        if kept.client is None or not kept.refresh:
            raise OAuthRefused(self._name, "invalid_grant", "there is nothing to refresh it with")
        form = {"grant_type": "refresh_token", "refresh_token": kept.refresh}
        form["resource"] = kept.resource
        return self._token_in(await self._post(kept.token_endpoint, kept.client, form), kept)

    async def revoke(self, kept: KeptToken) -> bool:
        """Tells the authorization server that the token is no longer wanted. Returns whether it
        was told."""
        if kept.client is None or not kept.revocation_endpoint:
            return False
        form = {"token": kept.refresh or kept.access}
        try:
            await self._post(kept.revocation_endpoint, kept.client, form)
        except OAuthFailed:
            return False
        return True

    # The client that we are to the authorization server

    async def _client_for(
        self, at: AuthorizationServer, before: KeptToken | None, redirect: str
    ) -> RegisteredClient:
        server = self._server
        known = before.client if before is not None else None
        if server.oauth_client_id:
            if known and known.id == server.oauth_client_id and known.issuer != at.issuer:
                # Its secret is for the one that gave it.
                raise OAuthFailed(
                    self._name,
                    f"it signs in at {at.issuer} now, and no longer at {known.issuer}, which gave "
                    f"oauth_client_id; if that is right, run  bargein mcp logout {self._name}  "
                    "first",
                )
            method = _method(at, has_secret=True) if self._secret else "none"
            return RegisteredClient(at.issuer, server.oauth_client_id, self._secret, method)
        if server.oauth_client_metadata_url and at.client_id_metadata_document_supported:
            return RegisteredClient(at.issuer, server.oauth_client_metadata_url)
        if known is not None and (known.issuer, known.redirect) == (at.issuer, redirect):
            return known
        return await self._register(at, redirect)

    async def _register(self, at: AuthorizationServer, redirect: str) -> RegisteredClient:
        if not at.registration_endpoint:
            raise OAuthFailed(
                self._name,
                f"{at.issuer} registers no clients by itself; register one there, and set "
                "oauth_client_id",
            )
        wanted = client_metadata(redirect, _method(at))
        body = msgspec.json.encode(wanted)
        headers = {"Content-Type": "application/json"}
        found = await self._send(at.registration_endpoint, body, headers)
        client_id = found.get("client_id")
        if not isinstance(client_id, str) or not client_id:
            raise OAuthFailed(self._name, f"{at.issuer} registered us without an id")
        secret = str(found.get("client_secret") or "")
        usual = _method(at, has_secret=True) if secret else "none"
        method = str(found.get("token_endpoint_auth_method") or usual)
        return RegisteredClient(at.issuer, client_id, secret, method, redirect)

    # Requests

    async def _post(
        self, address: str, client: RegisteredClient, form: Mapping[str, str]
    ) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        fields = dict(form)
        if client.method == "client_secret_basic" and client.secret:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields["client_id"] = client.id
            if client.method == "client_secret_post" and client.secret:
                fields["client_secret"] = client.secret
        return await self._send(address, urlencode(fields).encode(), headers)

    async def _send(self, address: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        check_address(self._name, address, self._server.url)
        try:
            async with self._http.post(
                address,
                data=body,
                headers={"Accept": "application/json", **headers},
                allow_redirects=False,
                proxy=self._proxy,
                timeout=aiohttp.ClientTimeout(total=REQUEST_S),
            ) as answer:
                found = await read_object(answer) or {}
                if answer.status in (200, 201):
                    return found
                code = str(found.get("error") or f"HTTP {answer.status}")
                said = one_line(f"{code} {found.get('error_description') or ''}".strip(), 300)
                raise OAuthRefused(self._name, code, f"{_host(address)} refused: {said}")
        except _BROKEN as error:
            why = one_line(str(error) or type(error).__name__)
            raise OAuthFailed(self._name, f"{_host(address)} cannot be reached: {why}") from error

    def _token_in(self, found: Mapping[str, Any], kept: KeptToken) -> KeptToken:
        access = found.get("access_token")
        kind = str(found.get("token_type") or "bearer")
        if not isinstance(access, str) or not _is_token(access) or kind.lower() != "bearer":
            raise OAuthFailed(self._name, f"{_host(kept.token_endpoint)} gave no bearer token")
        lasts_s = parse_number(found.get("expires_in"))
        return msgspec.structs.replace(
            kept,
            access=access,
            refresh=str(found.get("refresh_token") or kept.refresh),
            expires_at=time.time() + lasts_s if lasts_s is not None else 0.0,
        )


def client_metadata(redirect: str, method: str = "none") -> dict[str, Any]:
    """The description of ourselves for a registration. A metadata document contains the same, and
    its own address as `client_id`."""
    return {
        "client_name": "Bargein",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }


def _method(at: AuthorizationServer, *, has_secret: bool = False) -> str:
    """Choose how we authenticate, among the methods that the server accepts."""
    offered = at.token_endpoint_auth_methods_supported
    if offered is None:
        return "client_secret_basic"
    for each in ("none", "client_secret_basic", "client_secret_post"):
        if each in offered and not (has_secret and each == "none"):
            return each
    return "none"


def _scope(found: Discovered, challenge: Challenge, before: KeptToken | None) -> str:
    """What to ask for: what the server demands, else what it supports, and what was asked for
    before; with `offline_access` where that gives a token that can be refreshed."""
    wanted = challenge.scope.split() or list(found.scopes or ())
    known = before.scope.split() if before is not None else []
    scopes = list(dict.fromkeys([*known, *wanted]))
    if scopes and OFFLINE in (found.server.scopes_supported or ()) and OFFLINE not in scopes:
        scopes.append(OFFLINE)
    return " ".join(scopes)


def _code_in(name: str, came: str, state: str, at: AuthorizationServer) -> str:
    """The code in the address that the browser came back to. Raises `OAuthFailed`."""
    given = {key: each[0] for key, each in parse_qs(urlsplit(came).query).items()}
    if not secrets.compare_digest(given.get("state", ""), state):
        raise OAuthFailed(name, "the browser came back from another sign-in; try again")
    issuer = given.get("iss")
    if issuer is None and at.authorization_response_iss_parameter_supported:
        raise OAuthFailed(name, f"the answer of {at.issuer} does not say who gave it")
    if issuer is not None and issuer != at.issuer:
        raise OAuthFailed(name, f"the answer is from {one_line(issuer)!r}, and not {at.issuer!r}")
    if "error" in given:
        said = one_line(f"{given['error']} {given.get('error_description', '')}".strip(), 300)
        raise OAuthRefused(name, given["error"], f"the sign-in was refused: {said}")
    if not given.get("code"):
        raise OAuthFailed(name, "the browser came back without a code; try again")
    return given["code"]


def _s256(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _is_token(text: str) -> bool:
    """Whether it can go into a header."""
    return bool(text) and text.isascii() and text.isprintable()


def _host(address: str) -> str:
    return urlsplit(address).netloc or "the authorization server"
