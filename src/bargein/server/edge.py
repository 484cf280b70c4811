"""Where a request meets the gateway: who it is from, how large, how often, and what it is told.

Every answer leaves through here: JSON for what was done, problem JSON for what was not. What is
logged has ids and never a body, a token or a header.
"""

import logging
import time
from collections.abc import Mapping

import anyio
import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from starlette.websockets import WebSocket

from bargein.server.access import OWNER, Principal
from bargein.server.connections import connection_of
from bargein.server.gateway import LARGE_BYTES, Gateway
from bargein.server.holding import Hold
from bargein.server.keys import REPLAYED, Kept, check_key, fingerprint
from bargein.server.operation import ApiRequest, Body, Operation, Reply
from bargein.server.passage import hold_body, speaks_for
from bargein.server.problems import MEDIA_TYPE, Code, Problem, told
from bargein.server.protocol import is_whole

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

PATH_CHARACTERS_MAX = 200


class Edge:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def principal(self, connection: HTTPConnection) -> Principal:
        """Who it is from, by the Authorization header; by the owner's door none is needed."""
        try:
            shown = _shown(connection)
            own = connection_of(connection.scope)
            if not shown and own is not None and own.by_door:
                principal = OWNER
            else:
                principal = self.gateway.access.authenticate(shown)
            self._admit(connection, principal)
        except Problem as problem:
            self._note_refusal(connection, problem)
            raise
        return principal

    def ticket_holder(self, websocket: WebSocket, ticket: str) -> Principal:
        """Who was given the ticket that a page offers in the handshake of a socket."""
        try:
            principal = self.gateway.tickets.take(ticket, websocket.path_params["session"])
            self.gateway.check_token(principal)
            self._admit(websocket, principal)
        except Problem as problem:
            self._note_refusal(websocket, problem)
            raise
        return principal

    def _admit(self, connection: HTTPConnection, principal: Principal) -> None:
        """Count the request, its connection and its bytes for the principal, within its limits."""
        self.gateway.admit(principal)
        own = connection_of(connection.scope)
        if own is not None:
            own.belongs_to(principal.name)
        speaks_for(connection.scope, principal.name)

    def _note_refusal(self, connection: HTTPConnection, problem: Problem) -> None:
        path = connection.url.path[:PATH_CHARACTERS_MAX]
        self.gateway.metrics.refused(problem.code)
        self.gateway.audit.refused(
            address_of(connection), f"admission to {path}", problem.status, problem.detail
        )

    async def serve(self, operation: Operation, request: Request) -> Response:
        began = time.perf_counter()
        who, status = "", 500
        try:
            principal = self.principal(request)
            who = principal.name
            body = await self.body(request, who) if operation.body is not None else bytearray()
            api_request = ApiRequest(
                self.gateway,
                principal,
                request.path_params,
                request.query_params if request.scope["query_string"] else {},
                _key(operation, request),
                address_of(request),
            )
            response = _response(await self.perform(operation, api_request, body))
            status = response.status_code
            return response
        except ClientDisconnect:
            status = 499
            return Response(status_code=499)
        except Exception as error:  # boundary: whatever happened, the one who asked is told
            response = problem_response(told(error))
            status = response.status_code
            return response
        finally:
            _log.info(
                "%s",
                operation.name,
                extra={
                    "principal": who,
                    "session": request.path_params.get("session", ""),
                    "turn": request.path_params.get("turn", ""),
                    "status": status,
                    "elapsed_ms": round((time.perf_counter() - began) * 1e3, 3),
                },
            )

    async def perform(
        self, operation: Operation, api_request: ApiRequest, body: Body
    ) -> Reply | Kept:
        """From HTTP or a WebSocket alike. What changes something goes into the audit log."""
        if operation.method == "GET" or not operation.audited:
            return await self._perform(operation, api_request, body)
        status, detail = 499, ""
        session = api_request.params.get("session", "")
        problem: Problem | None = None
        try:
            reply = await self._perform(operation, api_request, body)
            status, detail = reply.status, reply.note
            session = session or (reply.session if isinstance(reply, Reply) else "")
            return reply
        except Exception as error:
            problem = told(error)
            status, detail = problem.status, problem.detail
            if problem is error:
                raise
            raise problem from error
        finally:
            # An error holds the frames that it came through. One that is held by such a frame is a
            # cycle, with all of the request in it, until Python's collector comes by.
            problem = None
            self.gateway.audit.note(
                api_request.principal,
                address=api_request.address,
                action=operation.name,
                session=session,
                target=" ".join(
                    api_request.params[name] for name in operation.names if name != "session"
                ),
                status=status,
                detail=detail,
            )

    async def _perform(
        self, operation: Operation, api_request: ApiRequest, body: Body
    ) -> Reply | Kept:
        api_request.refuse_unknown(operation.query)
        if not operation.while_draining and operation.name != "send_message":
            self.gateway.refuse_if_draining()

        if not operation.kept or api_request.key is None:
            return await self._run(operation, api_request, body)

        async def run() -> Kept:
            done = await self._run(operation, api_request, body)
            return done if isinstance(done, Kept) else done.kept()

        # A token that may do less than the one of the first request is not given its answer.
        if "session" in operation.names:
            await api_request.open("write")
        params = repr((sorted(api_request.params.items()), api_request.principal.sees_all))
        print_ = fingerprint(operation.name, params, body)
        return await self.gateway.keys.once(
            api_request.principal.name, api_request.key, print_, run
        )

    async def _run(self, operation: Operation, api_request: ApiRequest, body: Body) -> Reply | Kept:
        """Large bodies are processed one at a time: a message is in memory a dozen times while it
        is decoded, committed and encoded for readers."""
        if len(body) <= LARGE_BYTES:
            return await operation.run(api_request, body)
        async with self.gateway.large:
            return await operation.run(api_request, body)

    async def body(self, request: Request, who: str, limit: int | None = None) -> bytearray:
        """All of it, bounded in size and time, and together with all others of this principal. A
        bytearray, so that who has decoded it can free it while the request goes on."""
        limit = limit or self.gateway.limits.body_bytes_max
        length = header_of(request.scope, b"content-length") or ""
        if length.isascii() and length.isdigit() and int(length) > limit:
            raise _too_large(int(length), limit)
        coming = hold_body(request.scope, self.gateway, who)
        if length.isascii() and length.isdigit():
            self.gateway.admit_bytes(who, int(length))
        if is_whole(request.scope):
            body = await _received(request.receive, coming, limit)
        else:
            body = await self._received_in_time(request.receive, coming, limit)
        if not length:
            self.gateway.admit_bytes(who, len(body))
        kind = header_of(request.scope, b"content-type") or ""
        kind = kind.partition(";")[0].strip().lower()
        if body and kind != "application/json":
            # A form or plain text could be sent by any page without asking.
            raise Problem(Code.WRONG_TYPE, f"Content-Type is {kind!r}; send application/json")
        return body

    async def _received_in_time(self, receive: Receive, coming: Hold, limit: int) -> bytearray:
        within_s = self.gateway.limits.body_s
        with anyio.move_on_after(within_s):
            return await _received(receive, coming, limit)
        raise Problem(
            Code.TOO_SLOW,
            f"{coming.size} bytes of the body came within {within_s:g} s; send it faster",
        )


