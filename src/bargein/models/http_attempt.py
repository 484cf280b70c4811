"""One request over its own connection, with asyncio and aiohttp.

An attempt has two tokens. The *request's* token belongs to the user: its cancel is never an error.
The *attempt's* token is a child of it and belongs to us: the watchdog cancels it when time runs
out, which is the world's failure. A cancel of either cuts the socket at once, in the canceller's
thread, so the other side sees the end even if this loop is busy. The loop sees it too, and ends
any read. Before there is a connection (lookup, connect), and until the head of the response has
arrived, a scope on the attempt's token ends the wait.

The error that the client then raises (closed connection, end of file, broken payload) does not show
why it happened. Only the tokens do, so `_settle`, called from the one boundary in `read`, asks them
first.

Some answers are jobs of the provider, which do not end with the connection. Whatever ends an
attempt early, `aclose` cancels its job there, with a request of its own, for `CANCEL_JOB_S`.
"""

import logging
from collections.abc import Sequence
from io import BytesIO
from types import SimpleNamespace
from urllib.parse import quote

import aiohttp
import anyio

from bargein.cancel import Cancelled, Registration, Token, bridge
from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models import explain
from bargein.models.costs import input_chars, tokens_of
from bargein.models.dialects.faults import FaultKind, StreamFault
from bargein.models.errors import ModelError
from bargein.models.explain import Stage
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.sockets import Sockets
from bargein.models.watchdog import Watchdog
from bargein.net.resolver import ThreadResolver
from bargein.net.sse import EventParser, EventTooLong

CLOSE_S = 2.0
CANCEL_JOB_S = 3.0
BODY_PIECE_BYTES = 256 * 1024
ERROR_BODY_BYTES_MAX = 64 * 1024

_log = logging.getLogger("bargein.models")
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
_STREAMS = frozenset({"text/event-stream", "text/plain", "application/octet-stream", ""})


class _Stopped(Exception):
    """The attempt's token was cancelled. `_settle` finds out which cancel came first."""


