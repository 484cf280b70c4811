"""The transport to a server behind an address: streamable HTTP, in both eras.

Each message is a POST of its own; its answer is JSON, or a stream of events that ends with it. In
the stateless era, closing that stream stops the request. In the older era a server may have
sessions, which DELETE ends; may resume a broken stream, which GET asks for, so that no request is
repeated; and may send messages of its own on a separate stream.

Redirects are not followed: they would take the headers, and keys in them, elsewhere.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from ssl import SSLError
from typing import Final, TypedDict

import aiohttp
import anyio
from anyio.abc import TaskGroup

from bargein.calls.text import one_line
from bargein.mcp.eras import Era
from bargein.mcp.errors import McpError, NotSent, Rejected, ServerDown, SignInNeeded
from bargein.mcp.flood import FloodGuard
from bargein.mcp.header_values import encoded
from bargein.mcp.oauth.authorizer import Authorizer
from bargein.mcp.transport import MESSAGE_BYTES_MAX, Receiver
from bargein.mcp.wire import BadMessage, Outgoing, decode
from bargein.net.resolver import ThreadResolver
from bargein.net.sse import EventParser, EventTooLong
from bargein.process import StopReport

CLOSE_S: Final = 1.0
SIGN_INS_MAX: Final = 3
"""How often one request may be sent again after the server asked for a sign-in."""
CONNECT_S: Final = 10.0
ERROR_BODY_BYTES_MAX: Final = 64 << 10
NOT_MCP: Final = (404, 405, 410, 501)
"""What servers say of an address that is not one of MCP."""
RESUMES_MAX: Final = 5
RESUME_S_MAX: Final = 30.0
RESUME_S: Final = 1.0

_BROKEN: Final = (aiohttp.ClientError, OSError, EventTooLong)
_SESSION: Final = "Mcp-Session-Id"


class HttpTransport:
    has_streams = True

    def __init__(
        self,
        name: str,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        receiver: Receiver,
        *,
        proxy: str | None = None,
        authorizer: Authorizer | None = None,
        key: str = "the headers that it is given",
    ) -> None:
        self._authorizer = authorizer
        self._key = key
        self._name = name
        self._url = url
        self._own_headers = headers
        self._receiver = receiver
        self._proxy = proxy
        self._era: Era | None = None
        self._session_id = ""
        self._client: aiohttp.ClientSession | None = None
        self._handed_over: deque[Outgoing | None] = deque()
        """Messages, and None for the stream of what the server says unasked."""
        self._wake = anyio.Event()
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._why_lost = ""

    async def run(self, opened: Callable[[], None]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._client = self._make_client()
                opened()
                await self._start_what_is_handed_over(tasks)
                tasks.cancel_scope.cancel()
            raise ServerDown(self._name, self._why_lost)
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._end_session()
            if self._client is not None:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await self._client.close()

    async def _start_what_is_handed_over(self, tasks: TaskGroup) -> None:
        """Starts the tasks of messages in the owner's task. A task that a caller started would
        belong to the caller's context, and would be stopped with its call."""
        while not self._why_lost:
            while self._handed_over:
                job = self._handed_over.popleft()
                tasks.start_soon(self._hear_unasked if job is None else partial(self._post, job))
            self._wake = anyio.Event()
            await self._wake.wait()

    def _hand_over(self, job: Outgoing | None) -> None:
        self._handed_over.append(job)
        self._wake.set()

    def _make_client(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(resolver=ThreadResolver(), use_dns_cache=False, limit=0)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )

    async def _end_session(self) -> None:
        if self._session_id and self._client is not None:
            try:
                headers = await self._headers()
                async with self._client.delete(self._url, **self._options(headers)):
                    pass
            except (*_BROKEN, McpError):
                pass  # it ends by itself when the server forgets it

    def speak(self, era: Era | None) -> None:
        self._era = era

    def listen(self) -> None:
        if self._era is not None and not self._era.stateless:
            self._hand_over(None)

    def send(self, message: Outgoing, *, first: bool = False) -> None:
        if self._client is None or self._why_lost:
            raise ServerDown(self._name, self._why_lost or "there is no connection")
        self._hand_over(message)

    def withdraw(self, request_id: int) -> bool:
        for message in self._handed_over:
            if message is not None and message.id == request_id:
                self._handed_over.remove(message)
                return True
        return False

    def is_unwritten(self, message: Outgoing) -> bool:
        return False

    async def deliver(self, message: Outgoing) -> bool:
        try:
            async with await self._request(message) as response:
                return response.status < 300
        except (*_BROKEN, McpError):
            return False

    def close_stream(self, request_id: int) -> None:
        scope = self._scopes.get(request_id)
        if scope is not None:
            scope.cancel()

    def kill(self) -> None:
        """Its processes are not ours."""

    @property
    def last_words(self) -> str:
        return ""

    @property
    def processes(self) -> tuple[str, ...]:
        return ()

    @property
    def stop_report(self) -> StopReport | None:
        return None

    # One message

    async def _post(self, message: Outgoing) -> None:
        with anyio.CancelScope() as scope:
            if message.id is not None:
                self._scopes[message.id] = scope
            problem: McpError | None = None
            try:
                problem = await self._exchange(message)
            except _BROKEN as error:
                unsent = isinstance(error, aiohttp.ClientConnectorError)
                problem = (NotSent if unsent else ServerDown)(self._name, _why(error))
            except McpError as error:
                # Of a sign-in: the request was not sent, or was refused.
                problem = NotSent(self._name, error.words)
            finally:
                if message.id is not None:
                    self._scopes.pop(message.id, None)
            if problem is not None and message.id is not None:
                self._receiver.request_failed(message.id, problem)

    async def _exchange(self, message: Outgoing) -> McpError | None:
        left = SIGN_INS_MAX
        while True:
            response = await self._request(message)
            try:
                if left and await self._is_signed_in_anew(response):
                    # It was refused before it was run.
                    left -= 1
                    continue
                return await self._take_answer(message, response)
            finally:
                # A connection whose answer was not read to its end is closed: the server sees it.
                response.release() if response.content.at_eof() else response.close()

    async def _is_signed_in_anew(self, response: aiohttp.ClientResponse) -> bool:
        if self._authorizer is None or response.status not in (401, 403):
            return False
        challenge = response.headers.get("WWW-Authenticate", "")
        return await self._authorizer.challenged(self._http, response.status, challenge)

    async def _take_answer(
        self, message: Outgoing, response: aiohttp.ClientResponse
    ) -> McpError | None:
        if message.method == "initialize":
            self._session_id = response.headers.get(_SESSION, "")
        if response.status != 200:
            if message.id is None or response.status in (202, 204):
                return None
            return await self._refused(message, response)
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            parser = EventParser(MESSAGE_BYTES_MAX)
            await self._take_events(response, parser, message.id)
            return await self._resume(message, parser)
        body = await _read_bounded(response, MESSAGE_BYTES_MAX)
        if body is None:
            self._receiver.too_long(b"", MESSAGE_BYTES_MAX, message.id)
        elif message.id is not None:
            self._receiver.received(body, message.id)
            if self._receiver.is_open(message.id):
                said = f"it answered with {kind or 'nothing'}, and not with a message"
                return Rejected(self._name, response.status, said)
        return None

    async def _take_events(
        self, response: aiohttp.ClientResponse, parser: EventParser, via: int | None
    ) -> None:
        guard = FloodGuard()
        while True:
            chunk = await response.content.readany()
            guard.begin()
            for data in parser.feed(chunk or b"\n\n"):
                await guard.count(self._receiver.received(data, via))
            if not chunk or (via is not None and not self._receiver.is_open(via)):
                return
            await guard.pause()

    async def _resume(self, message: Outgoing, parser: EventParser) -> McpError | None:
        """Ask for the rest of a stream that ended before the answer, where servers keep it. The
        request itself is never sent again."""
        for _ in range(RESUMES_MAX):
            if message.id is None or not self._receiver.is_open(message.id):
                return None
            if not parser.last_id or self._era is None or self._era.stateless:
                break
            await anyio.sleep(_pause_s(parser))
            before = parser.last_id
            headers = {**await self._headers(), "Last-Event-ID": parser.last_id}
            headers["Accept"] = "text/event-stream"
            try:
                async with self._http.get(self._url, **self._options(headers)) as response:
                    if response.status != 200:
                        break
                    await self._take_events(response, parser, message.id)
            except _BROKEN:
                continue
            if parser.last_id == before and self._receiver.is_open(message.id):
                continue
        if message.id is None or not self._receiver.is_open(message.id):
            return None
        return ServerDown(self._name, "the stream ended before the answer")

    async def _refused(
        self, message: Outgoing, response: aiohttp.ClientResponse
    ) -> McpError | None:
        status = response.status
        body = await _read_bounded(response, ERROR_BODY_BYTES_MAX) or b""
        if status in (401, 403):
            challenge = response.headers.get("WWW-Authenticate", "")
            return SignInNeeded(self._name, self._how_to_sign_in(status), challenge)
        if _is_error_answer(body) and message.id is not None:
            self._receiver.received(body, message.id)
            return None
        if status == 404 and self._session_id and message.method != "initialize":
            self._session_id = ""
            if message.id is not None:
                said = "it has ended our session, and did not run this; try it again"
                self._receiver.request_failed(message.id, Rejected(self._name, status, said))
            self._why_lost = "it has ended our session"
            self._wake.set()
            self._receiver.lose(self._why_lost)
            return None
        if 300 <= status < 400:
            to = one_line(response.headers.get("Location", "elsewhere"), 200)
            return NotSent(self._name, f"it redirects to {to}; give that address")
        return Rejected(self._name, status, _refusal(status, response.reason or "", body))

    def _how_to_sign_in(self, status: int) -> str:
        if self._authorizer is None:
            return f"it refuses (HTTP {status}) {self._key}"
        return self._authorizer.how_to_sign_in(status)

    # What the server says unasked

    async def _hear_unasked(self) -> None:
        parser = EventParser(MESSAGE_BYTES_MAX)
        failures = 0
        while failures < RESUMES_MAX:
            headers = {**await self._headers(), "Accept": "text/event-stream"}
            if parser.last_id:
                headers["Last-Event-ID"] = parser.last_id
            try:
                async with self._http.get(self._url, **self._options(headers)) as response:
                    if response.status != 200:
                        return
                    failures = 0
                    await self._take_events(response, parser, None)
            except EventTooLong:
                self._receiver.too_long(b"", MESSAGE_BYTES_MAX, None)
                parser = EventParser(MESSAGE_BYTES_MAX)
            except _BROKEN:
                pass
            except McpError:
                # The user's tokens failed; the next call gets the error.
                return
            failures += 1
            await anyio.sleep(_pause_s(parser) * failures)

    # Requests

    async def _request(self, message: Outgoing) -> aiohttp.ClientResponse:
        headers = {**await self._headers(), **message.headers}
        if self._era is not None and self._era.stateless:
            headers["Mcp-Method"] = message.method
            if message.name:
                headers["Mcp-Name"] = encoded(message.name)
        return await self._http.post(self._url, data=message.body, **self._options(headers))

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._client is None:
            raise ServerDown(self._name, "there is no connection")
        return self._client

    async def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": "bargein",
            **self._own_headers(),
        }
        if self._authorizer is not None:
            headers |= await self._authorizer.headers(self._http)
        if self._era is not None:
            headers["MCP-Protocol-Version"] = self._era.version
        if self._session_id:
            headers[_SESSION] = self._session_id
        return headers

    def _options(self, headers: Mapping[str, str]) -> "_Options":
        return {"headers": headers, "allow_redirects": False, "proxy": self._proxy}


