"""What the model is shown, kept up from events one by one. Always well formed (law 5).

Each call of an assistant message has exactly one result, in the message right after it: results
gather, in whichever order they come, until the last one is there. What a hidden turn said is
left out. Consecutive words of the user are one message.
"""

from collections.abc import Iterable

from bargein.contracts.event import (
    AssistantSaid,
    CallEnded,
    Event,
    TurnHidden,
    TurnSettled,
    TurnStarted,
    UserSaid,
)
from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.contracts.tool import CallResult

CUT_OFF = "[cut off here]"


class Transcript:
    def __init__(self) -> None:
        self._messages: list[ModelMessage] = []
        self._turn_begins_at: dict[str, int] = {}
        self._settled_begin_at: dict[str, int] = {}
        self._calls: tuple[ToolCall, ...] = ()
        self._results: dict[str, ToolResult] = {}

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Transcript":
        transcript = cls()
        for event in events:
            transcript.apply(event)
        return transcript

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the last assistant message that have no result yet."""
        return tuple(call for call in self._calls if call.id not in self._results)

    def messages(self) -> tuple[ModelMessage, ...]:
        """For a request. To be asked for only while no call is open."""
        return tuple(self._messages)

    def apply(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            self._turn_begins_at[event.turn] = len(self._messages)
        elif isinstance(event, UserSaid):
            self._add_user(UserMessage(event.content))
        elif isinstance(event, AssistantSaid):
            self._add_assistant(event)
        elif isinstance(event, CallEnded):
            self._add_result(event.call_id, event.result)
        elif isinstance(event, TurnSettled):
            begins_at = self._turn_begins_at.pop(event.turn, len(self._messages))
            if event.hidden:
                self._hide_from(begins_at)
            else:
                self._settled_begin_at[event.turn] = begins_at
        elif isinstance(event, TurnHidden):
            begins_at = self._settled_begin_at.pop(event.turn, len(self._messages))
            self._hide_from(begins_at)

    def _add_user(self, message: UserMessage) -> None:
        last = self._messages[-1] if self._messages else None
        begins = self._turn_begins_at.values()
        # Words of another turn stay apart, so that hiding that turn takes just its own.
        if isinstance(last, UserMessage) and len(self._messages) not in begins:
            self._messages[-1] = UserMessage(last.content + message.content)
        else:
            self._messages.append(message)

    def _add_assistant(self, said: AssistantSaid) -> None:
        content = said.message.content
        if not content:
            return
        if said.partial:
            content = (*content, Text(CUT_OFF))
        self._messages.append(AssistantMessage(content))
        self._calls = tuple(part for part in content if isinstance(part, ToolCall))
        self._results = {}

    def _add_result(self, call_id: str, result: CallResult) -> None:
        if call_id in self._results or all(call.id != call_id for call in self._calls):
            return
        self._results[call_id] = ToolResult(call_id, result.content, result.is_error)
        if len(self._results) == len(self._calls):
            results = tuple(self._results[call.id] for call in self._calls)
            self._messages.append(ToolMessage(results))
            self._calls, self._results = (), {}

    def _hide_from(self, index: int) -> None:
        del self._messages[index:]
        self._calls, self._results = (), {}


def kept_of(message: AssistantMessage) -> AssistantMessage:
    """What may be kept of an answer that was cut off: its text, and reasoning that is signed.
    Its calls were not complete, or were never started: the provider would refuse them."""
    kept = tuple(
        part
        for part in message.content
        if (isinstance(part, Text) and part.text.strip())
        or (isinstance(part, Reasoning) and part.signature is not None)
    )
    return AssistantMessage(kept)
