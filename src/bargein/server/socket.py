"""Sessions over a WebSocket: the same events as over server-sent events, and commands.

In:  {"id": "7", "do": "send_message", "body": {"text": "..."}}
Out: {"type": "reply", "id": "7", "status": 202, "body": {...}}, and the events in between.

`do` is the name of any operation of the session, as in the OpenAPI document. `params` has the
parameters of its path without the session, `query` those of its query, and `key` is the
Idempotency-Key. Messages reach the session in the order in which they came; a command that waits
for a receipt delays no other. When a socket closes, only the waiting for replies ends. `ping` is
answered at once with the server's time, so that a page can check that the socket is alive.

A program sends its token in the Authorization header. A page cannot, and offers the subprotocols
`bargein.v1` and `bargein.ticket.TICKET`; see tickets.py.

A connection (`/v1/socket`) is a socket without a session. It begins with a `hello`. Its commands
are all operations, with the session among their `params`, and two more. `watch` shows the events of
a session, each as {"type": "shown", "watch": id of the command, "shown": the event}; `unwatch` ends
it. A connection can watch many sessions, and one session more than once.
"""

import time
import traceback
from contextlib import ExitStack, aclosing, suppress

import anyio
import msgspec
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from bargein import __version__
from bargein.server.anywhere import place_of
from bargein.server.anywhere import watch as watch_anywhere
from bargein.server.edge import Edge, address_of, problem_response
from bargein.server.gateway import Reader
from bargein.server.keys import Kept, check_key
from bargein.server.limits import Hold
from bargein.server.operation import ApiRequest, Operation, Reply, decode
from bargein.server.problems import Code, Problem, as_problem
from bargein.server.shapes import (
    ID_CHARACTERS_MAX,
    Command,
    CutOff,
    CutReason,
    Done,
    Hello,
    Pong,
    SocketReply,
    WatchBegun,
)
from bargein.server.streams import (
    DETAILS,
    LAST_WORDS_S,
    Watch,
    begin_watch,
    check_place,
    place_in,
    watching,
)
from bargein.server.tickets import PROTOCOL, ticket_in

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Command)

PING = "ping"
WATCH = "watch"
UNWATCH = "unwatch"
OF_A_SESSION = 32
OF_A_CONNECTION = 256
"""How many commands run at once. Only half of them may wait for turns, which can take long, so that
a stop always gets through."""
LONG = frozenset({"get_turn", "get_result", "get_settled", "compact_session"})
CLOSE_CODES: dict[CutReason, int] = {
    "too_slow": 1013,
    "shutting_down": 1001,
    "session_gone": 1000,
    "revoked": 1008,
    "unreadable": 1011,
    "unavailable": 1013,
}


class _OnlyId(msgspec.Struct):
    id: str = ""


_id_decoder = msgspec.json.Decoder(_OnlyId)


def _id_of(content: bytes) -> str:
    """Returns the id of a command, even of an invalid one; empty if it has none."""
    try:
        return _id_decoder.decode(content).id[:ID_CHARACTERS_MAX]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _refusal(command_id: str, problem: Problem) -> SocketReply:
    return SocketReply(command_id, problem.status, msgspec.Raw(_encoder.encode(problem.body())))


def _good(command_id: str, body: msgspec.Struct) -> SocketReply:
    return SocketReply(command_id, 200, msgspec.Raw(_encoder.encode(body)))


class SocketEndpoint:
    """Serves the WebSocket of one session."""

    def __init__(self, edge: Edge, operations: tuple[Operation, ...]) -> None:
        self._edge = edge
        self._operations = {each.name: each for each in operations if "{session}" in each.path}

    async def serve(self, websocket: WebSocket) -> None:
        with ExitStack() as stack:
            try:
                ticket = ticket_in(websocket.scope["subprotocols"])
                holder = await self._edge.ticket_holder(websocket, ticket) if ticket else None
                watch = await begin_watch(self._edge, websocket, holder)
                stack.enter_context(self._edge.gateway.stream(watch.reader))
            except Exception as error:  # boundary: every failure becomes a problem answer
                await websocket.send_denial_response(problem_response(as_problem(error)))
                return
            offered = PROTOCOL in websocket.scope["subprotocols"]
            await websocket.accept(PROTOCOL if offered else None)
            await Socket(self._edge, self._operations, websocket, watch.reader, watch).run()


class ConnectionEndpoint:
    """Serves the WebSocket of one principal, for all of its sessions."""

    def __init__(self, edge: Edge, operations: tuple[Operation, ...]) -> None:
        self._edge = edge
        self._operations = {each.name: each for each in operations}

    async def serve(self, websocket: WebSocket) -> None:
        with ExitStack() as stack:
            try:
                reader = Reader(self._edge.principal(websocket), None)
                stack.enter_context(self._edge.gateway.stream(reader))
            except Exception as error:  # boundary: every failure becomes a problem answer
                await websocket.send_denial_response(problem_response(as_problem(error)))
                return
            await websocket.accept()
            await Socket(self._edge, self._operations, websocket, reader).run()


