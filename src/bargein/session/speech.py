"""The text of a turn while it streams: from a model, or emitted by a user-written agent.

Watchers see it as it comes. The log gets a checkpoint about once a second, and the whole text when
it is complete. After a stop, a failure or a crash the text so far is kept and marked.
"""

from bargein.contracts.event import AssistantSaid, TextCheckpoint
from bargein.contracts.live import AnswerSoFar, AnswerVoid, ReasoningDelta, TextDelta
from bargein.contracts.model import (
    AssistantMessage,
    CallPart,
    EndPart,
    Part,
    Reasoning,
    ReasoningPart,
    RetryingPart,
    StopReason,
    Text,
    TextPart,
    ToolCall,
    Usage,
)
from bargein.session.host import TurnHost
from bargein.session.transcript import kept_of


class Speech:
    """`text` is the turn's answer so far, as its result gives it."""

    def __init__(self, host: TurnHost, turn_id: str) -> None:
        self.text = ""
        self.usage = Usage()
        self._host = host
        self._turn_id = turn_id
        self._answer: StreamedAnswer | None = None
        self._model = ""
        self._emitted: list[str] = []
        self._said = ""
        self._saved_at = 0.0
        self._saved_characters = 0

    @property
    def so_far(self) -> AnswerSoFar | None:
        """The text that watchers have seen and that is not on its way to the log."""
        text, reasoning = "".join(self._emitted), ""
        if self._answer is not None:
            text, reasoning = self._answer.text, self._answer.reasoning
        return AnswerSoFar(self._turn_id, text, reasoning) if text or reasoning else None

    def begin(self, answer: "StreamedAnswer", model: str) -> None:
        """Begin the answer of a model. Text that is not yet in the log is logged first."""
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
        """Log the whole answer, in place of the emitted text."""
        if self._answer is not None:
            self.flush()
        self._emitted = []
        self.text = text
        if text and text != self._said:
            self._log(AssistantSaid(self._turn_id, AssistantMessage((Text(text),))))

    def flush(self) -> None:
        """Log the text so far, if it is not in the log."""
        said = self.unsaid(whole=True)
        if said is not None:
            self._log(said)

    def unsaid(self, *, whole: bool) -> AssistantSaid | None:
        """Return the event for text that is not in the log. `whole`: emitted text is complete."""
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


class StreamedAnswer:
    """One streaming answer of a model: parts go in, an assistant message comes out, whole or cut.

    It makes the ids of calls unique in the session, because providers repeat theirs.
    """

    def __init__(self, id_prefix: str) -> None:
        self._id_prefix = id_prefix
        self.stop: StopReason | None = None
        self._clear()

    def _clear(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._signature: str | None = None
        self._calls: dict[int, list[str]] = {}
        self._names: dict[int, str] = {}

    @property
    def whole(self) -> bool:
        return self.stop is not None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def add(self, part: Part) -> None:
        if isinstance(part, TextPart):
            self._text.append(part.text)
        elif isinstance(part, ReasoningPart):
            self._reasoning.append(part.text)
            self._signature = part.signature or self._signature
        elif isinstance(part, CallPart):
            self._calls.setdefault(part.index, []).append(part.arguments)
            if part.name:
                self._names[part.index] = part.name
        elif isinstance(part, RetryingPart):
            self._clear()
        elif isinstance(part, EndPart):
            self.stop = part.stop

    def message(self) -> AssistantMessage:
        content: list[Text | Reasoning | ToolCall] = []
        if self._reasoning or self._signature:
            content.append(Reasoning("".join(self._reasoning), self._signature))
        if self.text:
            content.append(Text(self.text))
        for number, index in enumerate(sorted(self._calls), 1):
            arguments = "".join(self._calls[index])
            name = self._names.get(index, "")
            content.append(ToolCall(f"{self._id_prefix}_{number}", name, arguments))
        return AssistantMessage(tuple(content))
