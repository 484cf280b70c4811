"""What a turn is saying: streamed by a model, or emitted by an agent of the user's own.

It is shown to whoever watches as it comes, checkpointed about once a second, and kept until it is
in the log as said. What a stop, a failure or a crash leaves unsaid is kept and marked.
"""

from bargein.contracts.event import AssistantSaid, TextCheckpoint
from bargein.contracts.live import AnswerSoFar, AnswerVoid, ReasoningDelta, TextDelta
from bargein.contracts.model import (
    AssistantMessage,
    Part,
    ReasoningPart,
    RetryingPart,
    Text,
    TextPart,
    Usage,
)
from bargein.session.answer import Answer
from bargein.session.host import Host
from bargein.session.transcript import kept_of


class Speech:
    """`text` is the turn's answer so far, as its result gives it."""

    def __init__(self, host: Host, turn_id: str) -> None:
        self.text = ""
        self.usage = Usage()
        self._host = host
        self._turn_id = turn_id
        self._answer: Answer | None = None
        self._model = ""
        self._emitted: list[str] = []
        self._said = ""
        self._saved_at = 0.0
        self._saved_characters = 0

    @property
    def so_far(self) -> AnswerSoFar | None:
        """What has been shown and is not on its way to the log."""
        text, reasoning = "".join(self._emitted), ""
        if self._answer is not None:
            text, reasoning = self._answer.text, self._answer.reasoning
        return AnswerSoFar(self._turn_id, text, reasoning) if text or reasoning else None

    def begin(self, answer: Answer, model: str) -> None:
        """A model is asked. What was left unsaid before comes first."""
        self.flush()
        self._answer, self._model = answer, model
        self.usage = Usage()
        self._begin_saving()

    def add(self, part: Part) -> None:
        assert self._answer is not None
        self._answer.add(part)
        if isinstance(part, TextPart):
            self._host.emit(TextDelta(self._turn_id, part.text))
        elif isinstance(part, ReasoningPart):
            self._host.emit(ReasoningDelta(self._turn_id, part.text))
        elif isinstance(part, RetryingPart):
            self._host.emit(AnswerVoid(self._turn_id, part.cause, part.delay_s, part.model))
            if self._saved_characters:
                self._host.log(TextCheckpoint(self._turn_id, "", void=True))
                self._saved_characters = 0
        self._save_if_due()

    def emit(self, text: str) -> None:
        if self._answer is not None or not self._emitted:
            self.flush()
            self._begin_saving()
            self.text = ""
        self.text += text
        self._emitted.append(text)
        self._host.emit(TextDelta(self._turn_id, text))
        self._save_if_due()

    def finish(self, text: str) -> None:
        """The whole answer, in place of what was emitted of it."""
        if self._answer is not None:
            self.flush()
        self._emitted = []
        self.text = text
        if text and text != self._said:
            self._log(AssistantSaid(self._turn_id, AssistantMessage((Text(text),))))

    def flush(self) -> None:
        """Put what is unsaid into the log, as it stands."""
        said = self.unsaid(whole=True)
        if said is not None:
            self._log(said)

    def unsaid(self, *, whole: bool) -> AssistantSaid | None:
        """What has been said and is not in the log. `whole`: what was emitted is all of it."""
        answer, self._answer = self._answer, None
        emitted, self._emitted = "".join(self._emitted), []
        if answer is not None:
            message = answer.message() if answer.whole else kept_of(answer.message())
            self.text = answer.text
            said = AssistantSaid(
                self._turn_id, message, self._model, self.usage, partial=not answer.whole
            )
            return said if message.content else None
        if emitted:
            return AssistantSaid(
                self._turn_id, AssistantMessage((Text(emitted),)), partial=not whole
            )
        return None

    def _log(self, said: AssistantSaid) -> None:
        self._said = self.text
        self._host.log(said)

    def _begin_saving(self) -> None:
        self._saved_at, self._saved_characters = self._host.clock.now(), 0

    def _save_if_due(self) -> None:
        now = self._host.clock.now()
        if now - self._saved_at < self._host.limits.checkpoint_s:
            return
        text = self._answer.text if self._answer is not None else "".join(self._emitted)
        if len(text) > self._saved_characters:
            self._host.log(TextCheckpoint(self._turn_id, text[self._saved_characters :]))
            self._saved_at, self._saved_characters = now, len(text)
