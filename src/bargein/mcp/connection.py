"""The connection to one MCP server. One task owns it; callers hand it requests.

    connection = McpConnection(name, make_transport, ...)
    await connection.main()             # the owner's task: until the server is lost or it is closed

    pending = connection.begin("tools/call", params, ...)   # any task on the loop; never waits
    event = await pending.next()
    stopped = await connection.stop(pending)                # not needed after the answer

What holds:

- No id is used for two requests. An answer goes to the caller of its request; after `stop` it is
  dropped. A request of the server's own reaches only the session whose call is under way.
- No request is sent twice. When the connection is lost, every open request ends with `ServerDown`:
  the outcome of a call is then unknown.
- The connection first asks for the newer era. Unless the server clearly answers in that era, the
  connection speaks the older one; no single error code decides.
- Everything that a server sends is bounded: its length, its number, and the time it takes.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final

import anyio
import msgspec

from bargein.calls.text import one_line
from bargein.mcp import wire
from bargein.mcp.eras import (
    HANDSHAKE_VERSIONS,
    STATELESS_VERSION,
    ServerFacts,
    facts_of_discovery,
    facts_of_handshake,
    handshake_era,
    stateless_era,
    supported_versions,
)
from bargein.mcp.errors import McpError, NotSent, Rejected, ServerDown
from bargein.mcp.lines import HEAD_BYTES
from bargein.mcp.pending import Late, OnProgress, PendingRequest, ProgressNote, RpcAnswer
from bargein.mcp.transport import MESSAGE_BYTES_MAX, Receiver, Transport
from bargein.mcp.wire import Incoming, Outgoing

PROBE_S: Final = 3.0
"""How long a server may be silent before the connection also tries the older era."""
STOP_GRACE_S: Final = 0.5
"""How long a server may take to react to a stop: to answer, or to show that it responds."""
LATE_S: Final = 0.1
"""How long the stream of a stopped request is still read, because it may confirm the stop."""
FENCED_MAX: Final = 1000
RELIST_S: Final = 0.5
LISTEN_S_MAX: Final = 60.0

_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that names the target of a request in HTTP headers, for routers."""

_log = logging.getLogger("bargein.mcp")


class StopAnswer(msgspec.Struct, frozen=True):
    """How the stop of a request went. `sent`: the request was written before, so it may have had an
    effect. `told`: the stop was sent; a full pipe that the server does not read prevents that.
    `responds`: whether the server still answers; None if that cannot be known."""

    sent: bool
    told: bool = True
    late: Late = Late.NOTHING
    responds: bool | None = None


class Oddities(msgspec.Struct):
    """Counts messages of a server that break the protocol, and describes them for people."""

    junk: int = 0
    too_large: int = 0
    late: int = 0
    last: str = ""

    def note(self, text: str) -> None:
        self.last = text[:300]

    def words(self) -> str:
        """Return a sentence about all of them; empty if there was none."""
        counted = (
            (self.junk, "lines that are no messages"),
            (self.too_large, "messages that were too large"),
            (self.late, "answers to stopped requests"),
        )
        told = ", ".join(f"{number} {what}" for number, what in counted if number)
        return f"{told}; last: {one_line(self.last)}" if told and self.last else told


