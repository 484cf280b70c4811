"""What both of OpenAI's ways to ask share: who asks, in which session, and how it is told.

Answers go out as OpenAI's clients expect them, errors too. An error after a turn has begun says
that it is not to be tried again by the client on its own: the agent would do everything twice.
"""

import secrets
import sqlite3
import time
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from bargein.server.access import Principal
from bargein.server.edge import Edge, told
from bargein.server.gateway import Gateway
from bargein.server.keys import check_key, remember
from bargein.server.openai.history import Conversation
from bargein.server.operation import Call
from bargein.server.problems import Code, Problem
from bargein.session.session import Sent, Session

NAME = "bargein"
ID_BYTES = 16
SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}

_encoder = msgspec.json.Encoder()

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Outlet:
    """Where the answer of one request goes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.turn_begun = False

    async def json(self, body: object, status: int = 200, **headers: str) -> None:
        await self._start(status, {"content-type": "application/json", **headers})
        await self._send({"type": "http.response.body", "body": _encoder.encode(body)})

    async def event(self, body: object, name: str = "") -> None:
        if not self.begun:
            await self._start(200, SSE_HEADERS)
        content = body if isinstance(body, bytes) else _encoder.encode(body)
        head = f"event: {name}\n".encode() if name else b""
        await self._body(head + b"data: " + content + b"\n\n", more=True)

    async def end(self) -> None:
        await self._body(b"", more=False)

    async def fail(self, problem: Problem) -> None:
        error = {
            "message": problem.detail,
            "type": _KINDS.get(problem.status, "server_error"),
            "code": str(problem.code),
            "param": None,
        }
        if self.begun:
            await self.event({"error": error})
            await self.end()
            return
        headers = dict(problem.headers)
        if self.turn_begun:
            headers["x-should-retry"] = "false"
        await self.json({"error": error}, problem.status, **headers)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun = True
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, content: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


class Endpoint:
    """An ASGI app for one route. `answer` is the subclass's own."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.gateway: Gateway = edge.gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, outlet = Request(scope, receive), Outlet(send)
        try:
            principal = self.edge.principal(request)
            await self.answer(request, principal, outlet)
        except Exception as error:  # boundary: whatever happened, the one who asked is told
            await outlet.fail(told(error))

    async def answer(self, request: Request, principal: Principal, outlet: Outlet) -> None:
        raise NotImplementedError

    def check_model(self, asked: str) -> str:
        """The name to answer with. The agent has one model, whatever it is called."""
        model = self.gateway.settings.model
        if asked not in ("", NAME, model):
            raise Problem(
                Code.NOT_FOUND, f"the model {asked!r} is not served here; ask for {NAME!r}"
            )
        return asked or NAME

    async def make_session(
        self, request: Request, principal: Principal, body: msgspec.Struct
    ) -> tuple[Session, bool]:
        """A session of its own for this request, and whether it is new: with the same
        Idempotency-Key it is the one that was made before."""
        if principal.read_only or principal.sessions is not None:
            raise Problem(Code.FORBIDDEN, "this token may not make sessions; use one that may")
        key = request.headers.get("idempotency-key")
        call = Call(self.gateway, principal, {}, {}, check_key(key) if key is not None else None)
        session_id, now = secrets.token_urlsafe(ID_BYTES), time.time()

        def own(connection: sqlite3.Connection) -> str:
            known = remember(connection, call, request.url.path, body, session_id, now)
            if known == session_id:
                row = (session_id, principal.name, now)
                connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", row)
            return known

        made = await self.gateway.book.run(own)
        if made == session_id:
            self.gateway.access.own(made, principal.name, now)
        return await self.gateway.engine.session(made), made == session_id

    async def drop_session(self, session: Session) -> None:
        """Nobody has a name for it: it goes with its answer."""

        def disown(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM sessions WHERE id = ?", (session.id,))

        await session.end()
        await self.gateway.engine.store.delete(session.id)
        await self.gateway.book.run(disown)
        self.gateway.access.disown(session.id)

    async def hand_over(
        self,
        session: Session,
        principal: Principal,
        conversation: Conversation,
        *,
        new: bool,
        key: str | None,
    ) -> Sent:
        if new and (conversation.history or conversation.instructions):
            await session.begin_with(
                conversation.history, instructions=conversation.instructions, by=principal.name
            )
        with self.gateway.turn_allowed(principal, session.id):
            return await session.send(
                conversation.said, mode="queue", sender=principal.name, client_id=key
            )