class _Showing:
    """The events of one session on a socket, and how far they were sent. `name` is the id of the
    `watch` command, or None on the socket of that session."""

    def __init__(self, watch: Watch, name: str | None = None) -> None:
        self.watch = watch
        self.sent_seq = watch.after or 0
        self._before, self._behind = "", ""
        if name is not None:
            quoted = msgspec.json.encode(name).decode()
            self._before, self._behind = f'{{"type":"shown","watch":{quoted},"shown":', "}"

    @property
    def reader(self) -> Reader:
        return self.watch.reader

    def framed(self, text: str) -> str:
        return f"{self._before}{text}{self._behind}" if self._before else text

    def cut_off(self, reason: CutReason) -> str:
        off = CutOff(reason, self.reader.detail or DETAILS[reason], self.sent_seq)
        return self.framed(_encoder.encode(off).decode())


class Socket:
    """`watch` is set on the socket of one session, which shows its events from the start."""

    def __init__(
        self,
        edge: Edge,
        operations: dict[str, Operation],
        websocket: WebSocket,
        reader: Reader,
        watch: Watch | None = None,
    ) -> None:
        self._edge = edge
        self._operations = operations
        self._websocket = websocket
        self._reader = reader
        self._own = _Showing(watch) if watch is not None else None
        self._watches: dict[str, _Showing] = {}
        self._sending = anyio.Lock()
        self._messages = anyio.Lock()
        most = OF_A_SESSION if watch is not None else OF_A_CONNECTION
        self._at_once = anyio.Semaphore(most)
        self._waiting_max = most // 2
        self._waiting = 0
        self._group: TaskGroup | None = None
        self._is_over = False
        self._scopes: set[anyio.CancelScope] = set()
        """The scopes of the tasks. A task that is cancelled with the group would be kept by its own
        error until Python's collector runs."""

    async def run(self) -> None:
        with self._reader.scope:
            async with anyio.create_task_group() as group:
                self._group = group
                if self._own is not None:
                    group.start_soon(self._show, self._own, self._new_scope())
                else:
                    await self._greet()
                while (content := await self._receive()) is not None:
                    await self._at_once.acquire()
                    group.start_soon(self._obey, content, self._new_scope())
                    del content
                self._is_over = True
                for scope in self._scopes:
                    scope.cancel()
        await self._leave()

    def _new_scope(self) -> anyio.CancelScope:
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        if self._is_over:
            # A command that was just done may begin something all the same.
            scope.cancel()
        return scope

    async def _receive(self) -> bytes | None:
        """Returns the next command; None at the end, and for a frame that is not text.

        Starlette's `receive_text` raises once a send has found the peer gone, although commands
        that the peer sent before may still wait.
        """
        message = await self._websocket.receive()
        text = message.get("text")
        return text.encode("utf-8", "surrogatepass") if text is not None else None

    async def _greet(self) -> None:
        hello = Hello(self._edge.gateway.start, __version__, self._reader.principal.name)
        await self._send(_encoder.encode(hello).decode())

    async def _leave(self) -> None:
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        reason = self._reader.reason
        with anyio.move_on_after(LAST_WORDS_S):
            if reason is not None:
                if self._own is not None:
                    await self._send(self._own.cut_off(reason))
                else:
                    off = CutOff(reason, self._reader.detail or DETAILS[reason], 0)
                    await self._send(_encoder.encode(off).decode())
            code = CLOSE_CODES[reason] if reason is not None else 1003
            if self._websocket.application_state is WebSocketState.CONNECTED:
                with suppress(WebSocketDisconnect):
                    await self._websocket.close(code, reason)

    async def _show(self, showing: _Showing, scope: anyio.CancelScope) -> None:
        watch = showing.watch
        with scope, watching(self._edge.gateway, watch):
            gateway = self._edge.gateway
            found = watch_anywhere(gateway, watch.session.id, watch.after)
            async with aclosing(found) as batches:
                async for batch in batches:
                    for event in batch:
                        encoded = gateway.events.encode(event)
                        await self._out(
                            showing.framed(encoded.text), len(encoded.content), showing.reader
                        )
                        showing.sent_seq = place_of(event) or showing.sent_seq

    async def _show_named(self, name: str, showing: _Showing, scope: anyio.CancelScope) -> None:
        """Shows the events of a session for a `watch`, until it is over or `unwatch` ends it."""
        reader = showing.reader
        try:
            with self._edge.gateway.stream(reader), reader.scope:
                await self._show(showing, scope)
        except Problem as problem:
            reader.cut("unavailable", problem.detail)
        finally:
            self._scopes.discard(scope)
        if self._watches.pop(name, None) is not None and reader.reason is not None:
            await self._send_in_turn(showing.cut_off(reader.reason))

    async def _out(self, text: str, size: int, reader: Reader) -> None:
        """Sends the text. Its bytes count for the principal until they are sent. If they do not fit
        into the budget, the reader is cut off, and can resume where it was."""
        gateway = self._edge.gateway
        with gateway.hold(self._reader.principal.name) as hold:
            try:
                hold.resize(size)
            except Problem:
                reader.cut("too_slow")
                return
            await self._send_in_turn(text)

    async def _send_in_turn(self, text: str) -> None:
        with anyio.move_on_after(self._edge.gateway.limits.send_s) as patience:
            async with self._sending:
                await self._send(text)
        if patience.cancelled_caught:
            self._reader.cut("too_slow")

    async def _send(self, text: str) -> None:
        """Sends the text, unless the peer is gone, which `run` notices as it reads."""
        if self._websocket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect):
                await self._websocket.send_text(text)

    # --- commands

    async def _obey(self, content: bytes, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                with self._edge.gateway.hold(self._reader.principal.name) as hold:
                    reply = await self._reply(content, hold)
                # This may wait for a client that reads no replies: do not keep the command.
                del content
                encoded = _encoder.encode(reply)
                await self._out(encoded.decode(), len(encoded), self._reader)
        except anyio.get_cancelled_exc_class() as cancelled:
            # The reader was cut off. anyio keeps the error of a cancelled task until the collector
            # runs, and its traceback keeps the frames that refer to the command.
            content = b""  # noqa: F841 - it may be deleted already, and must not stay
            traceback.clear_frames(cancelled.__traceback__)
            raise
        finally:
            self._scopes.discard(scope)
            self._at_once.release()

    async def _reply(self, content: bytes, hold: Hold) -> SocketReply:
        command_id = ""
        try:
            hold.resize(len(content))
            self._edge.gateway.admit_bytes(self._reader.principal.name, len(content))
            command = decode(_decoder, content)
            command_id = command.id
            self._edge.gateway.check_token(self._reader.principal)
            self._edge.gateway.admit(self._reader.principal)
            if command.do == PING:
                return _good(command.id, Pong(time.time()))
            if self._own is None and command.do == WATCH:
                return _good(command.id, await self._begin_watch(command))
            if self._own is None and command.do == UNWATCH:
                return _good(command.id, self._end_watch(command))
            operation = self._operations.get(command.do)
            if operation is None:
                more = (PING,) if self._own is not None else (PING, WATCH, UNWATCH)
                known = ", ".join(sorted([*self._operations, *more]))
                raise Problem(Code.BAD_REQUEST, f"there is no command {command.do!r}; say {known}")
            api_request = self._api_request(operation, command)
            if operation.name == "send_message":
                async with self._messages:
                    done = await self._edge.perform(
                        operation, api_request, memoryview(command.body)
                    )
            elif operation.name in LONG:
                done = await self._wait(operation, api_request, command)
            else:
                done = await self._edge.perform(operation, api_request, memoryview(command.body))
        except Exception as error:  # boundary: every failure becomes the reply
            # Not kept in a variable: the error refers to this frame by its traceback, and a frame
            # that refers to the error would keep the command in memory until the collector runs.
            return _refusal(command_id or _id_of(content), as_problem(error))
        body = done.body if isinstance(done, Kept) else _encoder.encode(done.body)
        return SocketReply(command_id, done.status, msgspec.Raw(body or b"null"))

    async def _begin_watch(self, command: Command) -> WatchBegun:
        gateway, principal = self._edge.gateway, self._reader.principal
        if "session" not in command.params:
            raise Problem(Code.BAD_REQUEST, "watch needs 'session' in params")
        if command.id in self._watches:
            raise Problem(Code.BAD_REQUEST, f"{command.id} watches already; give it another id")
        opened = await gateway.open(principal, command.params["session"])
        after = place_in(command.query.get("after"), "after")
        await check_place(gateway, opened, after)
        gateway.check_streams(principal)
        if after is None:
            # The reply has the place: a reader that reconnects before the first event misses none.
            after = await opened.session.position()
        watch = Watch(Reader(principal, opened.root), opened.session, after)
        showing = self._watches[command.id] = _Showing(watch, command.id)
        assert self._group is not None
        self._group.start_soon(self._show_named, command.id, showing, self._new_scope())
        return WatchBegun(after)

    def _end_watch(self, command: Command) -> Done:
        showing = self._watches.pop(command.params.get("watch", ""), None)
        if showing is None:
            return Done("too_late", "this watch has ended already")
        showing.reader.scope.cancel()
        return Done()

    async def _wait(
        self, operation: Operation, api_request: ApiRequest, command: Command
    ) -> Reply | Kept:
        if self._waiting >= self._waiting_max:
            raise Problem(
                Code.TOO_MANY,
                f"{self._waiting} commands of this socket wait for turns; its events tell the same",
                retry_after_s=1,
            )
        self._waiting += 1
        try:
            return await self._edge.perform(operation, api_request, memoryview(command.body))
        finally:
            self._waiting -= 1

    def _api_request(self, operation: Operation, command: Command) -> ApiRequest:
        params = command.params
        if self._own is not None:
            params = {**params, "session": self._own.watch.session.id}
        for name in operation.names:
            if name not in params:
                raise Problem(Code.BAD_REQUEST, f"{operation.name} needs {name!r} in params")
        return ApiRequest(
            self._edge.gateway,
            self._reader.principal,
            params,
            command.query,
            check_key(command.key) if command.key is not None else None,
            address_of(self._websocket),
        )