class McpConnection(Receiver):
    """`stateless`: the era, if an earlier connection has found it; then none is probed.
    `on_change` is called when the server says that one of its lists has changed."""

    def __init__(
        self,
        name: str,
        make_transport: Callable[[Receiver], Transport],
        *,
        client_version: str,
        stateless: bool | None = None,
        on_change: Callable[[str], None],
    ) -> None:
        self.name = name
        self.transport = make_transport(self)
        self.facts = ServerFacts()
        self.era = stateless_era(client_version)
        self.oddities = Oddities()
        self.lost: McpError | None = None
        self.probed_only = False
        """Whether only the probe for the era was sent."""
        self._client_version = client_version
        self._stateless = stateless
        self._on_change = on_change
        self._ids = count(1)
        self._open: dict[int, PendingRequest] = {}
        self._fenced: OrderedDict[int, PendingRequest] = OrderedDict()

    # The owner's task

    async def main(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Open, shake hands, `prepare`, and serve until it is lost: raises `ServerDown`.
        Cancelling closes it."""
        opened = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:

                async def serve() -> None:
                    await opened.wait()
                    await self._shake_hands()
                    # Before any call: what a server asks then must not be missed.
                    self.transport.listen()
                    await prepare()
                    await self._subscribe()

                tasks.start_soon(serve)
                await self.transport.run(opened.set)
        except BaseExceptionGroup as group:
            first = _first(group)
            if isinstance(first, McpError):
                self._end(first)
            raise first from None
        finally:
            self._end(self.lost or ServerDown(self.name, "the connection was closed"))

    def _end(self, error: McpError) -> None:
        self.lost = self.lost or error
        for pending in list(self._open.values()):
            pending.put(RpcAnswer(lost=error))
        self._open.clear()

    async def _shake_hands(self) -> None:
        if self._stateless is not False and await self._discover():
            return
        self._begin_anew()
        self._agree(await self._ask("initialize", self.era.handshake()))

    def _begin_anew(self) -> None:
        """Begin to speak the older era. Its version is agreed on afterwards."""
        self.era = handshake_era(self._client_version)
        self.transport.speak(None)

    def _agree(self, answer: RpcAnswer) -> None:
        result = wire.parse_object(_result_of(self.name, answer))
        self.facts = facts_of_handshake(result)
        if self.facts.version not in HANDSHAKE_VERSIONS:
            said = f"it speaks version {self.facts.version!r} of MCP, which is not known here"
            raise ServerDown(self.name, said)
        self.era = handshake_era(self._client_version, self.facts.version)
        self.transport.speak(self.era)
        self.notify("notifications/initialized")

    async def _discover(self) -> bool:
        """Return whether the server is of the stateless era. If it does not answer the probe,
        `initialize` is sent too, and the first useful answer to either decides."""
        self.transport.speak(self.era)
        self.probed_only = True
        probe = self.begin("server/discover", self.era.params())
        answer: RpcAnswer | None = None
        with anyio.move_on_after(PROBE_S):
            answer = await _answer_to(probe)
        if answer is None:
            self.probed_only = False
            return await self._race(probe)
        self._drop(probe)
        if answer.error is not None and STATELESS_VERSION in (
            supported_versions(answer.error) or ()
        ):
            # Its error names the version that we asked for, so the same request may now succeed.
            answer = await self._ask("server/discover", self.era.params())
        return self._is_stateless(answer)

    async def _race(self, probe: PendingRequest) -> bool:
        self._begin_anew()
        hello = self.begin("initialize", self.era.handshake())
        stateless = False

        async def wait_for_probe() -> None:
            nonlocal stateless
            answer = await _answer_to(probe)
            if self._is_stateless(answer):
                stateless = True
                tasks.cancel_scope.cancel()

        async def wait_for_hello() -> None:
            answer = await _answer_to(hello)
            if answer.result is not None:
                self._agree(answer)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_probe)
            tasks.start_soon(wait_for_hello)
        self._drop(probe)
        self._drop(hello)
        if not stateless and not self.facts.version:
            raise ServerDown(self.name, "it answers neither server/discover nor initialize")
        return True

    def _is_stateless(self, answer: RpcAnswer) -> bool:
        if isinstance(answer.lost, ServerDown):
            raise answer.lost
        self.probed_only = False
        if answer.error is not None:
            supported = supported_versions(answer.error)
            known = (STATELESS_VERSION, *HANDSHAKE_VERSIONS)
            if supported is not None and not any(each in supported for each in known):
                raise ServerDown(
                    self.name, f"no version of MCP fits: {one_line(answer.error.message, 300)}"
                )
            return False
        if answer.result is None:
            return False
        facts = facts_of_discovery(wire.parse_object(answer.result))
        if facts is None:
            return False
        self.facts = facts
        self.era = stateless_era(self._client_version)
        self.transport.speak(self.era)
        return True

    async def _subscribe(self) -> None:
        """In the stateless era a server announces changes only on a request that stays open."""
        wanted = {
            f"{kind}ListChanged": True
            for kind in ("tools", "prompts", "resources")
            if self.facts.can(kind, "listChanged")
        }
        pause_s = 1.0
        while self.era.stateless and wanted:
            pending = self.begin("subscriptions/listen", self.era.params({"notifications": wanted}))
            answer = await _answer_to(pending)
            self._drop(pending)
            if answer.error is not None or isinstance(answer.lost, Rejected):
                return
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, LISTEN_S_MAX)
            # Changes in the meantime were not announced to us.
            self._on_change("tools")

    # Requests

    def begin(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        session: str = "",
        label: str = "",
        on_progress: OnProgress | None = None,
    ) -> PendingRequest:
        """Hand over a request. `params` include what the era demands. Raises `ServerDown`."""
        if self.lost is not None:
            raise NotSent(self.name, "the connection was lost before this was sent")
        pending = PendingRequest(
            next(self._ids), method, session=session, label=label, on_progress=on_progress
        )
        if on_progress is not None:
            params = self._with_progress_token(params, pending.id)
        body = wire.request(pending.id, method, params)
        name = str(params.get(_NAMED_BY[method], "")) if method in _NAMED_BY else ""
        self._open[pending.id] = pending
        try:
            self.transport.send(Outgoing(method, body, pending.id, name, headers or {}))
        except McpError:
            del self._open[pending.id]
            raise
        return pending

    @staticmethod
    def _with_progress_token(params: Mapping[str, Any], request_id: int) -> dict[str, Any]:
        meta = {**params.get("_meta", {}), "progressToken": request_id}
        return {**params, "_meta": meta}

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.transport.send(Outgoing(method, wire.notification(method, params)))

    def respond(self, request: Incoming, result: Mapping[str, Any]) -> None:
        """Answer a request of the server's. Does nothing if the connection is lost."""
        self._reply(wire.answer(request.id, result))

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that has no effect, and return its answer. Raises `McpError`."""
        answer = await self._ask(method, self.era.params(params))
        return wire.parse_object(_result_of(self.name, answer))

    async def _ask(self, method: str, params: Mapping[str, Any]) -> RpcAnswer:
        pending = self.begin(method, params)
        try:
            return await _answer_to(pending)
        finally:
            self._drop(pending)

    def _drop(self, pending: PendingRequest) -> None:
        """Forget a request that nobody waits for. The server gets no notice, because the request
        has no effect."""
        if pending.open:
            self._fence(pending)
            self.transport.close_stream(pending.id)
            self.transport.withdraw(pending.id)
        self._open.pop(pending.id, None)

    # Stopping

    async def stop(self, pending: PendingRequest, grace_s: float = STOP_GRACE_S) -> StopAnswer:
        """Tell the server to stop working on a request, and find out within the grace how it
        reacts. Later answers to the request are dropped. Always returns in time."""
        for request in self._fence(pending):
            self._reply(wire.answer(request.id, {"action": "cancel"}))
        if self.lost is not None:
            return StopAnswer(sent=True)
        if self.transport.withdraw(pending.id):
            return StopAnswer(sent=False)
        responds: bool | None = None
        notice = self._cancelled(pending)
        with anyio.move_on_after(grace_s):
            if not self.transport.has_streams:
                responds = False
                responds = await self._tell_on_the_pipe(notice)
            elif self.era.stateless:
                self.transport.close_stream(pending.id)
            else:
                responds = False
                responds = await self.transport.deliver(notice)
                with anyio.move_on_after(LATE_S):
                    await pending.late_came.wait()
        self.transport.close_stream(pending.id)
        told = bool(responds) or not self.transport.is_unwritten(notice)
        return StopAnswer(sent=True, told=told, late=pending.late, responds=responds)

    async def _tell_on_the_pipe(self, notice: Outgoing) -> bool:
        """Send the notice and behind it a check. A pipe keeps the order, so a server that answers
        the check has read the notice."""
        check: PendingRequest | None = None
        try:
            self.transport.send(notice, first=True)
            check = self.begin(self.era.check_method, self.era.params())
            answer = await _answer_to(check)
        except McpError:
            return False
        finally:
            if check is not None:
                self._drop(check)
        return answer.lost is None

    def _cancelled(self, pending: PendingRequest) -> Outgoing:
        method = "notifications/cancelled"
        return Outgoing(method, wire.notification(method, {"requestId": pending.id}))

    def _fence(self, pending: PendingRequest) -> tuple[Incoming, ...]:
        self._open.pop(pending.id, None)
        self._fenced[pending.id] = pending
        while len(self._fenced) > FENCED_MAX:
            self._fenced.popitem(last=False)
        return pending.fence()

    def others(self, pending: PendingRequest) -> tuple[PendingRequest, ...]:
        """Return the other calls that are under way on this connection."""
        return tuple(each for each in self._open.values() if each.label and each is not pending)

    def lose(self, why: str) -> None:
        """Give the connection up: every open request ends with `ServerDown`."""
        self._end(ServerDown(self.name, why))

    # What the server sends

    def received(self, data: bytes, via: int | None) -> bool:
        if wire.holds_too_much(data):
            what = f"it has more than {wire.VALUES_MAX:,} values"
            self._too_large(data[:HEAD_BYTES] + data[-HEAD_BYTES:], what, via)
            return False
        try:
            messages = wire.decode(data)
        except wire.BadMessage:
            self.oddities.junk += 1
            self.oddities.note(data[:200].decode("utf-8", "replace"))
            return False
        wanted = False
        for message in messages:
            if message.method:
                wanted = self._take(message, via) or wanted
            elif message.is_answer:
                wanted = self._take_answer(message, via) or wanted
        return wanted

    def _take_answer(self, message: Incoming, via: int | None) -> bool:
        request_id = message.id if isinstance(message.id, int) else None
        if request_id is None and message.error is not None:
            # An error before the request was understood names no request.
            request_id = via
        if request_id is None:
            return False
        answer = RpcAnswer(error=message.error)
        if message.error is None:
            answer = RpcAnswer(result=message.result)
        pending = self._open.pop(request_id, None)
        if pending is not None:
            pending.put(answer)
            return True
        fenced = self._fenced.get(request_id)
        if fenced is None:
            return False
        # Counts for calls only: a late answer to the probe for the era is not odd.
        self.oddities.late += bool(fenced.label)
        is_first = fenced.late is Late.NOTHING
        fenced.put(answer)
        return is_first

    def _take(self, message: Incoming, via: int | None) -> bool:
        if message.id is not None:
            return self._take_request(message, via)
        method = message.method
        if method == "notifications/progress":
            return self._take_progress(message)
        if method == "notifications/cancelled":
            taken_back = wire.parse_object(message.params).get("requestId")
            for pending in self._open.values():
                pending.forget(taken_back)
        elif method.endswith("/list_changed"):
            self._on_change(method.split("/")[1])
        # Counts as unwanted, as progress does, so that a flood of it is read slowly.
        return False

    def _take_progress(self, message: Incoming) -> bool:
        params = wire.parse_object(message.params)
        token = params.get("progressToken")
        pending = self._open.get(token) if isinstance(token, int) else None
        if pending is None or pending.on_progress is None:
            return False
        try:
            progress = msgspec.convert(params, ProgressNote)
        except msgspec.ValidationError:
            return False
        pending.on_progress(progress)
        # Counts as unwanted, so that a flood of it is read slowly.
        return False

    def _take_request(self, message: Incoming, via: int | None) -> bool:
        if message.method == "ping":
            self._reply(wire.answer(message.id, {}))
            return False
        if message.method == "elicitation/create":
            pending = self._whose(via)
            if pending is not None and pending.ask(message):
                return True
            # It may belong to any of several sessions, and must not be shown in the wrong one.
            self._reply(wire.answer(message.id, {"action": "cancel"}))
            return False
        self._reply(wire.refusal(message.id, wire.METHOD_NOT_FOUND, "not supported"))
        return False

    def _whose(self, via: int | None) -> PendingRequest | None:
        if via is not None:
            return self._open.get(via)
        calls = [each for each in self._open.values() if each.label]
        return calls[-1] if len({each.session for each in calls}) == 1 else None

    def _reply(self, body: bytes) -> None:
        try:
            self.transport.send(Outgoing("", body))
        except McpError as error:
            _log.debug("an answer to a server was not sent: %s", error)

    def too_long(self, head: bytes, length: int, via: int | None) -> None:
        self._too_large(head, f"longer than {MESSAGE_BYTES_MAX >> 20} MiB", via)

    def _too_large(self, ends: bytes, why: str, via: int | None) -> None:
        """Note that a message was dropped, and fail the request that it answers. `ends` has its
        beginning and perhaps its end."""
        self.oddities.too_large += 1
        self.oddities.note(f"a message was dropped: {why}")
        request_id = via if via is not None else _id_in(ends)
        if request_id is not None:
            error = ServerDown(self.name, f"its answer was dropped: {why}")
            self.request_failed(request_id, error)

    def request_failed(self, request_id: int, error: McpError) -> None:
        pending = self._open.pop(request_id, None)
        if pending is not None:
            pending.put(RpcAnswer(lost=error))

    def is_open(self, request_id: int) -> bool:
        return request_id in self._open or (
            request_id in self._fenced and self._fenced[request_id].late is Late.NOTHING
        )


async def _answer_to(pending: PendingRequest) -> RpcAnswer:
    while True:
        event = await pending.next()
        if isinstance(event, RpcAnswer):
            return event


def _result_of(name: str, answer: RpcAnswer) -> msgspec.Raw:
    """Return the result, or raise the error that came in its place."""
    if answer.lost is not None:
        raise answer.lost
    if answer.error is not None:
        error = answer.error
        raise Rejected(name, error.code, one_line(error.message, 1000), wire.parse(error.data))
    assert answer.result is not None
    return answer.result


def _id_in(ends: bytes) -> int | None:
    """Find the id of an answer in its beginning and end."""
    found = re.search(rb'"id"\s*:\s*(\d{1,15})\s*[,}]', ends)
    return int(found[1]) if found else None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the cause among the errors: the loss of a server, rather than a cancel due to it."""
    flat: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        each = todo.pop()
        if isinstance(each, BaseExceptionGroup):
            todo.extend(each.exceptions)
        else:
            flat.append(each)
    return next((each for each in flat if isinstance(each, McpError)), flat[0])
