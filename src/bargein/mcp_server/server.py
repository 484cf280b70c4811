"""The server's side of the protocol: one client, both eras, one tool.

What holds:

- Each request runs in a task of its own, so the next message is read at once.
  `notifications/cancelled` stops the turn of that request; the end of the client's messages stops
  all turns. A cancelled request gets no answer.
- A question of the agent becomes an elicitation. In the stateless era the call ends with
  `input_required` and the turn waits, for a bounded time; in the older era we send the client a
  request. A client without elicitation gets an error that names the question.
- Messages from the client are bounded, and so are those that wait to be sent to it: progress is
  dropped first.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from bargein.contracts.given import check_texts
from bargein.errors import BargeinError, UserError
from bargein.mcp import wire
from bargein.mcp.eras import HANDSHAKE_VERSION, HANDSHAKE_VERSIONS, META, STATELESS_VERSION
from bargein.mcp.wire import Incoming
from bargein.mcp_server.asking import answer_in, can_elicit, elicitation
from bargein.mcp_server.turns import ServedTurn, TurnEnd, TurnQuestion
from bargein.session.any_session import AnySession

ANSWER_S: Final = 600.0
"""How long a turn waits for the answer while the client asks its user."""
TURNS_MAX: Final = 32
PROGRESS_S: Final = 0.1
TOOL: Final = "agent"

_log = logging.getLogger("bargein.mcp_server")

OpenSession = Callable[[str | None], Awaitable[AnySession]]
"""Opens a session by its id, a new one for None. Raises `BargeinError`."""
SendBytes = Callable[[bytes, bool], None]
"""Hands a message over to be written; the flag says whether it may be dropped."""

_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "What the agent is to do, in full."},
        "session": {
            "type": "string",
            "description": "Continue this session; its id is in the result of an earlier call.",
        },
    },
    "required": ["task"],
}
_OUTPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "session": {"type": "string"},
        "outcome": {"type": "string"},
        "text": {"type": "string"},
    },
    "required": ["session", "outcome", "text"],
}


class BadRequest(Exception):
    """The request is refused with an error of JSON-RPC."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class McpAgentServer:
    """`open_session` opens sessions of the agent; `about` describes to a client what it does."""

    def __init__(
        self,
        open_session: OpenSession,
        send: SendBytes,
        *,
        version: str,
        about: str,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._answer_s = answer_s
        self._open_session = open_session
        self._send = send
        self._info = {"name": "bargein", "version": version}
        self._about = about
        self._client: Mapping[str, Any] | None = None
        """The capabilities that `initialize` named; None before it."""
        self._requests: dict[object, anyio.CancelScope] = {}
        self._waiting: dict[str, tuple[ServedTurn, TurnQuestion, anyio.CancelScope]] = {}
        self._asked: dict[object, _ClientAnswer] = {}
        self._turns = 0
        self._tasks: TaskGroup | None = None

    async def serve(self, messages: AsyncIterator[bytes]) -> None:
        """Serves until the client's messages end, then stops what it had asked for."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            async for data in messages:
                self._take(data)
            tasks.cancel_scope.cancel()

    def _take(self, data: bytes) -> None:
        try:
            received = wire.decode(data)
        except wire.BadMessage as error:
            self._send(wire.refusal(None, PARSE_ERROR, f"not a message: {error}"), False)
            return
        for message in received:
            if message.method and message.id is not None:
                self._begin(message)
            elif message.method == "notifications/cancelled":
                named = wire.parse_object(message.params).get("requestId")
                scope = self._requests.get(named) if isinstance(named, int | str) else None
                if scope is not None:
                    scope.cancel()
            elif message.is_answer and message.id in self._asked:
                self._asked[message.id].put(message)

    def _begin(self, message: Incoming) -> None:
        if message.id in self._requests:
            said = f"the request {message.id!r} is under way already; use another id"
            self._send(wire.refusal(message.id, wire.INVALID_REQUEST, said), False)
            return
        assert self._tasks is not None
        scope = self._requests[message.id] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, message, scope)

    async def _answer(self, message: Incoming, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                try:
                    result = await self._result_of(message)
                except BadRequest as bad:
                    refused = wire.refusal(message.id, bad.code, str(bad), bad.data)
                    self._send(refused, False)
                else:
                    self._send(wire.answer(message.id, result), False)
        except Exception as bug:  # boundary: one request fails, the others go on
            _log.exception("a request failed: %s", message.method)
            said = f"{type(bug).__name__}: {bug}"
            self._send(wire.refusal(message.id, INTERNAL_ERROR, said), False)
        finally:
            self._requests.pop(message.id, None)

    async def _result_of(self, message: Incoming) -> Mapping[str, Any]:
        params = wire.parse_object(message.params)
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        asked_version = meta.get(f"{META}protocolVersion")
        stateless = asked_version is not None
        if stateless and asked_version != STATELESS_VERSION:
            supported = [STATELESS_VERSION, *HANDSHAKE_VERSIONS]
            raise BadRequest(
                wire.UNSUPPORTED_VERSION,
                f"version {asked_version!r} is not spoken here",
                {"supported": supported, "requested": asked_version},
            )
        match message.method:
            case "initialize":
                return self._shake_hands(params)
            case "server/discover" if stateless:
                return self._discovery()
            case "ping":
                return {}
            case "tools/list":
                return self._tool_list(stateless)
            case "tools/call":
                capabilities = meta.get(f"{META}clientCapabilities") if stateless else self._client
                result = await self._call(params, meta, capabilities, stateless)
                return {"resultType": "complete", **result} if stateless else result
        raise BadRequest(wire.METHOD_NOT_FOUND, f"there is no method {message.method!r}")

    def _shake_hands(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        capabilities = params.get("capabilities")
        self._client = capabilities if isinstance(capabilities, dict) else {}
        wanted = params.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": self._info,
            "instructions": self._about,
        }

    def _discovery(self) -> Mapping[str, Any]:
        return {
            "resultType": "complete",
            "supportedVersions": [STATELESS_VERSION, *HANDSHAKE_VERSIONS],
            "capabilities": {"tools": {}},
            "instructions": self._about,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {f"{META}serverInfo": self._info},
        }

    def _tool_list(self, stateless: bool) -> Mapping[str, Any]:
        tool = {
            "name": TOOL,
            "title": "Delegate to the Bargein agent",
            "description": self._about,
            "inputSchema": _INPUT,
            "outputSchema": _OUTPUT,
            "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        }
        listed: dict[str, Any] = {"tools": [tool]}
        if stateless:
            listed |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return listed

    # A call

    async def _call(
        self, params: Mapping[str, Any], meta: Mapping[str, Any], client: object, stateless: bool
    ) -> Mapping[str, Any]:
        if params.get("name") != TOOL:
            said = f"there is no tool {params.get('name')!r}; there is {TOOL}"
            raise BadRequest(wire.INVALID_PARAMS, said)
        state = params.get("requestState")
        try:
            if stateless and state is not None:
                turn = await self._resumed(state, params.get("inputResponses"))
            else:
                turn = await self._started(params.get("arguments"), can_elicit(client))
        except BargeinError as error:
            return _error(str(error))
        turn.on_progress = self._progress_of(meta.get("progressToken"))
        handed_over = False
        try:
            while True:
                step = await turn.next()
                if isinstance(step, TurnEnd):
                    return _result(turn.session.id, step)
                if stateless:
                    handed_over = True
                    return self._input_required(turn, step)
                await turn.answer(step.id, await self._ask(step))
        finally:
            turn.on_progress = None
            if not handed_over:
                # A call that was cancelled stops its turn; a turn that is over does not notice.
                turn.cancel()

    async def _started(self, arguments: object, can_ask: bool) -> ServedTurn:
        given = arguments if isinstance(arguments, dict) else {}
        task, named = given.get("task"), given.get("session")
        if not isinstance(task, str) or not task.strip():
            raise UserError('give the task as a text: {"task": "..."}')
        if named is not None:
            check_texts(session=named)
        if self._turns >= TURNS_MAX:
            raise UserError(
                f"{self._turns} tasks are under way, which is the limit; wait for a result"
            )
        assert self._tasks is not None
        turn = ServedTurn(await self._open_session(named))
        self._turns += 1
        self._tasks.start_soon(self._run, turn, task, can_ask)
        return turn

    async def _run(self, turn: ServedTurn, task: str, can_ask: bool) -> None:
        try:
            await turn.run(task, can_ask=can_ask)
        finally:
            self._turns -= 1

    def _progress_of(self, token: object) -> Callable[[str], None] | None:
        if not isinstance(token, int | str):
            return None
        number, told_at = 0, 0.0

        def tell(words: str) -> None:
            nonlocal number, told_at
            now = anyio.current_time()
            if now - told_at < PROGRESS_S:
                return
            number, told_at = number + 1, now
            note = {"progressToken": token, "progress": number, "message": words[:500]}
            self._send(wire.notification("notifications/progress", note), True)

        return tell

    # Questions

    async def _ask(self, step: TurnQuestion) -> str:
        """Asks by a request of ours, as before 2026-07-28."""
        request_id = f"q-{secrets.token_hex(8)}"
        waiting = self._asked[request_id] = _ClientAnswer()
        answered = False
        try:
            params = elicitation(step.question)
            self._send(wire.request(request_id, "elicitation/create", params), False)
            message = await waiting.wait()
            answered = True
        finally:
            del self._asked[request_id]
            if not answered:
                note = {"requestId": request_id}
                self._send(wire.notification("notifications/cancelled", note), False)
        return answer_in(step.question, wire.parse(message.result))

    def _input_required(self, turn: ServedTurn, step: TurnQuestion) -> Mapping[str, Any]:
        assert self._tasks is not None
        state, patience = secrets.token_urlsafe(24), anyio.CancelScope()
        self._waiting[state] = (turn, step, patience)
        self._tasks.start_soon(self._wait_for_answer, state, turn, patience)
        asked = {"method": "elicitation/create", "params": elicitation(step.question)}
        return {
            "resultType": "input_required",
            "inputRequests": {"answer": asked},
            "requestState": state,
        }

    async def _wait_for_answer(
        self, state: str, turn: ServedTurn, patience: anyio.CancelScope
    ) -> None:
        with patience:
            await anyio.sleep(self._answer_s)
            del self._waiting[state]
            turn.cancel()

    async def _resumed(self, state: object, responses: object) -> ServedTurn:
        found = self._waiting.pop(state, None) if isinstance(state, str) else None
        if found is None:
            raise UserError("the agent no longer waits for this answer; give the task again")
        turn, step, patience = found
        patience.cancel()
        given = responses.get("answer") if isinstance(responses, dict) else None
        await turn.answer(step.id, answer_in(step.question, given))
        return turn


class _ClientAnswer:
    """Waits for the client's answer to one request of ours."""

    def __init__(self) -> None:
        self._came = anyio.Event()
        self._message = Incoming()

    def put(self, message: Incoming) -> None:
        self._message = message
        self._came.set()

    async def wait(self) -> Incoming:
        await self._came.wait()
        return self._message


PARSE_ERROR: Final = -32700
INTERNAL_ERROR: Final = -32603


def _result(session: str, end: TurnEnd) -> Mapping[str, Any]:
    if end.failed:
        return {**_error(end.text), "_meta": {"bargein/session": session}}
    structured = {"session": session, "outcome": end.outcome, "text": end.text}
    return {
        "content": [{"type": "text", "text": end.text}],
        "structuredContent": msgspec.to_builtins(structured),
    }


def _error(text: str) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}
