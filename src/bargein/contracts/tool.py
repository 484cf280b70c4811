"""The seam between whoever makes calls and the tools that run them. Data and Protocols; no I/O.

`bargein.calls.pipeline` takes every call through the same steps:

1. `Toolbox.plan(call)` reads the arguments and decides, without any effect: either `Refused` (a
   sentence that helps the model) or a `PlannedCall` that tells its effect, its resources and
   whether the user has to approve it.
2. The pipeline asks for the approval if there must be one; a session writes down that the call
   starts.
3. `Toolbox.run(planned, context)` does the work, in a task that the pipeline can abandon. It
   returns a `CallResult`, raises what went wrong, or raises `Cancelled` when `context.token` is
   cancelled. What it learns on the way it notes in `context.record`.
4. The pipeline makes the result from the outcome and the record, so that it is true also of work
   that never comes back.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from bargein.cancel import TaskOwner, Token
from bargein.contracts.model import Image, Text, ToolCall, ToolSchema
from bargein.contracts.permission import Grant, Permits, Reach, Standing
from bargein.contracts.value import Value


class Effect(StrEnum):
    """What a call may change in the world. Decides what is durable before it runs, and what is
    said of it when it was stopped half-way."""

    NONE = "none"
    IDEMPOTENT = "idempotent"
    UNKNOWN = "unknown"


class CallStatus(StrEnum):
    NOT_STARTED = "not_started"
    """It was stopped or refused before it began. Nothing happened."""
    FINISHED = "finished"
    """It ran to its end, also if a stop came just too late to matter."""
    FAILED = "failed"
    """It ran and failed by itself; the content says how."""
    STOPPED = "stopped"
    """It was stopped while it ran: it may have happened half."""
    ABANDONED = "abandoned"
    """It did not stop within its bound. It may still be running; its result goes nowhere."""
    DETACHED = "detached"
    """It was moved to the background and goes on; its outcome comes later as a message."""
    UNKNOWN = "unknown"
    """The program ended while it ran. Nobody knows what became of it."""


class ProcessEnd(Value, frozen=True):
    """One process that a stop ended, for the receipt."""

    pid: int
    command: str
    ended_by: str
    elapsed_ms: float


class StopDetail(Value, frozen=True):
    """How a call was stopped. `confirmed` is whether the kernel said that nobody is left."""

    elapsed_ms: float
    means: str = ""
    confirmed: bool = True
    processes: tuple[ProcessEnd, ...] = ()
    survivors: tuple[ProcessEnd, ...] = ()


class CallResult(Value, frozen=True):
    """What came of a call. `content` is what the model is shown; `summary` is a few words for
    people, such as `pytest killed (3 processes)`. `unsuccessful`: the call did its work, and what
    it ran reports a failure, such as a command that ended with exit code 3. That is news for the
    model like any other and no error of the call, but people are shown that it did not go well."""

    status: CallStatus
    content: tuple[Text | Image, ...]
    summary: str = ""
    stop: StopDetail | None = None
    unsuccessful: bool = False

    @property
    def is_error(self) -> bool:
        return self.status not in (CallStatus.FINISHED, CallStatus.DETACHED)


class QuestionKind(StrEnum):
    QUESTION = "question"
    APPROVAL = "approval"


class Approval(StrEnum):
    """The choices of a question of kind `APPROVAL`. Any other answer is a no, with the answer as
    the reason that the model is told."""

    ALLOW = "allow"
    """This call, once."""
    DENY = "deny"
    SESSION = "session"
    """This call, and until the session ends all that `Question.grant` says."""
    ALWAYS = "always"
    """The same for every session in this project."""


class Question(Value, frozen=True):
    """Something the user is asked. `choices` empty means free text. `grant` is the rule that the
    answers `session` and `always` make. `answerable_by` says how far whoever answers must be
    trusted."""

    text: str
    kind: QuestionKind = QuestionKind.QUESTION
    choices: tuple[str, ...] = ()
    detail: str = ""
    grant: Grant | None = None
    answerable_by: Standing = Standing.WRITER


class OpenQuestion(Value, frozen=True):
    """A question that can be answered, by its id. Its turn may be over: a question survives a
    restart, and its answer then begins a turn."""

    id: str
    turn: str
    question: Question
    call_id: str = ""


class ChildTask(Value, frozen=True):
    """What one sub-agent is to do. `agent` names a kind of sub-agent, empty for one like its
    parent; `tools` None is all that this kind has; `model` and `instructions` empty are this
    kind's own."""

    task: str
    agent: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    instructions: str = ""
    timeout_s: float | None = None


class ChildReport(Value, frozen=True):
    """What came of a sub-agent; `child` is its session. The content of `result` is for the model
    of its parent: what it said, also if it was stopped, and what it did."""

    child: str
    task: str
    result: CallResult


