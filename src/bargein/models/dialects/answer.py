"""The base of all decoders: the state of an answer while it is decoded, and how it is closed."""

from bargein.contracts.model import (
    CallPart,
    EndPart,
    Part,
    ReasoningPart,
    StopReason,
    TextPart,
    Usage,
    UsagePart,
)
from bargein.models.dialects.faults import FaultKind, StreamFault


class AnswerDecoder:
    """`stop` is the provider's reason to stop, as one of ours."""

    def __init__(self) -> None:
        self.finished = False
        self.done = False
        self.usage: Usage | None = None
        self.output_chars = 0
        self.stop = StopReason.END
        self.refused = False
        self.job = ""
        self.call_ids: list[str] = []
        self._with_arguments: set[int] = set()

    def text(self, text: str, out: list[Part]) -> None:
        self.output_chars += len(text)
        out.append(TextPart(text))

    def thought(self, text: str, out: list[Part]) -> None:
        self.output_chars += len(text)
        out.append(ReasoningPart(text))

    def begin_call(self, call_id: str, name: str, arguments: str, out: list[Part]) -> int:
        """Appends a call's first piece. Returns its number, which is the index of its parts."""
        number = len(self.call_ids)
        self.call_ids.append(call_id)
        self._note(number, arguments)
        out.append(CallPart(number, call_id, name, arguments))
        return number

    def continue_call(self, number: int, arguments: str, out: list[Part]) -> None:
        if arguments:
            self._note(number, arguments)
            out.append(CallPart(number, arguments=arguments))

    def has_arguments(self, number: int) -> bool:
        return number in self._with_arguments

    def end(self, out: list[Part]) -> None:
        """Closes the answer. A call without arguments gets the empty object, so that it is JSON."""
        said = bool(self.output_chars or self.call_ids)
        if not self.finished and not (self.done and said):
            raise StreamFault(FaultKind.BROKEN, "the answer ended before it was complete")
        for number in range(len(self.call_ids)):
            if number not in self._with_arguments:
                self.continue_call(number, "{}", out)
        if self.usage is not None:
            out.append(UsagePart(self.usage))
        out.append(EndPart(self._stop_reason()))

    def _note(self, number: int, arguments: str) -> None:
        if arguments:
            self.output_chars += len(arguments)
            self._with_arguments.add(number)

    def _stop_reason(self) -> StopReason:
        # The content of the answer counts more than the reason given: providers mix these up.
        if self.refused:
            return StopReason.REFUSED
        if self.stop is StopReason.END and self.call_ids:
            return StopReason.TOOL_CALLS
        if self.stop is StopReason.TOOL_CALLS and not self.call_ids:
            return StopReason.END
        return self.stop
