"""What both of OpenAI's ways to ask share: who asks, in which session, and how it is told.

Answers go out as OpenAI's clients expect them, errors too. An error after a turn has begun says
that it is not to be tried again by the client on its own: the agent would do everything twice.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from bargein.cancel import Cause
from bargein.server.access import Principal
from bargein.server.edge import Edge, address_of, told
from bargein.server.gateway import Gateway, Opened
from bargein.server.keys import check_key
from bargein.server.openai.following import Listener, take_back
from bargein.server.openai.history import Conversation
from bargein.server.operation import Call
from bargein.server.problems import Code, Problem
from bargein.server.sessions import make
from bargein.server.shapes import CutReason
from bargein.server.streams import DETAILS
from bargein.session.session import Sent, Session

_log = logging.getLogger("bargein.server")

NAME = "bargein"
GONE = 499
GONE_S = 30.0
"""How long a stop may take that nobody waits for; the engine's own bound is far below."""
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
        self.ended = False
        self.turn_begun = False
        self.status = GONE
        self.detail = ""
        self.session = ""

    async def json(self, body: object, status: int = 200, **headers: str) -> None:
        await self._start(status, {"content-type": "application/json", **headers})
        await self._body(_encoder.encode(body), more=False)

    async def event(self, body: object, name: str = "") -> None:
        if not self.begun:
            await self._start(200, SSE_HEADERS)
        content = body if isinstance(body, bytes) else _encoder.encode(body)
        head = f"event: {name}\n".encode() if name else b""
        await self._body(head + b"data: " + content + b"\n\n", more=True)

    async def end(self) -> None:
        await self._body(b"", more=False)

    async def fail(self, problem: Problem) -> None:
        self.status, self.detail = problem.status, problem.detail
        if self.ended:
            _log.warning("after an answer was out: %s", problem.detail)
            return
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
        self.begun, self.status = True, status
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, content: bytes, *, more: bool) -> None:
        self.ended = not more
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


class Endpoint:
    """An ASGI app for one route. `answer` is the subclass's own; `name` is what the document and
    the audit log call it."""

    name: str
    changes = True

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.gateway: Gateway = edge.gateway
        self._listeners: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request, outlet = Request(scope, receive), Outlet(send)
        principal: Principal | None = None
        try:
            principal = self.edge.principal(request)
            await self.answer(request, principal, outlet)
        except ClientDisconnect:
            outlet.status = GONE
        except Exception as error:  # boundary: whatever happened, the one who asked is told
            await outlet.fail(told(error))
        finally:
            self._note(request, principal, outlet, time.perf_counter() - began)

    def _note(
        self, request: Request, principal: Principal | None, outlet: Outlet, elapsed_s: float
    ) -> None:
        who = principal.name if principal is not None else ""
        ids = {"principal": who, "session": outlet.session, "status": outlet.status}
        _log.info("%s", self.name, extra={**ids, "elapsed_ms": round(elapsed_s * 1e3, 3)})
        if principal is not None and self.changes:
            self.gateway.audit.note(
                principal,
                address=address_of(request),
                action=self.name,
                session=outlet.session,
                target="",
                status=outlet.status,
                detail=outlet.detail,
            )

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
    ) -> tuple[Opened, bool]:
        """A session of its own for this request, and whether it is new: with the same
        Idempotency-Key it is the one that was made before."""
        self.gateway.refuse_if_draining()
        call = Call(self.gateway, principal, {}, {}, key_of(request))
        session, new = await make(call, request.url.path, body)
        return Opened(session, session.id, "own"), new

    async def hand_over(
        self, session: Session, principal: Principal, conversation: Conversation, key: str | None
    ) -> Sent:
        """The history too, if the session has none: also when the first who came with this key
        did not get so far, or has not yet."""
        if conversation.history or conversation.instructions:
            actor = await self.gateway.engine.actor(session.id)
            if not actor.appended_seq:
                await session.begin_with(
                    conversation.history, instructions=conversation.instructions, by=principal.name
                )
        self.gateway.refuse_if_draining()
        with self.gateway.turn_allowed(principal, session.id):
            return await session.send(
                conversation.said, mode="queue", sender=principal.name, client_id=key
            )

    async def converse(
        self,
        request: Request,
        principal: Principal,
        outlet: Outlet,
        opened: Opened,
        conversation: Conversation,
        give: Callable[[str, int], Awaitable[None]],
        *,
        stops: bool = True,
    ) -> None:
        """Hand it over and `give` the answer (to that message, from that place in the log), while
        the client listens and may. If it `stops`, nothing goes on when the last that waits for
        this message has gone."""
        session, key = opened.session, key_of(request)
        listener = Listener(principal, opened.root)
        with self.gateway.stream(listener):
            # With a key the message may be one that came before.
            after = await session.position() if key is None else 0
            sent = await self.hand_over(session, principal, conversation, key)
            outlet.turn_begun = True
            waited_for = (session.id, sent.message)
            self._listeners[waited_for] += 1
            try:
                await listener.hear(request.receive, partial(give, sent.message, after))
            finally:
                self._listeners[waited_for] -= 1
                if not self._listeners[waited_for]:
                    del self._listeners[waited_for]
                    if stops and not listener.answered:
                        await self._stop(session, sent.message, principal, outlet)
        if listener.reason is not None:
            raise cut_off(listener.reason)
        if listener.gone and not listener.answered:
            outlet.status = GONE

    async def _stop(
        self, session: Session, message: str, principal: Principal, outlet: Outlet
    ) -> None:
        cause = Cause.SHUTDOWN if self.gateway.draining.is_set() else Cause.CLIENT_GONE
        with anyio.move_on_after(GONE_S, shield=True):
            outlet.turn_begun = not await take_back(session, message, principal.name, cause)


def key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    return check_key(key) if key is not None else None


def cut_off(reason: CutReason) -> Problem:
    codes = {"revoked": Code.UNAUTHENTICATED, "session_gone": Code.NOT_FOUND}
    return Problem(codes.get(reason, Code.SHUTTING_DOWN), DETAILS[reason])
