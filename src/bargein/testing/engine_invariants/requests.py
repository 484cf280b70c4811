"""Law 5: requests to a model are well formed, by the rules of the strictest provider."""

from collections.abc import Sequence

from bargein.contracts.model import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from bargein.testing.invariants import LawBroken


def check_request(request: ModelRequest) -> None:
    """Law 5: a request to a model is well formed, by the rules of the strictest provider."""
    messages = request.messages
    if not messages or isinstance(messages[-1], AssistantMessage):
        raise LawBroken(5, f"the model is asked although nothing new was said: {messages!r}")
    check_messages(messages)


def check_messages(messages: Sequence[ModelMessage]) -> None:
    """Law 5: the user begins; each call has exactly one result, right after it; ids are unique;
    nothing is empty."""
    owed: tuple[str, ...] = ()
    seen: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            got = tuple(result.call_id for result in message.results)
            if sorted(got) != sorted(owed):
                raise LawBroken(5, f"message {place} has results of {got}, but {owed} were called")
            if not all(result.content for result in message.results):
                raise LawBroken(5, f"message {place} has a result without content")
            owed = ()
            continue
        if owed:
            raise LawBroken(5, f"no result of {owed} before message {place}")
        if not message.content:
            raise LawBroken(5, f"message {place} is empty")
        if isinstance(message, AssistantMessage):
            if place == 0:
                raise LawBroken(5, "the first message is the model's own")
            owed = tuple(part.id for part in message.content if isinstance(part, ToolCall))
            if seen.intersection(owed) or len(set(owed)) != len(owed):
                raise LawBroken(5, f"a call id of {owed} was used before")
            seen.update(owed)
        else:
            assert isinstance(message, UserMessage)
    if owed:
        raise LawBroken(5, f"the last calls {owed} have no result")
