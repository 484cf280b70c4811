"""The seam between the callers of tools and the tools. Data and Protocols; no I/O.

`bargein.calls.pipeline` takes every call through the same steps:

1. `Toolbox.plan(call)` reads the arguments and has no effect. It returns `Refused` with a sentence
   that helps the model, or a `PlannedCall` with the effect, the resources and the approval that
   the call needs.
2. The pipeline asks for the approval if the call needs one. A session then stores that the call
   starts.
3. `Toolbox.run(planned, context)` does the work, in a task that the pipeline can abandon. It
   returns a `CallResult`, raises an error, or raises `Cancelled` when `context.token` is cancelled.
   On the way it notes in `context.record` what it has done.
4. The pipeline makes the result from the outcome and the record, so the result is true even if the
   work never returns.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from bargein.cancel import TaskOwner, Token
from bargein.contracts.model import Image, Text, ToolCall, ToolSchema
from bargein.contracts.permission import Grant, Permits, Reach, Standing
from bargein.contracts.value import Value


class Effect(StrEnum):
    """What a call may change in the world. It decides what is stored before the call runs, and what
    the result says after a stop half-way."""

    NONE = "none"
    IDEMPOTENT = "idempotent"
    UNKNOWN = "unknown"


class CallStatus(StrEnum):
    NOT_STARTED = "not_started"
    """The call was stopped or refused before it began. Nothing happened."""
    FINISHED = "finished"
    """It ran to its end, perhaps because a stop came just too late."""
    FAILED = "failed"
    """It ran and failed by itself; the content says how."""
    STOPPED = "stopped"
    """It was stopped while it ran: it may have happened in part."""
    ABANDONED = "abandoned"
    """It did not stop within its grace. It may still be running; its result is dropped."""
    DETACHED = "detached"
    """It goes on in the background; its outcome comes later as a message."""
    UNKNOWN = "unknown"
    """The program ended while it ran. Its outcome is not known."""


class ProcessEnd(Value, frozen=True):
    """One process that a stop ended, for the receipt."""

    pid: int
    command: str
    ended_by: str
    elapsed_ms: float


class StopDetail(Value, frozen=True):
    """How a call was stopped. `confirmed`: the kernel confirmed that no process is left; of work
    that runs elsewhere, the other side confirmed the stop. `told` says what is known of such work,
    in a few words."""

    elapsed_ms: float
    means: str = ""
    confirmed: bool = True
    processes: tuple[ProcessEnd, ...] = ()
    survivors: tuple[ProcessEnd, ...] = ()
    told: str = ""


class CallResult(Value, frozen=True):
    """The result of a call. The model reads `content`; people read `summary`, a few words such as
    `pytest killed (3 processes)`. `unsuccessful`: the call worked, but the thing that it ran
    failed, such as a command with exit code 3. For the model that is a result like any other, not
    an error of the call; people see that it failed."""

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
    """The choices of a question of kind `APPROVAL`. Any other answer is a no, and the model reads
    the answer as the reason."""

    ALLOW = "allow"
    """Allow this call, once."""
    DENY = "deny"
    SESSION = "session"
    """Allow this call, and until the session ends every call that `Question.grant` covers."""
    ALWAYS = "always"
    """The same for every session in this project."""


class Question(Value, frozen=True):
    """A question to the user. Without `choices` the answer is free text. `grant` is the rule that
    the answers `session` and `always` create. `answerable_by` is the standing that a person needs
    to answer."""

    text: str
    kind: QuestionKind = QuestionKind.QUESTION
    choices: tuple[str, ...] = ()
    detail: str = ""
    grant: Grant | None = None
    answerable_by: Standing = Standing.WRITER


class OpenQuestion(Value, frozen=True):
    """A question that can be answered by its id. Its turn may be over: a question survives a
    restart, and its answer then starts a turn."""

    id: str
    turn: str
    question: Question
    call_id: str = ""


class ChildTask(Value, frozen=True):
    """The task of one sub-agent. `agent` names a kind of sub-agent; empty means one like its
    parent. `tools=None` gives it all tools of its kind; empty `model` and `instructions` are those
    of its kind."""

    task: str
    agent: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    instructions: str = ""
    timeout_s: float | None = None


class ChildReport(Value, frozen=True):
    """The result of a sub-agent; `child` is its session. The parent's model reads the content of
    `result`: what the sub-agent said, even if it was stopped, and what it did."""

    child: str
    task: str
    result: CallResult


class Delegate(Protocol):
    """Starts sub-agents below `token` and waits for them. Detached ones live below the session, and
    nobody waits for them. All of them start or none does; then `ModelMisbehaved` says why."""

    async def __call__(
        self, tasks: Sequence[ChildTask], token: Token, *, detached: bool = False
    ) -> tuple[ChildReport, ...]: ...


class Background(Protocol):
    """A running call's way into the background of its session."""

    def enter(self, told: CallResult) -> bool:
        """Move the call to the background: from now on a stop of its turn does not touch it, and a
        stop of the session ends it. The model gets `told` as the call's result; the outcome comes
        later as a message. Returns False if a stop came first; then the call is being stopped."""
        ...

    def outcome_is_known(self) -> None:
        """Report that the model has already read how the call ended, so no message repeats it."""
        ...


class Refused(Value, frozen=True):
    """A call that cannot run as the model asked for it; `content` tells the model how to correct
    it. People read `why`, a few words; without it, the beginning of `content`."""

    content: str
    why: str = ""


