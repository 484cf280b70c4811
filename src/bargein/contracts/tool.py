"""The seam between a session and its tools. Plain data and Protocols; no I/O.

A call goes through three steps, so that the session can be durable between them:

1. `Toolbox.plan(call)` reads the arguments and decides, without any effect: either `Refused` (a
   sentence that helps the model) or a `PlannedCall` that tells its effect, its resources and
   whether the user has to approve it.
2. The session asks for the approval if there must be one, and writes down that the call starts.
3. `Toolbox.run(planned, context)` runs it. It returns a `CallResult` in every case; a cancel of
   `context.token` ends it within its bound, and the result says truthfully what became of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from bargein.cancel import Token
from bargein.contracts.model import Image, Text, ToolCall, ToolSchema
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
    DENY = "deny"


class Question(Value, frozen=True):
    """Something the user is asked. `choices` empty means free text."""

    text: str
    kind: QuestionKind = QuestionKind.QUESTION
    choices: tuple[str, ...] = ()
    detail: str = ""


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
    """A call that cannot be run as it was asked for; `content` helps the model to do better."""

    content: str


class PlannedCall(msgspec.Struct, frozen=True):
    """A call with its arguments understood. `prepared` is the toolbox's own business. `grace_s`:
    how long it may take to stop, if longer than usual (`contracts.grace`)."""

    call: ToolCall
    effect: Effect
    title: str
    resources: tuple[str, ...] = ()
    approval: Question | None = None
    prepared: object = None
    grace_s: float = 0.0


class CallContext(msgspec.Struct, frozen=True):
    """What a running call is given.

    `token` governs the call and everything it starts. `session_token` ends with the session, or
    when all of it is stopped. `emit` shows live output to whoever watches, never waits and never
    fails. `ask` puts a question to the user and waits for the answer under `token`. `delegate`
    begins sub-agents, where there are any. `background` is None for a call that was made by
    another call, and where there is no session: such a call cannot outlive its caller.
    """

    call_id: str
    session_id: str
    token: Token
    session_token: Token
    emit: Callable[[str], None]
    ask: Callable[[Question, Token], Awaitable[str]]
    delegate: Delegate | None = None
    background: Background | None = None


class Toolbox(Protocol):
    def schemas(self) -> tuple[ToolSchema, ...]: ...

    def plan(self, call: ToolCall) -> PlannedCall | Refused: ...

    async def run(self, planned: PlannedCall, context: CallContext) -> CallResult: ...