class _Options(TypedDict):
    headers: Mapping[str, str]
    allow_redirects: bool
    proxy: str | None


def _pause_s(parser: EventParser) -> float:
    given_s = RESUME_S if parser.retry_ms is None else parser.retry_ms / 1000
    return min(given_s, RESUME_S_MAX)


async def _read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    body = bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > bytes_max:
            return None
    return bytes(body)


def _refusal(status: int, reason: str, body: bytes) -> str:
    """What a response says that is no message of MCP. A page for a browser says nothing more."""
    check = "; check its url" if status in NOT_MCP else ""
    text = body[:800].decode("utf-8", "replace").strip()
    more = f": {text}" if text and not text.startswith("<") else ""
    return one_line(f"it answers {reason or 'with an error of HTTP'}{check}{more}", 300)


def _is_error_answer(body: bytes) -> bool:
    try:
        return any(each.error is not None for each in decode(body))
    except BadMessage:
        return False


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        # The text of a failed connect repeats the address.
        number = 0 if isinstance(cause, SSLError) else cause.errno or 0
        why = os.strerror(number) if number > 0 else str(cause.strerror or cause)
        return f"it cannot be reached at {error.host}:{error.port}: {one_line(why, 200)}"
    if isinstance(error, EventTooLong):
        return str(error)
    return f"the connection broke: {str(error) or type(error).__name__}"
