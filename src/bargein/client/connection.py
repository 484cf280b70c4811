"""The one WebSocket between a client and its server, opened again whenever it breaks.

A command stays here until it is answered. When the socket breaks, the client opens another and
sends everything unanswered again, in its order; every watch goes on after the last event that came.
`Resend` says what that means if the server was restarted meanwhile:

- a message has the id that the client gave it, so the server recognises it;
- every other change has a key, under which the server keeps its answer;
- a stop names the start of the server that it was first asked of, and stops nothing in a later one;
- a command that must not happen twice is not asked again, because a crash may have lost its key.

A caller that is cancelled ends only its own waiting. One task, `_run`, owns the socket. Everything
here is for the event loop's thread, except `begin_soon`.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from typing import Any

import aiohttp
import anyio
import msgspec

from bargein.cancel._loops import end_task
from bargein.client.address import Address
from bargein.client.commands import AskedCommand, FirstCommand, Resend
from bargein.client.problems import (
    Disconnected,
    Unanswered,
    Unauthenticated,
    error_of,
    unreachable,
)
from bargein.client.watches import WireWatch
from bargein.client.wire import (
    CutFrame,
    HelloFrame,
    ReplyFrame,
    ShownFrame,
    WatchReply,
    read,
    read_frame,
)
from bargein.errors import BargeinError, UserError, WorldError

PATIENCE_S = 60.0
CONNECT_S = 10.0
ANSWER_S = 30.0
"""How long a server may take from the connection to its first word."""
CLOSE_S = 1.0
HEARTBEAT_S = 15.0
"""After so long without a frame the client pings the server."""
FRAME_BYTES_MAX = 64 * 1024 * 1024
COMMAND_BYTES_MAX = 1_000_000
"""The largest command on the socket. A larger one is sent as a request of its own."""
PENDING_MAX = 1024
BACK_OFF_S = (0.05, 2.0)
LOST = (ConnectionError, aiohttp.ClientError)
"""Errors that a write raises after the connection has broken."""
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""Statuses of a refused handshake after which the client tries again."""