class Delegate(Protocol):
    """Begins sub-agents below `token`, and waits for them; detached ones live below the session
    and are not waited for. All of them begin or none: `ModelMisbehaved` says why not."""

    async def __call__(
        self, tasks: Sequence[ChildTask], token: Token, *, detached: bool = False
    ) -> tuple[ChildReport, ...]: ...


class Background(Protocol):
    """A running call's way into the background of its session."""

    def enter(self, told: CallResult) -> bool:
        """Move the call there: from now on a stop of its turn leaves it alone, and a stop of the
        session ends it. The model gets `told` as the call's result; the outcome comes later as a
        message. Returns False if a stop came first; then the call is being stopped."""
        ...

    def outcome_is_known(self) -> None:
        """Say that the model has already been shown how the call ended, so that no message tells
        it again."""
        ...


class Refused(Value, frozen=True):
    """A call that cannot be run as it was asked for; `content` helps the model to do better. `why`
    is a few words for people; without it they are shown the beginning of `content`."""

    content: str
    why: str = ""


class PlannedCall(msgspec.Struct, frozen=True):
    """A call with its arguments understood. `prepared` is the toolbox's own business. `grace_s`:
    how long its work may take to stop before it is abandoned; 0 leaves that to whoever makes the
    call."""

    call: ToolCall
    effect: Effect
    title: str
    resources: tuple[str, ...] = ()
    approval: Question | None = None
    prepared: object = None
    grace_s: float = 0.0
    reaches: Reach | None = None
    """What it can change by itself; None is to be told from its effect."""

    @property
    def reach(self) -> Reach:
        if self.reaches is not None:
            return self.reaches
        return Reach.NOTHING if self.effect is Effect.NONE else Reach.ANYTHING


class Leftovers(Protocol):
    """What a call's work may leave running when it is over: processes, mostly."""

    cut_short: bool
    """The stop of the call ended some of it, which may be why the work returned."""

    async def sweep(self, *, abandoned: bool) -> str:
        """End it, within a bound. Returns what the model should read of it."""
        ...


class CallNotes(Protocol):
    """What a toolbox notes of a call while it runs. In the loop only, except for `begin`."""

    token: Token
    leftovers: Leftovers | None
    """Swept by the pipeline when the work is over or was abandoned."""
    when_stopped: str
    """What is true of the world after a stop in time, if the effect alone does not say it."""

    def limit(self, timeout_s: float | None) -> None:
        """Set the call's time limit, from now on."""
        ...

    def begin(self) -> None:
        """Say that the work begins: from now on something may have happened. The pipeline says so
        before `Toolbox.run`. Any thread."""
        ...

    def nothing_was_begun(self) -> None:
        """Say that nothing has happened yet: a stop before the next `begin` is in time."""
        ...

    def emit(self, text: str) -> None:
        """Show output live and keep it. After the call is over it goes nowhere."""
        ...

    def show_live(self, text: str) -> None:
        """Show output live only, for a tool that keeps its output itself."""
        ...

    def read_output_from(self, read: Callable[[], str]) -> None:
        """Name where the output so far is read, if it is not what was emitted."""
        ...

    def add_stop(self, detail: StopDetail) -> None:
        """Note what a stop ended, for the receipt."""
        ...

    def stopping_s(self) -> float:
        """How long ago the call was told to stop; 0 if it was not."""
        ...

    def when_over(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the call is over, though its work may not be."""
        ...


class CallHooks(Protocol):
    """The user's own code around each call. Bounded; one that fails is passed over."""

    async def before(self, planned: PlannedCall, token: Token) -> Refused | None: ...

    async def after(self, planned: PlannedCall, result: CallResult, token: Token) -> None: ...


class CallContext(msgspec.Struct, frozen=True):
    """What a call is given.

    `token` governs the call and everything it starts. `session_token` ends with the session, or
    when all of it is stopped. `emit` shows live output to whoever watches, never waits and never
    fails. `ask` puts a question to the user and waits for the answer under `token`. `delegate`
    begins sub-agents, where there are any. `background` is None for a call that was made by
    another call, and where there is no session: such a call cannot outlive its caller. `hooks`
    surround the call, and the calls that it makes. `permits` is what may run unasked. `owner` is
    the home of the task that it runs in; without one the innermost open `TaskOwner` is. The
    pipeline fills in `record`.
    """

    call_id: str
    session_id: str
    token: Token
    session_token: Token
    emit: Callable[[str], None]
    ask: Callable[[Question, Token], Awaitable[str]]
    delegate: Delegate | None = None
    background: Background | None = None
    hooks: CallHooks | None = None
    owner: TaskOwner | None = None
    permits: Permits | None = None
    record: CallNotes | None = None


class Toolbox(Protocol):
    def schemas(self) -> tuple[ToolSchema, ...]: ...

    def plan(self, call: ToolCall) -> PlannedCall | Refused: ...

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult: ...
