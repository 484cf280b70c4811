"""How many tokens a request will be, before it is sent.

Every provider cuts text in its own way and no table of theirs is carried here: this is an
estimate from characters. On English prose and code it is within a third of the truth, most often
above it; on other scripts it may be twice the truth. It is corrected by what the provider counted
for the last request of the same session, after which it is a few per cent off: what was sent before
is then known, and only what is new is guessed.
"""

from math import ceil

from bargein.contracts.model import (
    Image,
    ModelMessage,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolSchema,
    Usage,
)

ASCII_CHARACTERS_PER_TOKEN = 3.6
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4
TOOL_TOKENS = 8

_RATIO_MIN, _RATIO_MAX = 0.25, 4.0


def tokens_of_text(text: str) -> float:
    """A character outside of ASCII counts as a token: about right for Chinese, high for most."""
    if text.isascii():
        return len(text) / ASCII_CHARACTERS_PER_TOKEN
    ascii_characters = len(text.encode("ascii", "ignore"))
    return ascii_characters / ASCII_CHARACTERS_PER_TOKEN + len(text) - ascii_characters


def tokens_of_message(message: ModelMessage) -> float:
    if isinstance(message, ToolMessage):
        contents = [part for result in message.results for part in result.content]
        extra = MESSAGE_TOKENS * len(message.results)
        return extra + sum(_tokens_of_part(part) for part in contents)
    return MESSAGE_TOKENS + sum(_tokens_of_part(part) for part in message.content)


def tokens_of_request(request: ModelRequest) -> float:
    return (
        tokens_of_text(request.system)
        + sum(map(_tokens_of_tool, request.tools))
        + sum(map(tokens_of_message, request.messages))
    )


class RequestTokens:
    """`tokens_of_request` of one session, where each request mostly begins as the one before it:
    what was counted is not counted again, so that a long conversation costs no more than a short
    one."""

    def __init__(self) -> None:
        self._messages: tuple[ModelMessage, ...] = ()
        # Of so many messages from the first on.
        self._sums: list[float] = [0.0]

    def of(self, request: ModelRequest) -> float:
        messages, sums = request.messages, self._sums
        del sums[self._known(messages) + 1 :]
        for message in messages[len(sums) - 1 :]:
            sums.append(sums[-1] + tokens_of_message(message))
        self._messages = messages
        rest = tokens_of_text(request.system) + sum(map(_tokens_of_tool, request.tools))
        return rest + sums[-1]

    def _known(self, messages: tuple[ModelMessage, ...]) -> int:
        """How many it begins with are those of the last request."""
        most = min(len(messages), len(self._messages))
        # The last one may have been added to. Comparing what is the same object takes no time.
        for count in (most, most - 1):
            if count > 0 and messages[:count] == self._messages[:count]:
                return count
        return 0


def ratio_after(estimate: float, usage: Usage) -> float | None:
    """What estimates are to be multiplied by from now on; None if `usage` cannot tell."""
    if usage.estimated or not usage.input_tokens or estimate <= 0:
        return None
    return min(max(usage.input_tokens / estimate, _RATIO_MIN), _RATIO_MAX)


def whole(tokens: float) -> int:
    return ceil(tokens)


def _tokens_of_part(part: Text | Image | Reasoning | ToolCall) -> float:
    if isinstance(part, Image):
        return IMAGE_TOKENS
    if isinstance(part, ToolCall):
        return TOOL_TOKENS + tokens_of_text(part.name) + tokens_of_text(part.arguments)
    return tokens_of_text(part.text)


def _tokens_of_tool(tool: ToolSchema) -> float:
    words = tokens_of_text(tool.name) + tokens_of_text(tool.description)
    return TOOL_TOKENS + words + len(bytes(tool.parameters)) / ASCII_CHARACTERS_PER_TOKEN
