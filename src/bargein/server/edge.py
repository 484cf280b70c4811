"""Takes requests in: checks token, size and rate, performs the operation, and makes the answer.

A success becomes JSON, a failure problem JSON. The log gets ids, and never a body, a token or a
header. A client that disconnects ends the reading of its body and nothing else.
"""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from starlette.websockets import WebSocket

from bargein.contracts.guests import Joined
from bargein.server.access import OWNER, Principal
from bargein.server.connections import connection_of
from bargein.server.gateway import LARGE_BYTES, Gateway
from bargein.server.keys import REPLAYED, Kept, check_key, fingerprint
from bargein.server.limits import Hold
from bargein.server.operation import ApiRequest, Body, Operation, Reply
from bargein.server.problems import MEDIA_TYPE, Code, Problem, as_problem
from bargein.server.protocol import is_whole
from bargein.server.request_context import charge_answer_to, hold_body

if TYPE_CHECKING:
    from bargein.server.anywhere import Anywhere

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

PATH_CHARACTERS_MAX = 200


class Edge:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.anywhere: Anywhere | None = None

    def principal(self, connection: HTTPConnection) -> Principal:
        """Returns the principal of the Authorization header, or raises `Problem`. A connection by
        the owner's door needs no header."""
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

    async def ticket_holder(self, websocket: WebSocket, ticket: str) -> Principal:
        """Returns the principal of the ticket that a page offers when it opens a socket."""
        try:
            principal = await self.gateway.tickets.take(ticket, websocket.path_params["session"])
            self.gateway.check_token(principal)
            self._admit(websocket, principal)
        except Problem as problem:
            self._note_refusal(websocket, problem)
            raise
        return principal

    async def join(self, connection: HTTPConnection) -> Joined:
        """Takes the code of an invitation, in the place of a token."""
        gateway = self.gateway
        try:
            gateway.refuse_if_draining()
            gateway.admit_stranger(address_of(connection))
            if gateway.guests is None:
                raise Problem(Code.NOT_FOUND, "this server does not share sessions with guests")
            return await gateway.guests.join(_shown(connection))
        except Problem as problem:
            self._note_refusal(connection, problem)
            raise

    def _admit(self, connection: HTTPConnection, principal: Principal) -> None:
        """Counts the request, its connection and its bytes for the principal, within its limits."""
        self.gateway.admit(principal)
        own = connection_of(connection.scope)
        if own is not None and own.for_guests and not self._is_guest(principal):
            raise Problem(Code.FORBIDDEN, "only guests of a shared chat come in at this address")
        if own is not None:
            own.belongs_to(principal.name)
        charge_answer_to(connection.scope, principal.name)

    def _is_guest(self, principal: Principal) -> bool:
        guests = self.gateway.guests
        return guests is not None and guests.is_guest(principal)

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
        except Exception as error:  # boundary: every failure becomes a problem answer
            response = problem_response(as_problem(error))
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
        """Performs an operation for HTTP or a WebSocket. Changes go into the audit log."""
        if operation.method == "GET" or not operation.audited:
            return await self._perform(operation, api_request, body)
        status, detail = 499, ""
        session = api_request.params.get("session", "")
        problem: Problem | None = None
        try:
            reply = await self._perform(operation, api_request, body)
            status, detail = reply.status, reply.note
            session = session or reply.session
            return reply
        except Exception as error:
            problem = as_problem(error)
            status, detail = problem.status, problem.detail
            if problem is error:
                raise
            raise problem from error
        finally:
            # An error refers to the frames it passed through. If a frame also refers to the error,
            # they form a cycle that keeps the whole request until the collector runs.
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
        if self.anywhere is not None:
            return await self.anywhere.perform(operation, api_request, body)
        return await self.perform_here(operation, api_request, body)

    async def perform_here(
        self, operation: Operation, api_request: ApiRequest, body: Body
    ) -> Reply | Kept:
        """Performs an operation at this node. Raises `OwnedElsewhere` if another one has the
        session. It does not go into the audit log."""
        api_request.refuse_unknown(operation.query)
        if not operation.while_draining and operation.name != "send_message":
            self.gateway.refuse_if_draining()

        if not operation.kept or api_request.key is None:
            return await self._run(operation, api_request, body)

        async def run() -> Kept:
            done = await self._run(operation, api_request, body)
            return done if isinstance(done, Kept) else done.kept()

        # A token with fewer rights than the first request's must not get its answer.
        if "session" in operation.names:
            await api_request.open(operation.need)
        params = repr((sorted(api_request.params.items()), api_request.principal.sees_all))
        print_ = fingerprint(operation.name, params, body)
        return await self.gateway.keys.once(
            api_request.principal.name, api_request.key, print_, run
        )

    async def _run(self, operation: Operation, api_request: ApiRequest, body: Body) -> Reply | Kept:
        """Runs the operation. Large bodies run one at a time: a message is in memory a dozen times
        while it is decoded, committed and encoded for readers."""
        if len(body) <= LARGE_BYTES:
            return await operation.run(api_request, body)
        async with self.gateway.large:
            return await operation.run(api_request, body)

    async def body(self, request: Request, who: str, limit: int | None = None) -> bytearray:
        """Returns the whole body, bounded in size and time, and by the principal's budget. It is a
        bytearray, so that it can be emptied once decoded, while the request goes on."""
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
            # Any page may send a form or plain text without a preflight request.
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
    """Returns the first header of this name (in lower case), or None. Starlette's headers take ten
    times as long, and each request needs seven look-ups."""
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
    """Returns the token in the header. A token in a cookie or in the address is never used:
    browsers send cookies to every port of a machine, and proxies log addresses."""
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
        headers = reply.headers or (REPLAYED if reply.replayed else None)
        content = reply.body
    kind = "application/json" if content else None
    return Response(content, reply.status, headers=headers, media_type=kind)
