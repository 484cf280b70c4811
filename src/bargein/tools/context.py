"""`ToolContext`: what a tool gets besides its arguments.

The engine passes it to a parameter annotated `ToolContext`:

    @tool
    async def deploy(target: str, context: ToolContext) -> str:
        \"\"\"Deploy the current build.\"\"\"
        answer = await context.ask(f"Deploy to {target}?", choices=("yes", "no"))
        ...

`ToolContext[Deps]` gives `context.deps` a type: the object passed as `Agent(deps=...)`.

Everything a context offers belongs to its call. Output that arrives after the call is dropped, and
stopping the call also stops the calls it made through `call`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, final

import msgspec

from bargein.calls.pipeline import invoke
from bargein.calls.text import left_out
from bargein.calls.words import NO_BACKGROUND
from bargein.cancel import Token
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.contracts.model import Text, ToolCall, ToolSchema
from bargein.contracts.permission import PermissionMode
from bargein.contracts.tool import (
    CallContext,
    CallNotes,
    CallResult,
    CallStatus,
    ChildReport,
    ChildTask,
    Question,
    StopDetail,
    Toolbox,
)
from bargein.errors import ModelMisbehaved, UserError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from bargein.process import Process, StopReport
    from bargein.tools.commands import Commands, Ran
    from bargein.tools.tool_environment import ToolEnvironment

    # The default, which Python has from 3.13 on, lets a plain `ToolContext` pass strict checkers.
    Deps_co = TypeVar("Deps_co", covariant=True, default=object)
else:
    from typing import TypeVar

    Deps_co = TypeVar("Deps_co", covariant=True)

WAITING_CHARS_MAX = 1 << 20


@final
class ToolContext(Generic[Deps_co]):
    """The running call, as its tool sees it."""

    def __init__(
        self,
        given: CallContext,
        record: CallNotes,
        below: Toolbox,
        tool_environment: "ToolEnvironment | None" = None,
        deps: Any = None,
    ) -> None:
        self.call_id = given.call_id
        self.session_id = given.session_id
        self.token: Token = record.token
        """Governs the call and everything it starts."""
        self.session_token = given.session_token
        """Ends with the session, or when the whole session is stopped."""
        self._given = given
        self._record = record
        self._below = below
        self._serials = count(1)
        self._thread_id = threading.get_ident()
        self._from_threads = _FromThreads(record.emit)
        self._tool_environment = tool_environment
        self._commands: Commands | None = None
        self._deps: Deps_co = deps

    @property
    def deps(self) -> Deps_co:
        """The object passed as `Agent(deps=...)`: whatever the agent's tools need."""
        return self._deps

    @property
    def read_only(self) -> bool:
        """Whether the session is in `plan` mode now: the call must change nothing."""
        permits = self._given.permits
        return permits is not None and permits.mode is PermissionMode.PLAN

    def emit(self, text: str) -> None:
        """Shows live output to everybody who watches. Any thread may call it; it never waits or
        fails.

        If the call is stopped, the model sees the emitted text as the output so far.
        """
        if threading.get_ident() == self._thread_id:
            self._record.emit(text)
        else:
            self._from_threads.put(text)

    async def ask(self, text: str, *, choices: Sequence[str] = (), detail: str = "") -> str:
        """Asks the user a question and waits for the answer. A stop of the call ends the wait."""
        question = Question(text, choices=tuple(choices), detail=detail)
        return await self._given.ask(question, self.token)

    async def delegate(
        self, tasks: Sequence[ChildTask], *, detached: bool = False
    ) -> tuple[ChildReport, ...]:
        """Runs sub-agents below this call and waits for them. Detached ones outlive the call, and
        their results arrive later as messages."""
        if self._given.delegate is None:
            raise ModelMisbehaved("there are no sub-agents here; do it yourself")
        return await self._given.delegate(tasks, self.token, detached=detached)

    @property
    def can_detach(self) -> bool:
        """Whether this call can move to the background of its session."""
        return self._given.background is not None

    def detach(self, told: str) -> bool:
        """Moves this call to the background of its session. The model gets `told` as the call's
        result now, stopping the turn leaves the call alone, and the value it finally returns
        arrives as a message.

        Returns False if the call is being stopped or is already in the background. Raises
        `ModelMisbehaved` if the call has no session or was made by another call. Only for
        `async def` tools.
        """
        if threading.get_ident() != self._thread_id:
            raise UserError("context.detach is for tools that are `async def`, not for threads")
        if self._given.background is None:
            raise ModelMisbehaved(NO_BACKGROUND)
        result = CallResult(CallStatus.DETACHED, (Text(told),), "in the background")
        return self._given.background.enter(result)

    def outcome_is_known(self) -> None:
        """Records that the model has already seen how this call ended, so that no message repeats
        it. Call it in the event loop only."""
        if self._given.background is not None:
            self._given.background.outcome_is_known()

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, token: Token | None = None
    ) -> CallResult:
        """Calls another tool under the same policy, below this call's token or a child of it."""
        text = msgspec.json.encode(dict(arguments or {})).decode()
        call = ToolCall(f"{self.call_id}.{next(self._serials)}", name, text)
        inner = msgspec.structs.replace(
            self._given,
            call_id=call.id,
            token=token or self.token,
            emit=self._record.emit,
            background=None,
            record=None,
        )
        result = await invoke(self._below, call, inner)
        if result.stop is not None:
            self._record.add_stop(result.stop)
        return result

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,  # noqa: A002 - as `subprocess.run` has it
        timeout_s: float | None = None,
    ) -> "Ran":
        """Runs a command to its end. `command` is text for the shell, or a list of arguments.

        The command and everything it starts belong to the call: a stop ends them and the receipt
        names them. Its output is shown live. `cwd` is relative to the workspace, `env` is added to
        the environment of commands, and `timeout_s` ends the command early (`Ran.timed_out`).
        Processes that it leaves running when it ends are ended too.
        """
        return await self._starter().run(
            command, cwd=cwd, env=env, given=input, timeout_s=timeout_s
        )

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "Process":
        """Starts a command to talk to while the call runs: `write`, `wait`, `output`, `stop`.

        Otherwise like `run`. The command ends with the call at the latest.
        """
        return await self._starter().start(command, cwd=cwd, env=env)

    async def sweep_commands(self) -> "tuple[StopReport, ...]":
        """Ends the commands of `start`. The registry calls it when the call is over."""
        return await self._commands.sweep() if self._commands is not None else ()

    def begin_end_of_commands(self) -> None:
        """Starts ending them without waiting, for callers that cannot wait."""
        if self._commands is not None:
            self._commands.begin_end()

    def _starter(self) -> "Commands":
        if self._tool_environment is None:
            raise UserError("this registry cannot start commands; pass tool_environment=... to it")
        if self._commands is None:
            from bargein.tools.commands import Commands

            self._commands = Commands(self._tool_environment, self)
        return self._commands

    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools that `call` can call."""
        return self._below.schemas()

    def show_live(self, text: str) -> None:
        """Like `emit`, for a tool that keeps its own output and registers it with `output_from`.
        Call it in the event loop only."""
        self._record.show_live(text)

    def output_from(self, read: Callable[[], str]) -> None:
        """Sets where to read the output so far, if emitted text is not it. Event loop only."""
        self._record.read_output_from(read)

    def stopping_s(self) -> float:
        """Seconds since the call was told to stop; 0 if it was not. Event loop only."""
        return self._record.stopping_s()

    def note_stop(self, detail: StopDetail) -> None:
        """Adds the processes of this call that were ended to the receipt. Event loop only."""
        self._record.add_stop(detail)

    def nothing_was_begun(self) -> None:
        """Records that a call that is being stopped had not done anything yet. Event loop only."""
        self._record.nothing_was_begun()


class _FromThreads:
    """Brings text from threads into the event loop: in order, batched once per loop iteration, and
    bounded. Text beyond the bound is dropped and counted."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._caller = loop_caller()
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._waiting_chars = 0
        self._left_out = 0

    def put(self, text: str) -> None:
        with self._lock:
            is_first = not self._waiting and not self._left_out
            if self._waiting_chars + len(text) <= WAITING_CHARS_MAX:
                self._waiting.append(text)
                self._waiting_chars += len(text)
            else:
                self._left_out += len(text)
        if is_first:
            call_if_open(self._caller, self._take)

    def _take(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            dropped, self._left_out = self._left_out, 0
            self._waiting_chars = 0
        for text in waiting:
            self._emit(text)
        if dropped:
            self._emit(left_out(dropped, "characters"))
