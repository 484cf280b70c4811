"""Sends the answer of one OpenAI-compatible request: JSON, a stream, or an error.

A stream asks proxies not to buffer it. While the agent says nothing, a comment is sent every
`ping_s`, so that no proxy takes the stream for dead; readers of server-sent events skip comments. A
client that takes nothing for `send_s` is cut off.

An error has OpenAI's form. After the turn has begun, it tells the client not to retry by itself,
because the agent would do everything twice.
"""

import logging
import time
from collections.abc import Callable, Mapping

import anyio
import msgspec
from starlette.types import Send

from bargein.server.gateway import Gateway, Reader
from bargein.server.openai.shapes import ErrorBody, ErrorDetail
from bargein.server.problems import Code, Problem
from bargein.server.streams import HEADERS, LAST_WORDS_S, PING
from bargein.server.validation_errors import VALUE_CHARACTERS_MAX

_log = logging.getLogger("bargein.server")
_encoder = msgspec.json.Encoder()

GONE = 499

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "unprocessable_entity_error",
    429: "rate_limit_error",
}


class FieldProblem(Problem):
    """A problem with one field of the request: `param` is its name, `value` its value."""

    def __init__(self, code: Code, param: str, detail: str, *, value: object = None) -> None:
        shown = "" if value is None else f" is {repr(value)[:VALUE_CHARACTERS_MAX]}"
        super().__init__(code, f"{param}{shown}: {detail}")
        self.param = param


class Outlet:
    """`turn_begun`: a turn works for this request. `replayed`: its Idempotency-Key was used
    before."""

    def __init__(self, send: Send, gateway: Gateway, abort: Callable[[], None]) -> None:
        self._send = send
        self._gateway = gateway
        self._abort = abort
        self._streams = False
        self._named = False
        self._sending = False
        self._sent_at = 0.0
        self.begun = False
        self.ended = False
        self.turn_begun = False
        self.replayed = False
        self.status = GONE
        self.detail = ""
        self.session = ""

    async def json(self, body: object, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else _encoder.encode(body)
        kind = {"content-type": "application/json", "content-length": str(len(content))}
        await self._start(status, {**kind, **headers})
        await self._body(content, more=False)

    async def event(self, body: object, name: str = "") -> None:
        if not self.begun:
            self._streams = True
            await self._start(200, {name.decode(): value.decode() for name, value in HEADERS})
        self._named = self._named or bool(name)
        content = body if isinstance(body, bytes) else _encoder.encode(body)
        head = f"event: {name}\n".encode() if name else b""
        await self._body(head + b"data: " + content + b"\n\n", more=True)

    async def end(self) -> None:
        await self._body(b"", more=False)

    def tick_for(self, reader: Reader) -> Callable[[float], None]:
        """Returns the function that the gateway calls regularly while the stream is open. It sends
        pings, and cuts off a reader that takes nothing."""
        limits = self._gateway.limits

        def tick(now: float) -> None:
            if not self._streams or self.ended:
                return
            quiet_s = now - self._sent_at
            if self._sending and quiet_s > limits.send_s:
                reader.cut("too_slow")
            elif not self._sending and quiet_s > limits.ping_s:
                self._gateway.go_on(self._ping())

        return tick

    async def _ping(self) -> None:
        if not self.ended:
            await self._body(PING, more=True)

    async def fail(self, problem: Problem) -> None:
        self.status, self.detail = problem.status, problem.detail
        if self.ended:
            _log.warning("a request failed after its answer was sent: %s", problem.detail)
            return
        kind = _KINDS.get(problem.status, "server_error")
        param = problem.param if isinstance(problem, FieldProblem) else None
        error = ErrorDetail(problem.detail, kind, str(problem.code), param)
        if self.begun:
            await self._fail_stream(error)
            return
        headers = dict(problem.headers)
        if self.turn_begun:
            headers["x-should-retry"] = "false"
        await self.json(ErrorBody(error), problem.status, **headers)

    async def _fail_stream(self, error: ErrorDetail) -> None:
        """Ends the stream with the error. Clients of the Responses API read `type`, others
        `error`."""
        named: dict[str, object] = {"error": error}
        if self._named:
            named |= {**msgspec.structs.asdict(error), "type": "error"}
        with anyio.move_on_after(LAST_WORDS_S, shield=True) as patience:
            await self.event(named, name="error" if self._named else "")
            await self.end()
        if patience.cancelled_caught:
            self._abort()

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.begun, self.status = True, status
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        if self.replayed:
            encoded.append((b"idempotency-replayed", b"true"))
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, content: bytes, *, more: bool) -> None:
        self.ended = self.ended or not more
        self._sending, self._sent_at = True, time.monotonic()
        await self._send({"type": "http.response.body", "body": content, "more_body": more})
        self._sending, self._sent_at = False, time.monotonic()