class PlannedCall(msgspec.Struct, frozen=True):
    """A call with parsed arguments. `prepared` belongs to the toolbox. `grace_s`: how long the work
    may take to stop before it is abandoned; 0 lets the caller decide."""

    call: ToolCall
    effect: Effect
    title: str
    resources: tuple[str, ...] = ()
    approval: Question | None = None
    prepared: object = None
    grace_s: float = 0.0
    reaches: Reach | None = None
    """How much the call can change; None derives it from the effect."""
    confined: bool = False
    """In `plan` mode the call can run all the same: it is closed in so that it changes nothing."""

    @property
    def reach(self) -> Reach:
        if self.reaches is not None:
            return self.reaches
        return Reach.NOTHING if self.effect is Effect.NONE else Reach.ANYTHING


class Leftovers(Protocol):
    """Things that a call's work may leave running when it is over, mostly processes."""

    cut_short: bool
    """The call's stop ended some of them, which may be why the work returned."""

    async def sweep(self, *, abandoned: bool) -> str:
        """End them, within a bound. Returns what the model should read about it."""
        ...


class CallNotes(Protocol):
    """What a toolbox notes about a call while it runs. Only `begin` may be called outside of the
    event loop."""

    token: Token
    leftovers: Leftovers | None
    """The pipeline sweeps them when the work is over or was abandoned."""
    when_stopped: str
    """The state of the world after a stop, if the tool knows more than the effect says."""

    def limit(self, timeout_s: float | None) -> None:
        """Set the call's time limit, counted from now."""
        ...

    def begin(self) -> None:
        """Note that the work begins: from now on something may have happened. The pipeline calls
        this before `Toolbox.run`. Any thread may call it."""
        ...

    def nothing_was_begun(self) -> None:
        """Note that nothing has happened yet: a stop before the next `begin` is in time."""
        ...

    def emit(self, text: str) -> None:
        """Show output live and keep it. Output after the call's end is dropped."""
        ...

    def show_live(self, text: str) -> None:
        """Show output live only, for a tool that keeps its output itself."""
        ...

    def read_output_from(self, read: Callable[[], str]) -> None:
        """Set the function that returns the output so far, if that is not what was emitted."""
        ...

    def add_stop(self, detail: StopDetail) -> None:
        """Note what a stop ended, for the receipt."""
        ...

    def stopping_s(self) -> float:
        """The seconds since the call was told to stop; 0 if it was not."""
        ...

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call is over, even if its work still runs."""
        ...


class CallHooks(Protocol):
    """The user's own code around each call. Bounded; a hook that fails is ignored."""

    async def before(self, planned: PlannedCall, token: Token) -> Refused | None: ...

    async def after(self, planned: PlannedCall, result: CallResult, token: Token) -> None: ...


class CallContext(msgspec.Struct, frozen=True):
    """What a call gets from its caller.

    `token` governs the call and everything it starts. `session_token` ends with the session, or
    when all of it is stopped. `emit` shows live output to watchers; it never waits and never fails.
    `ask` puts a question to the user and waits for the answer under `token`. `delegate` starts
    sub-agents, where there are any. `background` is None without a session and for a call made by
    another call: such a call cannot outlive its caller. `hooks` surround the call and the calls
    that it makes. `permits` decides what runs without approval. `owner` owns the task of the call;
    None means the innermost open `TaskOwner`. The pipeline fills in `record`. `keep_note` stores
    what `LostCalls` needs after a crash, durably before it returns; None without a session.
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
    keep_note: Callable[[str], Awaitable[object]] | None = None


class ForeignTool(Protocol):
    """A tool that somebody else runs, such as an MCP server. Nothing that it says of itself decides
    what is asked: its effect is unknown, and it can reach anything."""

    @property
    def schema(self) -> ToolSchema: ...

    @property
    def grace_s(self) -> float:
        """How long a stop of a call may take."""
        ...

    def title_of(self, arguments: Mapping[str, object]) -> str:
        """What people are shown of a call, in a few words."""
        ...

    async def run(self, arguments: Mapping[str, object], context: CallContext) -> CallResult:
        """Do the work, like `Toolbox.run`. Says `begin` to `context.record` when something may
        happen."""
        ...


class LostCalls(Protocol):
    """Learns how calls ended under which the program died."""

    async def outcome_of(self, session_id: str, call: ToolCall, note: str) -> CallResult | None:
        """Returns how the call ended, from the note that it stored; None if that cannot be learnt.
        The caller sets a bound and cancels it then. Nothing is run again."""
        ...


class ForeignTools(Protocol):
    """The tools that others run. They come and go while the program runs."""

    def tools(self) -> Mapping[str, ForeignTool]:
        """Those that are known now, by the names that the model is given."""
        ...

    async def prepare(self, session_id: str, token: Token) -> None:
        """Have them known, before a turn begins. Bounded; a tool that is not there in time comes
        later."""
        ...


class Toolbox(Protocol):
    def schemas(self) -> tuple[ToolSchema, ...]: ...

    def plan(self, call: ToolCall) -> PlannedCall | Refused: ...

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult: ...


class UndoingToolbox(Toolbox, Protocol):
    """A toolbox whose tools may declare how a call of theirs is undone: by another call, which goes
    through the same pipeline."""

    def plan_undo(
        self, call: ToolCall, result: CallResult, call_id: str
    ) -> PlannedCall | Refused | None:
        """Plans the call that undoes `call`, under the id `call_id`. Returns None if its tool
        declares none, or if `result` leaves nothing to undo. Has no effect."""
        ...