async def _received(receive: Receive, coming: Hold, limit: int) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        coming.add(len(piece))
        if coming.size > limit:
            raise _too_large(coming.size, limit)
        body += piece
        if not message.get("more_body", False):
            return body


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first of this name, in lower case. Starlette's headers do the same; a look into those
    takes ten times as long, and every request is looked at seven times."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return None


def address_of(connection: HTTPConnection) -> str:
    client = connection.scope.get("client")
    return client[0] if client is not None else ""


def _too_large(size: int, limit: int) -> Problem:
    return Problem(Code.TOO_LARGE, f"the body has {size} bytes or more; at most {limit} are taken")


def _key(operation: Operation, request: Request) -> str | None:
    key = header_of(request.scope, b"idempotency-key")
    return check_key(key) if key is not None and operation.takes_key else None


def _shown(connection: HTTPConnection) -> str:
    """The token in the header; never one in a cookie, which a browser would send to every port of
    the machine, or in the address, which proxies log."""
    header = header_of(connection.scope, b"authorization")
    if header is None:
        return ""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise Problem(
            Code.UNAUTHENTICATED, f"Authorization has the scheme {scheme[:20]!r}; use Bearer"
        )
    return token.strip()


def problem_response(problem: Problem) -> Response:
    return Response(
        _encoder.encode(problem.body()),
        problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def json_response(body: msgspec.Struct) -> Response:
    return Response(_encoder.encode(body), media_type="application/json")


def _response(reply: Reply | Kept) -> Response:
    headers: Mapping[str, str] | None
    if isinstance(reply, Reply):
        headers = reply.headers
        content = _encoder.encode(reply.body) if reply.body is not None else b""
    else:
        headers = REPLAYED if reply.replayed else None
        content = reply.body
    kind = "application/json" if content else None
    return Response(content, reply.status, headers=headers, media_type=kind)
