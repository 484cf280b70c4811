"""The base of all OpenAI-compatible endpoints: principal, session, sending, and disconnects.

A client that goes away stops its turn, unless the turn runs in the background. A session that
`passes` (no client knows its id) is deleted when the last client that waits in it has its answer
or has gone. Both happen in a shielded scope, for at most `GONE_S`.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from bargein.cancel import Cause
from bargein.contracts.message import Disposition, QuestionPolicy
from bargein.contracts.output import Output
from bargein.server.access import Principal
from bargein.server.edge import Edge, address_of
from bargein.server.gateway import Gateway, Opened
from bargein.server.keys import check_key
from bargein.server.openai.following import Listener, take_back
from bargein.server.openai.history import Conversation
from bargein.server.openai.outlet import GONE, FieldProblem, Outlet
from bargein.server.operation import ApiRequest
from bargein.server.problems import Code, Problem, as_problem
from bargein.server.protocol import abort_of
from bargein.server.sessions import make, unmake
from bargein.server.shapes import CutReason
from bargein.server.streams import DETAILS
from bargein.session.session import Sent, Session

_log = logging.getLogger("bargein.server")

NAME = "bargein"
GONE_S = 30.0
"""How long a stop or deletion may take after the client has gone. The engine's own bound is far
lower."""


class OpenAiRequest(msgspec.Struct, frozen=True):
    """What a client sends, decoded. `output` and `questions` are as in `Message`."""

    conversation: Conversation
    output: Output | None
    questions: QuestionPolicy


class OpenAiEndpoint:
    """An ASGI app for one route. Subclasses implement `answer`. `name` is used in the OpenAPI
    document and the audit log; `changes` puts requests into the audit log."""

    name: str
    changes = True

    def __init__(self, edge: Edge, passing: set[str]) -> None:
        """`passing` is shared by all endpoints: the sessions to delete after their answer."""
        self.edge = edge
        self.passing = passing
        self.gateway: Gateway = edge.gateway
        self._listeners: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request = Request(scope, receive)
        outlet = Outlet(send, self.gateway, abort_of(scope))
        principal: Principal | None = None
        try:
            principal = self.edge.principal(request)
            await self.answer(request, principal, outlet)
        except ClientDisconnect:
            outlet.status = GONE
        except Exception as error:  # boundary: every failure becomes a problem answer
            await outlet.fail(as_problem(error))
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
        """Returns the name to answer with. Raises `Problem` if it is not the agent's."""
        model = self.gateway.settings.model
        if asked not in ("", NAME, model):
            raise Problem(
                Code.NOT_FOUND, f"the model {asked!r} is not served here; ask for {NAME!r}"
            )
        return asked or NAME

    async def make_session(
        self, request: Request, principal: Principal, body: msgspec.Struct, *, passes: bool
    ) -> tuple[Opened, bool]:
        """Makes a session for this request. Returns it and whether it is new: with the same
        Idempotency-Key it is the session made before."""
        self.gateway.refuse_if_draining()
        api_request = ApiRequest(self.gateway, principal, {}, {}, key_of(request))
        session, new = await make(api_request, request.url.path, body, passes=passes)
        return Opened(session, session.id, "own"), new

    async def hand_over(
        self,
        session: Session,
        principal: Principal,
        ask: OpenAiRequest,
        key: str | None,
        outlet: Outlet,
    ) -> Sent:
        """Sends the message, after the history if the session is still empty. It may be empty
        though it was made before, if the first request with this key has not come so far."""
        self._check_questions(principal, session, ask.questions)
        conversation = ask.conversation
        if conversation.history or conversation.instructions:
            actor = await self.gateway.engine.actor(session.id)
            if not actor.appended_seq:
                await session.begin_with(
                    conversation.history, instructions=conversation.instructions, by=principal.name
                )
        self.gateway.refuse_if_draining()
        with self.gateway.turn_allowed(principal, session.id):
            sent = await session.send(
                conversation.said,
                mode="queue",
                sender=principal.name,
                client_id=key,
                output=ask.output,
                questions=ask.questions,
            )
        outlet.turn_begun = True
        outlet.replayed = sent.disposition is Disposition.DUPLICATE
        if ask.questions is QuestionPolicy.ALLOW:
            outlet.detail = "every call that needs approval runs: questions = allow"
        return sent

    def _check_questions(
        self, principal: Principal, session: Session, policy: QuestionPolicy
    ) -> None:
        """Allowing every call of a turn approves it, also where that is the server's setting."""
        root = session.id.partition("/")[0]
        if policy is QuestionPolicy.ALLOW and self.gateway.access.is_guest(principal, root):
            raise FieldProblem(
                Code.FORBIDDEN,
                "metadata.questions",
                f"{principal.name} may read and talk here, and approves nothing; say error, refuse "
                "or wait",
                value=str(policy),
            )

    async def converse(
        self,
        request: Request,
        principal: Principal,
        outlet: Outlet,
        opened: Opened,
        ask: OpenAiRequest,
        give: Callable[[str, int], Awaitable[None]],
        *,
        stops: bool = True,
        passes: bool = False,
    ) -> None:
        """Sends the message and calls `give` with its id and a place in the log before it, as long
        as the client listens and its token is valid. With `stops`, the turn is stopped when the
        last client that waits for the message has gone. With `passes`, the session is deleted
        then."""
        session, key = opened.session, key_of(request)
        listener = Listener(principal, opened.root)
        listeners = self._listeners
        listeners[session.id] += 1
        if passes:
            self.passing.add(session.id)
        try:
            with self.gateway.stream(listener, outlet.tick_for(listener)):
                # With a key, the message may be one that was sent before.
                after = await session.position() if key is None else 0
                sent = await self.hand_over(session, principal, ask, key, outlet)
                waited_for = f"{session.id} {sent.message}"
                listeners[waited_for] += 1
                try:
                    await listener.hear(request.receive, partial(give, sent.message, after))
                finally:
                    if self._is_last(waited_for) and stops and not listener.answered:
                        await self._stop(session, sent.message, principal, outlet)
        finally:
            if self._is_last(session.id) and passes:
                # No client knows its id: it is deleted with its answer.
                with anyio.move_on_after(GONE_S, shield=True):
                    await unmake(self.gateway, session, by=principal.name)
                self.passing.discard(session.id)
        self.end_of(listener, outlet)

    def end_of(self, listener: Listener, outlet: Outlet) -> None:
        """Notes how the wait ended. Raises `Problem` if the client was cut off."""
        if listener.reason is not None:
            raise cut_off(listener.reason)
        if listener.gone and not listener.answered:
            outlet.status = GONE

    def _is_last(self, waited_for: str) -> bool:
        """Counts one waiting client less. Returns whether it was the last."""
        self._listeners[waited_for] -= 1
        if self._listeners[waited_for]:
            return False
        del self._listeners[waited_for]
        return True

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
    codes = {
        "revoked": Code.UNAUTHENTICATED,
        "session_gone": Code.NOT_FOUND,
        "too_slow": Code.TOO_SLOW,
        "unreadable": Code.UNREADABLE,
        "unavailable": Code.UNAVAILABLE,
    }
    return Problem(codes.get(reason, Code.SHUTTING_DOWN), DETAILS[reason])
