"""One answer of a model while it streams: what has been said so far, whole or cut off."""

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
)


class Answer:
    """Parts in, an assistant message out. Ids of calls are made unique in the session: providers
    repeat theirs."""

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