class ServerConnection:
    def __init__(
        self,
        address: Address,
        token: str,
        *,
        patience_s: float = PATIENCE_S,
        on_connected: Callable[[bool], object] | None = None,
        before_connecting: Callable[[], Awaitable[object]] | None = None,
        says_first: Callable[[HelloFrame], Sequence[FirstCommand]] | None = None,
    ) -> None:
        self.hello: HelloFrame | None = None
        self._start: str | None = None
        self._address = address
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        self._on_connected = on_connected or (lambda is_connected: None)
        self._before_connecting = before_connecting
        self._says_first = says_first or (lambda hello: ())
        self._first: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._stack = ExitStack()
        self._http: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: dict[str, AskedCommand] = {}
        self._outgoing: deque[str] = deque()
        self._watches: dict[str, WireWatch] = {}
        self._more = asyncio.Event()
        self._number = 0
        self._closed: BargeinError | None = None
        self._greeted: asyncio.Future[BargeinError | None] = self._loop.create_future()

    @property
    def is_connected(self) -> bool:
        return self.hello is not None

    async def open(self) -> None:
        """Connects; raises at once if the server cannot be reached or refuses."""
        self._http = aiohttp.ClientSession(
            connector=self._address.connector(self._stack),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        self._task = asyncio.create_task(self._run(), name="bargein client")
        try:
            error = await self._greeted
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        if error is not None:
            await self.close()
            raise error

    async def close(self) -> None:
        self._fail_all(Disconnected("the client is closed", retryable=False), for_good=True)
        if self._task is not None:
            await end_task(self._task)
        if self._http is not None:
            await self._http.close()
        self._stack.close()

    # Asking

    async def ask(
        self,
        do: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        again: Resend = Resend.READ,
    ) -> bytes:
        """Return the body of a successful answer; raise the error that a refusal stands for."""
        asked = self.begin(do, params=params, query=query, body=body, again=again)
        return await self.answer_to(asked)

    def begin(
        self,
        do: str,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        again: Resend = Resend.READ,
    ) -> AskedCommand:
        asked = self._make(do, params or {}, query or {}, body or {}, again)
        self._add(asked)
        return asked

    def begin_soon(
        self, do: str, *, params: Mapping[str, str], body: Mapping[str, Any], again: Resend
    ) -> AskedCommand:
        """The same from any thread and from a signal handler. Never waits."""
        asked = self._make(do, params, {}, body, again)
        self._loop.call_soon_threadsafe(self._add, asked)
        return asked

    async def answer_to(self, asked: AskedCommand) -> bytes:
        try:
            outcome = await asyncio.shield(asked.answer)
        except asyncio.CancelledError:
            if asked.again is Resend.READ:
                self._pending.pop(asked.name, None)
            raise
        if isinstance(outcome, BargeinError):
            raise outcome
        if outcome.status >= 400:
            raise error_of(outcome.status, bytes(outcome.body))
        return bytes(outcome.body)

    def _make(
        self,
        do: str,
        params: Mapping[str, str],
        query: Mapping[str, str],
        body: Mapping[str, Any],
        again: Resend,
    ) -> AskedCommand:
        self._number += 1
        answer: asyncio.Future[ReplyFrame | BargeinError] = self._loop.create_future()
        start = self._start if again is Resend.AIMED else None
        return AskedCommand(str(self._number), do, params, query, body, again, answer, start=start)

    def _add(self, asked: AskedCommand) -> None:
        if self._closed is not None:
            asked.end(self._closed)
        elif len(self._pending) >= PENDING_MAX:
            words = f"{len(self._pending)} commands of this client wait for their answers"
            asked.end(WorldError(f"{words}; wait for some", retryable=True))
        else:
            self._pending[asked.name] = asked
            self._send_soon(asked.name)

    def _send_soon(self, name: str) -> None:
        """Queue a frame, unless the first commands of this connection are still unanswered: then
        `_say_rest` sends everything later."""
        if not self._first:
            self._outgoing.append(name)
            self._more.set()

    async def request(self, method: str, path: str, body: Mapping[str, Any]) -> bytes:
        """Send a body that is too large for the socket as a request of its own. The body has an
        id, so sending it again is safe. It is tried again for `patience_s`."""
        assert self._http is not None
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        until = time.monotonic() + self._patience_s
        pauses = _pauses()
        while True:
            try:
                async with self._http.request(
                    method,
                    self._address.url + path,
                    data=BytesIO(content),
                    headers=headers,
                    ssl=self._ssl,
                ) as response:
                    answer = await response.read()
                    if response.status >= 400:
                        raise error_of(response.status, answer)
                    return answer
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if time.monotonic() > until:
                    raise self._unreachable(error) from error
            await asyncio.sleep(next(pauses))

    # Watching

    def watch(self, session: str, after: int | None) -> WireWatch:
        """Shows the events of a session from now on, or since `after`."""
        self._number += 1
        watch = WireWatch(f"w{self._number}", session, after)
        if self._closed is not None:
            watch.fail(self._closed)
        else:
            self._watches[watch.name] = watch
            self._send_soon(watch.name)
        return watch

    def unwatch(self, watch: WireWatch) -> None:
        if self._watches.pop(watch.name, None) is not None and self.is_connected:
            self.begin("unwatch", params={"watch": watch.name})

    # The socket

    async def _run(self) -> None:
        """Connects, and again whenever the connection breaks, until the client is closed."""
        lost_at, pauses = time.monotonic(), _pauses()
        while True:
            error: Exception = ConnectionResetError("the server closed the connection")
            try:
                if self._before_connecting is not None:
                    await self._before_connecting()
                await self._connect_and_serve()
            except BargeinError as refusal:
                # The server refuses this client, and would again.
                self._fail_all(refusal, for_good=True)
                self._greet(refusal)
                return
            except (aiohttp.ClientError, OSError, TimeoutError) as failure:
                error = failure
            if self.hello is not None:
                lost_at, pauses = time.monotonic(), _pauses()
                self._on_connected(False)
            self.hello = None
            self._greet(self._unreachable(error))
            if time.monotonic() - lost_at > self._patience_s:
                self._fail_all(self._unreachable(error))
                await self._wanted()
                lost_at, pauses = time.monotonic(), _pauses()
            else:
                await asyncio.sleep(next(pauses))

    async def _wanted(self) -> None:
        """Wait until there is something to ask or to watch."""
        while not self._pending and not self._watches:
            self._more.clear()
            await self._more.wait()

    async def _connect_and_serve(self) -> None:
        async with asyncio.timeout(ANSWER_S) as patience:
            socket = await self._connect()
            async with socket:
                writing = asyncio.create_task(self._write(socket))
                try:
                    async for message in socket:
                        if message.type is aiohttp.WSMsgType.TEXT:
                            self._take(message.data)
                        if self.hello is not None:
                            # From here on the heartbeat notices a server that is gone.
                            patience.reschedule(None)
                finally:
                    failure = await end_task(writing)
                if failure is not None and not isinstance(failure, LOST):
                    raise failure

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        assert self._http is not None
        try:
            return await self._http.ws_connect(
                self._address.socket_url,
                heartbeat=HEARTBEAT_S,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                max_msg_size=FRAME_BYTES_MAX,
                ssl=self._ssl,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in TRANSIENT:
                raise
            raise await self._refusal(error.status) from error
        except (aiohttp.ServerFingerprintMismatch, aiohttp.ClientConnectorCertificateError) as why:
            raise UserError(
                f"{self._address.url} does not show the certificate that it should: {why}"
            ) from why

    async def _refusal(self, status: int) -> BargeinError:
        """Return why the server refused the handshake. A WebSocket client cannot read the body of
        a refusal, so an ordinary request asks for it."""
        assert self._http is not None
        try:
            async with self._http.get(f"{self._address.url}/v1/me", ssl=self._ssl) as response:
                body = await response.read()
                if response.status >= 400:
                    return error_of(response.status, body)
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        return UserError(
            f"{self._address.url} answered a WebSocket with status {status}; is it Bargein, of "
            "this version?"
        )

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            if self.hello is None:
                continue
            while self._outgoing:
                frame = self._frame(self._outgoing.popleft())
                if frame is not None:
                    await socket.send_str(frame)

    def _frame(self, name: str) -> str | None:
        assert self.hello is not None
        watch = self._watches.get(name)
        if watch is not None:
            return watch.frame()
        asked = self._pending.get(name)
        if asked is None:
            return None
        if asked.again is Resend.NEVER and asked.start not in (None, self.hello.start):
            del self._pending[name]
            asked.end(
                Unanswered(
                    f"the server was restarted before it answered {asked.do!r}, which may have "
                    "been done; check before you repeat it",
                    retryable=False,
                )
            )
            return None
        return asked.frame(self.hello.start)

    def _take(self, text: str) -> None:
        frame = read_frame(text)
        match frame:
            case HelloFrame():
                self.hello, self._start = frame, frame.start
                self._begin_again(frame)
                self._greet(None)
                self._on_connected(True)
            case ReplyFrame(id=name):
                asked = self._pending.pop(name, None)
                if name in self._first:
                    self._first.remove(name)
                    self._say_rest()
                if asked is not None:
                    asked.end(frame)
                elif (watch := self._watches.get(name)) is not None:
                    self._begun(watch, frame)
            case ShownFrame(watch=name, shown=content):
                watch = self._watches.get(name)
                if watch is not None:
                    self._show(watch, bytes(content))
            case CutFrame(reason="revoked", detail=detail):
                raise Unauthenticated(detail)
            case CutFrame():
                pass  # the server closes the connection, and the client comes back

    def _begin_again(self, hello: HelloFrame) -> None:
        """Send the first commands; when they are answered, everything else that is unanswered."""
        for name in self._first:
            self._pending.pop(name, None)
        first = [
            self._make(each.do, each.params, {}, each.body, Resend.SAME)
            for each in self._says_first(hello)
        ]
        self._first = {asked.name for asked in first}
        self._pending |= {asked.name: asked for asked in first}
        self._outgoing = deque(self._first)
        self._more.set()
        self._say_rest()

    def _say_rest(self) -> None:
        if not self._first:
            self._outgoing = deque([*self._watches, *self._pending])
            self._more.set()

    def _begun(self, watch: WireWatch, reply: ReplyFrame) -> None:
        if reply.status >= 400:
            del self._watches[watch.name]
            watch.fail(error_of(reply.status, bytes(reply.body)))
        else:
            watch.begin(read(WatchReply, bytes(reply.body)).after)

    def _show(self, watch: WireWatch, content: bytes) -> None:
        off = watch.take(content)
        if watch.is_over:
            self.unwatch(watch)
        elif off is not None and off.reason != "shutting_down":
            # Watch again from the last event. After a shutdown the next connection does that.
            self._loop.call_later(BACK_OFF_S[0], self._watch_again, watch)

    def _watch_again(self, watch: WireWatch) -> None:
        if watch.name in self._watches:
            self._send_soon(watch.name)

    def _greet(self, error: BargeinError | None) -> None:
        if not self._greeted.done():
            self._greeted.set_result(error)

    def _fail_all(self, error: BargeinError, *, for_good: bool = False) -> None:
        if for_good and self._closed is None:
            self._closed = error
        pending, self._pending = self._pending, {}
        for asked in pending.values():
            asked.end(error)
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.fail(error)

    def _unreachable(self, error: Exception) -> Disconnected:
        return unreachable(str(self._address.unix or self._address.url), error)

    @property
    def _ssl(self) -> Any:
        return self._address.ssl


def _pauses() -> Iterator[float]:
    """Yield how long to wait before each attempt: longer each time, and different in each client,
    so that they do not all come back at the same moment."""
    least, most = BACK_OFF_S
    pause = least
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(most, pause * 2)
