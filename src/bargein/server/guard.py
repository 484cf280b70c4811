"""Refuses requests that are meant for another server or come from another site's page.

- Host must be an address, localhost, or a name the operator gave. This stops DNS rebinding: a page
  elsewhere that points its own name here sends that name.
- Origin, if there is one, must be this server's own or one the operator gave, for every method and
  for WebSockets. Without Origin, a browser's `Sec-Fetch-Site` that names another site is enough to
  refuse.

So no page elsewhere can drive this server. Every answer carries a strict content security policy
for the server's own page.
"""

import re
from ipaddress import IPv4Address, IPv6Address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bargein.server.edge import header_of, problem_response
from bargein.server.problems import Code, Problem

ANSWER_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


_ANSWER_HEADERS = [(name.encode(), value.encode()) for name, value in ANSWER_HEADERS.items()]


# Sec-Fetch-Site of a request that another page made; another port counts as "same-site".
ELSEWHERE = ("cross-site", "same-site")

# Matched as a whole, so that nothing can follow an address. A zone (`%`) is never valid here.
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:]+))(?::[0-9]{0,5})?")

# How many valid Host values are remembered.
KNOWN_MAX = 64


class Guard:
    def __init__(
        self, app: ASGIApp, *, names: tuple[str, ...] = (), origins: tuple[str, ...] = ()
    ) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in (*names, "localhost"))
        self._origins = frozenset(origins)
        self._known: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        problem = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_ANSWER_HEADERS]
            await send(message)

        if problem is None:
            await self._app(scope, receive, send_guarded)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        else:
            await problem_response(problem)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Problem | None:
        host = header_of(scope, b"host") or ""
        if host not in self._known and not self._is_ours(host):
            return Problem(
                Code.WRONG_HOST,
                f"this server is not called {host[:100]!r}; use its address, or start it with "
                "--name and the name you use",
            )
        origin = header_of(scope, b"origin")
        if origin is None:
            site = header_of(scope, b"sec-fetch-site")
            if site not in ELSEWHERE or not scope["path"].startswith("/v1/"):
                return None
            # The page could not read the answer, but it could use up connections and streams.
            return Problem(Code.WRONG_ORIGIN, f"a page that is {site} may not call this server")
        if origin in self._origins:
            return None
        scheme, _, rest = origin.partition("://")
        if scheme in ("http", "https") and rest.lower() == host.lower():
            return None
        return Problem(Code.WRONG_ORIGIN, f"a page from {origin[:100]!r} may not call this server")

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        inner, name = found.groups()
        if inner is None and name.lower() in self._names:
            return True
        try:
            IPv4Address(name) if inner is None else IPv6Address(inner)
        except ValueError:
            return False
        if len(self._known) < KNOWN_MAX:
            self._known.add(host)
        return True
