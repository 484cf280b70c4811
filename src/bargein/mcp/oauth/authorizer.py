"""Decides which token the HTTP transport sends to a server, and what happens if it is refused.

A token that is about to expire is refreshed before it is used. After a refusal the authorizer reads
the user's file again, because another process may have signed in; then it refreshes the token; then
it asks the user to sign in, if it has a `visit` for that. Without one its error says how to sign
in. One task at a time.
"""

import logging
from typing import Final

import aiohttp
import anyio
import msgspec

from bargein.calls.text import one_line
from bargein.errors import BargeinError, UserError
from bargein.mcp.oauth.discovery import Challenge, OAuthFailed, read_challenge
from bargein.mcp.oauth.flow import OAuthFlow, OAuthRefused, Visit
from bargein.mcp.oauth.kept import KeptToken, TokenKeeper
from bargein.mcp.server import McpServer

WANTED_CHARS_MAX: Final = 300
SCOPES_CHARS_MAX: Final = 4000
"""A server that demands other rights at each call must not fill the user's file."""

_log = logging.getLogger("bargein.mcp")


class Authorizer:
    """`redirect` is the address to which `visit` comes back."""

    def __init__(
        self,
        server: McpServer,
        tokens: TokenKeeper,
        *,
        secret: str = "",
        proxy: str | None = None,
        redirect: str = "",
        visit: Visit | None = None,
    ) -> None:
        self._server = server
        self._tokens = tokens
        self._secret = secret
        self._proxy = proxy
        self._redirect = redirect
        self._visit = visit
        self._lock = anyio.Lock()
        self._sent = ""
        """The token that was sent last."""
        self._wanted = ""

    @property
    def _kept(self) -> KeptToken | None:
        try:
            return self._tokens.get(self._server.url)
        except UserError as error:
            raise OAuthFailed(self._server.name, str(error)) from error

    async def headers(self, http: aiohttp.ClientSession) -> dict[str, str]:
        """The header with the token; none if there is no token. Raises `OAuthFailed`."""
        async with self._lock:
            kept = self._kept
            if kept is not None and kept.ends_soon and kept.refresh:
                kept = await self._refreshed(http, kept) or kept
            self._sent = kept.access if kept is not None and kept.usable else ""
            return {"Authorization": f"Bearer {self._sent}"} if self._sent else {}

    async def challenged(self, http: aiohttp.ClientSession, status: int, header: str) -> bool:
        """The server refused a request. Returns whether it should be sent again, with another
        token. Raises `OAuthFailed`."""
        challenge = read_challenge(header)
        if status == 403 and not challenge.wants_more:
            return False
        async with self._lock:
            kept = self._kept
            if kept is not None and kept.usable and kept.access != self._sent:
                return True
            if challenge.wants_more:
                kept = self._remember(kept, challenge)
            elif kept is not None and kept.refresh and await self._refreshed(http, kept):
                return True
            if self._visit is None:
                return False
            await self._sign_in(http, challenge, self._visit)
            return True

    async def sign_in(self, http: aiohttp.ClientSession, header: str) -> None:
        """Has the user sign in, whether or not there is a token. Raises `OAuthFailed`."""
        assert self._visit is not None
        async with self._lock:
            await self._sign_in(http, read_challenge(header), self._visit)

    async def sign_out(self, http: aiohttp.ClientSession) -> bool | None:
        """Forgets the token. Returns None if there is none, else whether the authorization server
        was told."""
        kept = self._tokens.remove(self._server.url)
        return None if kept is None else await self._flow(http).revoke(kept)

    def how_to_sign_in(self, status: int) -> str:
        name = self._server.name
        if self._wanted:
            return (
                f"the sign-in does not allow this, it wants more ({self._wanted}); run  "
                f"bargein mcp login {name}"
            )
        if status == 403:
            return "it forbids this (HTTP 403)"
        return (
            f"it wants you to sign in; run  bargein mcp login {name}  (or set "
            "bearer_token_env_var, if you have a token)"
        )

    def _flow(self, http: aiohttp.ClientSession) -> OAuthFlow:
        return OAuthFlow(http, self._server, secret=self._secret, proxy=self._proxy)

    async def _sign_in(
        self, http: aiohttp.ClientSession, challenge: Challenge, visit: Visit
    ) -> None:
        flow = self._flow(http)
        self._keep(await flow.sign_in(challenge, self._kept, self._redirect, visit))
        self._wanted = ""

    async def _refreshed(self, http: aiohttp.ClientSession, kept: KeptToken) -> KeptToken | None:
        """The token anew; None if the user must sign in."""
        try:
            fresh = await self._flow(http).refresh(kept)
        except OAuthRefused as error:
            # Another process may have used the refresh token just before.
            now = self._kept
            if now is not None and now.refresh != kept.refresh and now.usable:
                return now
            _log.info("its token cannot be refreshed: %s", error)
            if error.code == "invalid_grant":
                self._keep(msgspec.structs.replace(kept, access="", refresh=""))
            return None
        except OAuthFailed as error:
            _log.warning("its token could not be refreshed: %s", error)
            return None
        self._keep(fresh)
        return fresh

    def _remember(self, kept: KeptToken | None, challenge: Challenge) -> KeptToken:
        """Keeps what the server demands, so that the next sign-in asks for it too."""
        self._wanted = one_line(challenge.scope, WANTED_CHARS_MAX) or "other rights"
        before = kept or KeptToken()
        scopes = list(dict.fromkeys([*before.scope.split(), *challenge.scope.split()]))
        while sum(map(len, scopes)) > SCOPES_CHARS_MAX:
            del scopes[0]
        more = msgspec.structs.replace(before, scope=" ".join(scopes))
        self._keep(more)
        return more

    def _keep(self, token: KeptToken) -> None:
        try:
            self._tokens.put(self._server.url, token)
        except BargeinError as error:
            raise OAuthFailed(self._server.name, str(error)) from error
