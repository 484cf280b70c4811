"""A model request beside the conversation, for a summary or a title; and the usage of any request.

Watchers do not see the answer to a side request, and it is not part of the transcript.
"""

from collections.abc import Awaitable, Callable

from bargein.cancel import Token
from bargein.contracts.budget import Purpose
from bargein.contracts.event import ModelUsed
from bargein.contracts.model import (
    Model,
    ModelMessage,
    ModelRequest,
    ModelStream,
    RetryingPart,
    TextPart,
    Usage,
)

CHARACTERS_MAX = 64 * 1024

MakeSideRequest = Callable[
    [tuple[ModelMessage, ...], str, Token], Awaitable[tuple[Model, ModelRequest]]
]
"""Makes the request for a side question, from its messages and the imported instructions."""


class OpenRequest:
    """Counts the usage of a request, even if it is stopped half-way. `retried`: there was more than
    one attempt, so the usage is more than the request's own length."""

    def __init__(self, turn: str, model: Model, purpose: Purpose) -> None:
        self.stream: ModelStream | None = None
        self.retried = False
        self._turn = turn
        self._model = model.name
        self._purpose = purpose

    @property
    def usage(self) -> Usage:
        return self.stream.usage if self.stream is not None else Usage()

    @property
    def used(self) -> ModelUsed:
        return ModelUsed(self._turn, self._model, self.usage, self._purpose)


async def make_side_request(
    model: Model, request: ModelRequest, token: Token, open_request: OpenRequest
) -> str:
    """Return the text of the answer, up to a bound, without its reasoning and calls."""
    text: list[str] = []
    characters = 0
    async with model.open(request, token) as stream:
        open_request.stream = stream
        async for part in stream:
            if isinstance(part, RetryingPart):
                text, characters = [], 0
            elif isinstance(part, TextPart):
                text.append(part.text)
                characters += len(part.text)
                if characters > CHARACTERS_MAX:
                    break
    token.check()
    return "".join(text).strip()
