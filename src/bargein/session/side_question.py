"""Side questions: the model answers from a copy of the conversation, beside the running turn.

What holds:

- It has no effect on the session: the turn goes on, no message is taken, no tool runs, and neither
  question nor answer is in the log or in the model's later view. Only its usage is counted.
- The copy is the conversation as it is now, with the text that is streaming; calls that run have
  the result "still running".
- A side question has a bound of time and of tokens, and a session has at most a few at once.
- A cancel of the caller, `interrupt(scope="side")`, a stop of the session and the end of the
  program end it at once.
"""

from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from bargein.calls import words
from bargein.cancel import CancelSource, Cause, Outcome
from bargein.cancel.latch import Latch
from bargein.contracts.budget import Purpose, Spent
from bargein.contracts.event import Recorded
from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    RetryingPart,
    Text,
    TextPart,
    Usage,
    UserMessage,
)
from bargein.contracts.receipt import StepKind, StoppedStep
from bargein.contracts.tool import CallStatus
from bargein.contracts.value import Value
from bargein.errors import UserError, WorldError
from bargein.session.side_request import CHARACTERS_MAX, MakeSideRequest, OpenRequest
from bargein.session.steps import ms_since_cancel
from bargein.session.transcript import Transcript
from bargein.session.watching import tell_pages

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.engine import SessionEngine

SIDE_S = 120.0
SIDE_GRACE_S = 0.5
SIDE_AT_ONCE_MAX = 4
ID_BYTES = 8
QUESTION_CHARACTERS_MAX = 20_000


class SideAnswer(Value, frozen=True):
    """The answer to a side question. `stopped`: somebody stopped it, and `text` is what had come
    until then."""

    id: str
    text: str
    model: str = ""
    usage: Usage = Usage()
    stopped: bool = False


class SideRun:
    """A side question that is being answered."""

    def __init__(self, session_id: str, question_id: str, source: CancelSource) -> None:
        self.session_id = session_id
        self.id = question_id
        self.source = source
        self.request: OpenRequest | None = None
        self.text: list[str] = []
        self.model = ""
        self.over = Latch()

    @property
    def usage(self) -> Usage:
        return self.request.usage if self.request is not None else Usage()

    def step(self) -> StoppedStep:
        since_ms = ms_since_cancel(self.source.token)
        return StoppedStep(
            StepKind.MODEL,
            self.model,
            CallStatus.STOPPED,
            since_ms,
            summary="side question stopped",
            usage=self.usage,
        )

    @property
    def spent(self) -> Spent:
        return Spent().with_request(self.usage)

    async def main(
        self, make: MakeSideRequest, engine: "SessionEngine", actor: "Actor", question: str
    ) -> str:
        """Ask the model, and return its words."""
        token = self.source.token
        messages, instructions = await _copy_of(engine, actor)
        model, request = await make(with_question(messages, question), instructions, token)
        self.model = model.name
        self.request = OpenRequest("", model, Purpose.SIDE)
        characters = 0
        async with model.open(request, token) as stream:
            self.request.stream = stream
            async for part in stream:
                if isinstance(part, RetryingPart):
                    self.text, characters = [], 0
                elif isinstance(part, TextPart):
                    self.text.append(part.text)
                    characters += len(part.text)
                    if characters > CHARACTERS_MAX:
                        break
        token.check()
        return "".join(self.text).strip()


async def ask_aside(
    engine: "SessionEngine", actor: "Actor", question: str, question_id: str | None
) -> SideAnswer:
    """Have a side question answered. Raises the model's error if it fails."""
    make = actor.side_request
    if make is None:
        raise UserError("this engine runs a user-written agent, which cannot answer side questions")
    if actor.run is not None or actor.session_id != actor.root:
        raise UserError("a sub-agent takes no side questions; ask the session that started it")
    if not question.strip() or len(question) > QUESTION_CHARACTERS_MAX:
        raise UserError(
            f"the side question has {len(question)} characters; give it 1 to "
            f"{QUESTION_CHARACTERS_MAX}"
        )
    run = _begin(engine, actor, question_id)
    try:
        outcome: Outcome[str] = await actor.owner.run(
            partial(run.main, make, engine, actor, question),
            token=run.source.token,
            grace_s=SIDE_GRACE_S,
            name=f"side question {run.id}",
        )
    finally:
        run.source.seal()
        del engine.side_runs[(actor.session_id, run.id)]
        if run.request is not None and not actor.gone.is_set:
            actor.log(run.request.used)
        run.over.set()
    return _answer_of(run, outcome)


def _begin(engine: "SessionEngine", actor: "Actor", question_id: str | None) -> SideRun:
    running = [run_id for session, run_id in engine.side_runs if session == actor.session_id]
    if len(running) >= SIDE_AT_ONCE_MAX:
        raise UserError(
            f"{len(running)} side questions are being answered, which is the limit; "
            "wait for an answer"
        )
    # Never given twice: a late stop for one that is over must not reach another one.
    question_id = question_id or f"b{token_hex(ID_BYTES)}"
    if question_id in running:
        raise UserError(f"side question {question_id!r} is being answered; give another id")
    source = actor.lifetime.token.child(f"side question {question_id}", timeout_s=SIDE_S)
    # The session must not leave memory meanwhile.
    actor.used_at = actor.clock.now()
    run = engine.side_runs[(actor.session_id, question_id)] = SideRun(
        actor.session_id, question_id, source
    )
    return run


def _answer_of(run: SideRun, outcome: Outcome[str]) -> SideAnswer:
    reason = run.source.token.reason
    if outcome.error is not None and reason is None:
        raise outcome.error
    if reason is not None and reason.root.cause is Cause.DEADLINE:
        raise WorldError(f"the side question took longer than {SIDE_S:g} s", retryable=True)
    text = outcome.value if outcome.value is not None else "".join(run.text).strip()
    return SideAnswer(run.id, text, run.model, run.usage, stopped=reason is not None)


async def _copy_of(engine: "SessionEngine", actor: "Actor") -> tuple[tuple[ModelMessage, ...], str]:
    """Return the conversation as it is now, and the instructions that came with a history."""
    transcript = actor.logbook.loaded or await _read_transcript(engine, actor.session_id)
    messages = transcript.messages_now(words.STILL_RUNNING)
    turn = actor.turn
    so_far = turn.speech.so_far if turn is not None else None
    if so_far is not None and so_far.text.strip():
        messages = (*messages, AssistantMessage((Text(so_far.text),)))
    return messages, transcript.instructions


async def _read_transcript(engine: "SessionEngine", session_id: str) -> Transcript:
    transcript = Transcript()

    def add(recorded: Recorded) -> None:
        transcript.apply(recorded.event, recorded.seq)

    await tell_pages(engine.events, session_id, add)
    return transcript


def with_question(messages: tuple[ModelMessage, ...], question: str) -> tuple[ModelMessage, ...]:
    asked = (Text(words.SIDE_QUESTION), Text(question))
    last = messages[-1] if messages else None
    if isinstance(last, UserMessage):
        # Some providers refuse two messages of the user in a row.
        return (*messages[:-1], msgspec.structs.replace(last, content=(*last.content, *asked)))
    return (*messages, UserMessage(asked))
