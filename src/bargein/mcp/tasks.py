"""The Tasks extension: a server answers a call with a task, which we poll until it is over.

The task's id is stored with the call before the first poll (`CallContext.keep_note`). If the
connection is lost meanwhile, polling goes on over a new one. A stop sends `tasks/cancel`, and the
status after it shows whether the server confirms. After a crash `LostTasks` fetches the outcome; it
first cancels a task that still runs, because no caller waits for it. A call is never sent again.

    working -> input_required -> working -> completed | failed | cancelled
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from bargein.calls.text import one_line
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.tool import CallResult, CallStatus
from bargein.errors import BargeinError
from bargein.mcp.connection import STOP_GRACE_S, StopAnswer
from bargein.mcp.errors import McpError, Rejected, ServerDown
from bargein.mcp.life import ServerLife
from bargein.mcp.pending import Late
from bargein.mcp.results import call_result
from bargein.mcp.wire import parse_number

if TYPE_CHECKING:
    from bargein.mcp.servers import McpServers

POLL_S: Final = 1.0
POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 30.0
STOP_POLL_S: Final = 0.05
AGAIN_S: Final = 1.0
OVER: Final = ("completed", "failed", "cancelled")


class TaskNote(msgspec.Struct, frozen=True):
    """The note that a call stores, with which a restart finds its task."""

    server: str
    task: str

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


class TaskState(msgspec.Struct, frozen=True):
    """A task as its server last described it."""

    task: str
    status: str
    poll_s: float = POLL_S
    message: str = ""
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] = {}

    @property
    def over(self) -> bool:
        return self.status in OVER


def task_in(server: str, result: Mapping[str, Any], task: str = "") -> TaskState:
    """Reads a task from an answer. Raises `McpError` if there is none in it."""
    named = result.get("taskId", task)
    status = result.get("status")
    if not isinstance(named, str) or not named or not isinstance(status, str):
        raise McpError(server, "it answered with a task that has no id or no status")
    poll_ms = parse_number(result.get("pollIntervalMs"))
    poll_s = poll_ms / 1000 if poll_ms is not None else POLL_S
    final, error, asked = result.get("result"), result.get("error"), result.get("inputRequests")
    return TaskState(
        named,
        status,
        min(max(poll_s, POLL_S_MIN), POLL_S_MAX),
        one_line(str(result.get("statusMessage") or ""), 300),
        final if isinstance(final, dict) else None,
        error if isinstance(error, dict) else None,
        asked if isinstance(asked, dict) else {},
    )


class RemoteTask:
    """One task at its server. Each method is one request, which has no effect but the one it is
    for; all raise `McpError`."""

    def __init__(self, life: ServerLife, task: str) -> None:
        self._life = life
        self._server = life.server.name
        self.id = task

    async def get(self) -> TaskState:
        connection = await self._life.connected()
        answer = await connection.ask("tasks/get", {"taskId": self.id})
        return task_in(self._server, answer, self.id)

    async def get_patiently(self) -> TaskState:
        """The same over a new connection, if the last one was lost, for as long as a call may take
        to answer."""
        deadline = time.monotonic() + self._life.server.tool_timeout_s
        while True:
            try:
                with anyio.fail_after(self._life.server.tool_timeout_s):
                    return await self.get()
            except TimeoutError:
                limit_s = self._life.server.tool_timeout_s
                why = f"it has not said for {limit_s:g} s how the task goes"
                raise ServerDown(self._server, why) from None
            except ServerDown:
                if time.monotonic() + AGAIN_S > deadline:
                    raise
                await anyio.sleep(AGAIN_S)

    async def update(self, responses: Mapping[str, Any]) -> None:
        connection = await self._life.connected()
        await connection.ask("tasks/update", {"taskId": self.id, "inputResponses": responses})

    async def cancel(self) -> None:
        connection = await self._life.connected()
        await connection.ask("tasks/cancel", {"taskId": self.id})

    async def stop(self, grace_s: float = STOP_GRACE_S) -> StopAnswer:
        """Tells the server to cancel the task, and learns what can be learnt within the grace."""
        responds = False
        late = Late.NOTHING
        with anyio.move_on_after(grace_s):
            try:
                await self.cancel()
                responds = True
                state = await self.get()
                while not state.over:
                    await anyio.sleep(STOP_POLL_S)
                    state = await self.get()
                late = Late.ERROR if state.status == "cancelled" else Late.RESULT
            except McpError:
                # What was learnt before stands.
                pass
        return StopAnswer(sent=True, late=late, responds=responds)


def outcome(server: str, state: TaskState) -> CallResult:
    """The result of a task that is over. Raises `Rejected` if the server reports an error."""
    if state.status == "completed":
        return call_result(state.result or {})
    if state.status == "failed":
        error = state.error or {}
        code = error.get("code")
        said = one_line(str(error.get("message") or state.message or "it failed"), 1000)
        raise Rejected(server, code if isinstance(code, int) else 0, said)
    text = f"The MCP server {server} cancelled the task by itself. {state.message}".strip()
    return CallResult(CallStatus.FAILED, (Text(text),), f"cancelled by MCP server {server}")


class LostTasks:
    """`LostCalls` for all servers of an engine."""

    def __init__(self, servers: "Sequence[McpServers]") -> None:
        self._servers = servers

    async def outcome_of(self, session_id: str, call: ToolCall, note: str) -> CallResult | None:
        try:
            kept = msgspec.json.decode(note, type=TaskNote)
        except msgspec.DecodeError:
            return None
        for servers in self._servers:
            if kept.server in servers.names:
                life = servers.life_of_session(kept.server, session_id)
                return await _fetch(kept, RemoteTask(life, kept.task))
        return None


async def _fetch(kept: TaskNote, task: RemoteTask) -> CallResult | None:
    try:
        state = await task.get()
        if not state.over:
            # Nobody waits for it any more. What it has become is asked for all the same.
            await task.cancel()
        while not state.over:
            await anyio.sleep(STOP_POLL_S)
            state = await task.get()
    except BargeinError:
        return None
    began = "[The program ended while this ran. The MCP server"
    if state.status == "cancelled":
        text = (
            f"{began} {kept.server} confirmed that its task is cancelled. It may have happened in "
            "part; look before you repeat it.]"
        )
        return CallResult(CallStatus.STOPPED, (Text(text),), "its task was cancelled after a crash")
    if state.status == "failed":
        said = one_line(str((state.error or {}).get("message") or state.message), 1000)
        text = f"{began} {kept.server} reports that its task failed: {said}]"
        return CallResult(CallStatus.FAILED, (Text(text),), f"failed: {one_line(said)}")
    finished = call_result(state.result or {})
    first = Text(f"{began} {kept.server} finished its task, with this result:]")
    return msgspec.structs.replace(finished, content=(first, *finished.content))
