"""A tool of an MCP server: sends its calls, shows their progress, and stops them.

A stop has four steps, of which `McpConnection.stop` takes the first three:

1. Tell the server, in the way of its era and transport.
2. Wait for its reaction, within the grace. Later answers are dropped.
3. Check whether it still responds. If it does, leave it alone, because others use it; if not, its
   setting `on_stop` decides.
4. Say in the receipt what is known.

A call is sent once. If the connection is lost meanwhile, the result says that the outcome is
unknown.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import msgspec

from bargein.calls.text import one_line
from bargein.calls.words import refused
from bargein.contracts.model import Text, ToolSchema
from bargein.contracts.tool import (
    CallContext,
    CallNotes,
    CallResult,
    CallStatus,
    Question,
    StopDetail,
)
from bargein.mcp import wire
from bargein.mcp.connection import McpConnection
from bargein.mcp.elicitation import elicit
from bargein.mcp.errors import McpError, NotSent, Rejected, ServerDown
from bargein.mcp.header_values import values_for
from bargein.mcp.life import ServerLife
from bargein.mcp.listing import ListedTool
from bargein.mcp.pending import PendingRequest, ProgressNote, RpcAnswer
from bargein.mcp.results import call_result
from bargein.mcp.server import McpServer
from bargein.mcp.stopping import (
    NOT_SENT,
    restart_detail,
    restarted_words,
    told_detail,
    when_stopped,
)
from bargein.mcp.tasks import RemoteTask, TaskNote, TaskState, outcome, task_in
from bargein.mcp.wire import Incoming

ROUNDS_MAX: Final = 8
"""How often a server may end a call to ask the user something before it goes on."""
RESTART_S: Final = 0.6
PROGRESS_S: Final = 0.1
"""Progress is shown this often at most; the rest of a flood is dropped."""
GRACE_S: Final = 1.3


class _OutOfTime(Exception):
    """The server did not answer within the time limit of a call."""


class McpTool:
    """`life_of` returns the server's life for the principal of a session."""

    def __init__(
        self, server: McpServer, listed: ListedTool, life_of: Callable[[str], ServerLife]
    ) -> None:
        self._server = server
        self._listed = listed
        self._life_of = life_of
        name, description = listed.offered_as, listed.description
        self.schema = ToolSchema(name, description, msgspec.Raw(listed.schema))
        self.grace_s = GRACE_S

    def title_of(self, arguments: Mapping[str, object]) -> str:
        shown = ", ".join(
            f"{name}: {one_line(str(value), 60)}" for name, value in arguments.items()
        )
        title = self._listed.title or self._listed.name
        return one_line(f"{self._server.name} {title}({shown})", 120)

    async def run(self, arguments: Mapping[str, object], context: CallContext) -> CallResult:
        life = self._life_of(context.session_id)
        assert context.record is not None
        connection: McpConnection | None = None
        try:
            with context.token.scope():
                connection = await life.connected()
        except McpError as error:
            return refused(f"Not started: {error}")
        context.token.check()
        assert connection is not None
        call = _Call(life, connection, self._listed, context, context.record)
        return await call.run(dict(arguments))