class HttpAttempt:
    """An `Attempt`. Used by one task; the tokens may be cancelled by any thread."""

    def __init__(self, endpoint: HttpEndpoint, request: ModelRequest, token: Token) -> None:
        self._endpoint = endpoint
        self._request = request
        self._request_token = token
        self._source = token.child(f"attempt at {endpoint.name}")
        self._token = self._source.token
        self._watchdog = Watchdog(self._source)
        self._sockets = Sockets()
        self._parser = EventParser()
        self._decoder = endpoint.dialect.decoder()
        self._session: aiohttp.ClientSession | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._registration: Registration | None = None
        self._stage = Stage.CONNECTING
        self._refused = False
        self._finishing = False
        self._ended = False

    @property
    def usage(self) -> Usage:
        """The provider's numbers, or an estimate. Requests that never reached the provider or were
        refused are free; a request stopped while the prompt was read may have been billed."""
        said = self._decoder.usage
        if said is not None and self._ended:
            return said
        if self._stage is Stage.CONNECTING or self._refused:
            return Usage()
        output = tokens_of(self._decoder.output_chars)
        if said is None:
            return Usage(tokens_of(input_chars(self._request)), output, 0, estimated=True)
        counted = max(output, said.output_tokens)
        return Usage(said.input_tokens, counted, said.cached_input_tokens, estimated=True)

    async def read(self) -> Sequence[Part]:
        problem: Exception | None = None
        try:
            if self._stage is not Stage.STREAMING:
                problem = await self._send()
            if problem is None:
                return await self._receive()
        except (aiohttp.ClientError, OSError, StreamFault, EventTooLong, _Stopped) as error:
            problem = error
        except BaseException:
            # The caller's own cancel or timeout, or a bug: clean up, but do not explain it.
            self._abort()
            raise
        # Raised outside the handler and without the client's error, which holds the request's
        # headers: neither the context nor the frame variables of this exception contain the key.
        self._abort()
        outcome = self._settle(problem)
        del problem
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        if not self._ended:
            self._sockets.cut()
        self._close_response()
        self._source.seal()
        self._watchdog.stop()
        if self._registration is not None:
            self._registration.remove()
        self._sockets.release()
        # The response refers to its trace, which refers to this attempt.
        self._response = None
        if self._decoder.job and not (self._ended or self._decoder.finished):
            with anyio.move_on_after(CANCEL_JOB_S, shield=True):
                await self._cancel_job(self._decoder.job)
        session, self._session = self._session, None
        if session is not None:
            # A plain anyio scope: nothing inside checks a token, and after a cancel it needs no
            # timer of the kernel's clock.
            with anyio.move_on_after(CLOSE_S, shield=True):
                await session.close()

    async def _send(self) -> ModelError | None:
        """Sends the request and waits for the head of a response; returns None if that is good."""
        endpoint = self._endpoint
        body = endpoint.dialect.encode(endpoint.model, self._request)
        self._registration = bridge(self._token, self._sockets.cut)
        self._watchdog.watch("connecting", endpoint.timeouts.connect_s)
        with self._token.scope():
            self._session = self._make_session()
            self._response = await self._session.post(
                endpoint.url,
                # A large body is sent in pieces, so that the loop can do other things in between.
                data=BytesIO(body) if len(body) > BODY_PIECE_BYTES else body,
                headers={
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream",
                    "Accept-Encoding": "identity",
                    "User-Agent": "bargein",
                    **endpoint.dialect.headers(endpoint.key),
                },
                allow_redirects=False,
                ssl=endpoint.tls or True,
                proxy=endpoint.proxy,
                trace_request_ctx=self,
            )
        if self._token.cancelled or self._response is None:
            raise _Stopped
        if self._response.status != 200:
            self._refused = True
            status, headers = self._response.status, self._response.headers
            return explain.from_status(endpoint.target, status, headers, await self._rest())
        content_type = self._response.headers.get("Content-Type", "")
        if content_type.partition(";")[0].strip().lower() not in _STREAMS:
            self._refused = True
            return explain.not_a_stream(endpoint.target, content_type, await self._rest())
        self._stage = Stage.STREAMING
        return None

    def _make_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=ThreadResolver(self._endpoint.lookup),
            socket_factory=self._sockets.create,
            use_dns_cache=False,
            force_close=True,
            limit=0,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_NO_TIMEOUT,
            trace_configs=[_TRACE],
        )

    async def _cancel_job(self, job: str) -> None:
        endpoint = self._endpoint
        connector = aiohttp.TCPConnector(resolver=ThreadResolver(endpoint.lookup), force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=_NO_TIMEOUT) as session,
                session.post(
                    f"{endpoint.url}/{quote(job, safe='')}/cancel",
                    headers={
                        "User-Agent": "bargein",
                        **endpoint.dialect.headers(endpoint.key),
                    },
                    allow_redirects=False,
                    ssl=endpoint.tls or True,
                    proxy=endpoint.proxy,
                ) as response,
            ):
                if response.status >= 400:
                    _log.warning(
                        "%s answered %d to the cancel of %s; it may go on there",
                        endpoint.name,
                        response.status,
                        job,
                    )
        except (aiohttp.ClientError, OSError) as error:
            kind = type(error).__name__
            _log.warning("%s of %s could not be cancelled: %s", job, endpoint.name, kind)

    def connected(self) -> None:
        self._stage = Stage.WAITING
        self._sockets.keep_open_only()
        self._watchdog.watch("the first byte of the answer", self._endpoint.timeouts.first_byte_s)

    async def _receive(self) -> Sequence[Part]:
        assert self._response is not None
        content, parser, decoder = self._response.content, self._parser, self._decoder
        out: list[Part] = []
        while True:
            chunk = await content.readany()
            if self._token.cancelled:
                raise _Stopped
            # At the end of the stream, an event that lacks only its blank line counts as complete.
            before = parser.lines
            for data in parser.feed(chunk or b"\n\n"):
                decoder.feed(data, out)
                if decoder.done:
                    return self._end(out)
            if not chunk:
                return self._end(out)
            if decoder.finished or not before:
                self._next_phase()
            elif out:
                self._watchdog.part()
            elif parser.lines != before:
                self._watchdog.line()
            if out:
                return out

    def _next_phase(self) -> None:
        """Applies the limits of the next phase, after the first line or after the stop reason."""
        timeouts = self._endpoint.timeouts
        if self._decoder.finished:
            # Only once: from here on further data does not buy more time.
            if not self._finishing:
                self._finishing = True
                self._watchdog.watch("the end of the answer", timeouts.tail_s)
        elif self._parser.lines:
            self._watchdog.watch(
                "the next piece of the answer",
                timeouts.between_chunks_s,
                parts_limit_s=timeouts.between_parts_s,
            )

    def _end(self, out: list[Part]) -> list[Part]:
        self._decoder.end(out)
        self._ended = True
        return out

    async def _rest(self) -> bytes:
        """Returns the body of a refusal, as far as it arrives; the status alone is enough."""
        assert self._response is not None
        self._watchdog.watch("the text of a refusal", self._endpoint.timeouts.error_body_s)
        body = bytearray()
        try:
            while len(body) < ERROR_BODY_BYTES_MAX:
                chunk = await self._response.content.readany()
                if not chunk:
                    break
                body += chunk
        except (aiohttp.ClientError, OSError):
            # The watchdog or the other side cut it; `_settle` notices a cancel by the user.
            pass
        return bytes(body[:ERROR_BODY_BYTES_MAX])

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()

    def _abort(self) -> None:
        """Closes the connection now, whatever is still in transit."""
        self._sockets.cut()
        self._close_response()

    def _settle(self, problem: Exception) -> Sequence[Part] | Cancelled | ModelError:
        """Finds out why the attempt ended: asks the tokens first and the error last."""
        if self._request_token.cancelled:
            return Cancelled(self._request_token)
        if isinstance(problem, ModelError):
            return problem
        target = self._endpoint.target
        if isinstance(problem, StreamFault) and problem.kind is not FaultKind.BROKEN:
            return explain.from_stream(target, problem)
        if self._decoder.finished:
            # The answer is complete; only the end mark or the usage is missing or broken.
            return self._end([])
        if isinstance(problem, StreamFault | EventTooLong):
            return explain.from_stream(target, problem)
        if self._token.cancelled:
            return explain.timed_out(target, self._watchdog.expired)
        return explain.from_network(target, problem, self._stage)


async def _on_connected(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionCreateEndParams,
) -> None:
    context.trace_request_ctx.connected()


# Shared by all attempts: each instance is a reference cycle that only the collector could free.
_TRACE = aiohttp.TraceConfig()
_TRACE.on_connection_create_end.append(_on_connected)