class _Call:
    def __init__(
        self,
        life: ServerLife,
        connection: McpConnection,
        listed: ListedTool,
        context: CallContext,
        record: CallNotes,
    ) -> None:
        self._life = life
        self._server = life.server
        self._connection = connection
        self._listed = listed
        self._context = context
        self._record = record
        self._left_s = life.server.tool_timeout_s
        self._limit = anyio.CancelScope()
        self._stopped: StopDetail | None = None
        self._progress = ""
        self._shown_at = 0.0
        record.read_output_from(lambda: self._progress)

    async def run(self, arguments: dict[str, Any]) -> CallResult:
        try:
            return await self._run(arguments)
        except _OutOfTime:
            limit_s = self._server.tool_timeout_s
            said = (
                f"Stopped: its time limit of {limit_s:g} s was reached. {self._record.when_stopped}"
            )
            summary = f"stopped after {limit_s:g} s"
            return CallResult(CallStatus.STOPPED, (Text(said),), summary, self._stopped)

    async def _run(self, arguments: dict[str, Any]) -> CallResult:
        params: dict[str, Any] = {"name": self._listed.name, "arguments": arguments}
        for _ in range(ROUNDS_MAX):
            answer = await self._request(params)
            if answer.lost is not None:
                return self._lost(answer.lost)
            if answer.error is not None:
                error = answer.error
                raise Rejected(self._server.name, error.code, one_line(error.message, 1000))
            assert answer.result is not None
            result = wire.parse_object(answer.result)
            kind = result.get("resultType", "complete")
            if kind == "complete":
                return call_result(result)
            if kind == "task":
                return await self._follow(task_in(self._server.name, result))
            if kind != "input_required":
                raise McpError(self._server.name, f"it answered with {one_line(str(kind))!r}")
            params = await self._with_input(params, result)
        raise McpError(self._server.name, f"it asked for more input {ROUNDS_MAX} times")

    # One request

    async def _request(self, params: dict[str, Any]) -> RpcAnswer:
        """Send it, once, and wait for its answer under the call's token and time limit."""
        connection, token = self._connection, self._context.token
        token.check()
        self._record.begin()
        pending = connection.begin(
            "tools/call",
            connection.era.params(params),
            headers=values_for(self._listed.headers, params["arguments"]),
            session=self._context.session_id,
            label=f"{self._listed.offered_as} of session {self._context.session_id}",
            on_progress=self._show,
        )
        limit = self._limit = anyio.CancelScope(deadline=anyio.current_time() + self._left_s)
        try:
            with token.scope(), limit:
                return await self._answer_to(pending)
        finally:
            self._left_s = limit.deadline - anyio.current_time()
            if pending.open:
                # Also if the task itself is cancelled, by the end of the program.
                with anyio.CancelScope(shield=True):
                    await self._stop(pending)
        if pending.answer is not None:
            # It came at the same moment as the stop.
            return pending.answer
        token.check()
        raise _OutOfTime

    async def _answer_to(self, pending: PendingRequest) -> RpcAnswer:
        while True:
            event = await pending.next()
            if isinstance(event, RpcAnswer):
                return event
            await self._answer_request(event)

    async def _answer_request(self, request: Incoming) -> None:
        params = wire.parse_object(request.params)
        self._connection.respond(request, await elicit(self._server.name, params, self._ask))

    async def _ask(self, question: Question) -> str:
        """The time that the user takes is not the server's."""
        left_s = self._limit.deadline - anyio.current_time()
        self._limit.deadline = float("inf")
        try:
            return await self._context.ask(question, self._context.token)
        finally:
            self._limit.deadline = anyio.current_time() + left_s

    async def _with_input(self, params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """The call again, with what the server wanted to know: this goes on with the same call."""
        asked = result.get("inputRequests")
        responses = await self._answers_to(asked if isinstance(asked, dict) else {})
        again = {"name": params["name"], "arguments": params["arguments"]}
        if responses:
            again["inputResponses"] = responses
        if isinstance(result.get("requestState"), str):
            again["requestState"] = result["requestState"]
        return again

    async def _answers_to(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the user says to each thing that the server wants to know."""
        responses: dict[str, Any] = {}
        for key, request in asked.items():
            if not isinstance(request, dict) or request.get("method") != "elicitation/create":
                raise McpError(
                    self._server.name, "it asks for something that this client cannot do"
                )
            wanted = request.get("params")
            given = wanted if isinstance(wanted, dict) else {}
            with self._context.token.scope():
                responses[key] = await elicit(self._server.name, given, self._ask)
            self._context.token.check()
        return responses

    # A task of the server's

    async def _follow(self, state: TaskState) -> CallResult:
        """Asks for a task until it is over. Each answer has the time limit of a call; the task
        itself may take as long as it likes, and a stop cancels it."""
        token, name = self._context.token, self._server.name
        task = RemoteTask(self._life, state.task)
        answered: set[str] = set()
        await self._keep(task)
        try:
            with token.scope():
                while not state.over:
                    if state.status == "input_required":
                        await self._answer_task(task, state, answered)
                    elif state.message:
                        self._tell(state.message)
                    await anyio.sleep(state.poll_s)
                    state = await task.get_patiently()
        except (ServerDown, Rejected) as lost:
            # It cannot be reached, or no longer knows the task.
            return _unknown(lost)
        finally:
            if not state.over and token.cancelled:
                with anyio.CancelScope(shield=True):
                    await self._stop_task(task)
        token.check()
        return outcome(name, state)

    async def _keep(self, task: RemoteTask) -> None:
        """Stores the task's id with the call. A task that could not be found after a crash must not
        go on."""
        if self._context.keep_note is None:
            return
        kept = False
        try:
            await self._context.keep_note(TaskNote(self._server.name, task.id).encode())
            kept = True
        finally:
            if not kept:
                with anyio.CancelScope(shield=True):
                    await self._stop_task(task)

    async def _answer_task(self, task: RemoteTask, state: TaskState, answered: set[str]) -> None:
        """A server may list a request for a while after it was answered; it is asked once."""
        fresh = {key: each for key, each in state.asked.items() if key not in answered}
        responses = await self._answers_to(fresh)
        if responses:
            answered |= responses.keys()
            await task.update(responses)

    async def _stop_task(self, task: RemoteTask) -> None:
        began = time.monotonic()
        told = await task.stop()
        self._record.when_stopped = when_stopped(self._server.name, told)
        elapsed_ms = (time.monotonic() - began) * 1000
        self._stopped = told_detail(self._server.name, told, elapsed_ms)
        self._record.add_stop(self._stopped)

    def _show(self, progress: ProgressNote) -> None:
        total = f" of {progress.total:g}" if progress.total is not None else ""
        words = f"{progress.message} " if progress.message else ""
        self._tell(one_line(f"{words}({progress.progress:g}{total})", 300))

    def _tell(self, words: str) -> None:
        self._progress = words
        now = time.monotonic()
        if now - self._shown_at >= PROGRESS_S:
            self._shown_at = now
            self._record.show_live(self._progress + "\n")

    # Its end

    def _lost(self, error: McpError) -> CallResult:
        if isinstance(error, Rejected | NotSent):
            raise error
        return _unknown(error)

    async def _stop(self, pending: PendingRequest) -> None:
        began = time.monotonic()
        name, record = self._server.name, self._record
        told = await self._connection.stop(pending)
        elapsed_ms = (time.monotonic() - began) * 1000
        if not told.sent:
            record.when_stopped = NOT_SENT
            record.nothing_was_begun()
            return
        record.when_stopped = when_stopped(name, told)
        is_ours = self._server.is_process
        if told.responds is False and is_ours and self._server.on_stop == "restart":
            others = self._connection.others(pending)
            words = restarted_words(name, others)
            report = await self._life.restart(words, RESTART_S)
            elapsed_ms = (time.monotonic() - began) * 1000
            self._stopped = restart_detail(report, words, elapsed_ms)
        else:
            self._stopped = told_detail(name, told, elapsed_ms)
        record.add_stop(self._stopped)


def _unknown(error: McpError) -> CallResult:
    text = f"Outcome unknown: {error}. The call was not sent again; look before you repeat it."
    return CallResult(CallStatus.UNKNOWN, (Text(text),), f"outcome unknown: {one_line(str(error))}")
