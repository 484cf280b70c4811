"""Requests to a local model: their content, and the runtime's variant of Chat Completions.

`fit` adapts a request to what the model can use. A model that was not trained for tools gets none,
because it would only imitate the syntax. Tool calls and results of another model, already in the
conversation, become text. Images that it cannot see become a remark.

`LocalDialect` asks for progress reports while the runtime reads the prompt. They matter for
stopping. The runtime notices that a client has gone when it writes to it, and otherwise checks only
once a second. With a report after each batch it stops reading within two batches.
"""

from collections.abc import Callable

import msgspec

from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from bargein.models.dialects import Decoder
from bargein.models.dialects.chat import ChatDecoder, ChatDialect
from bargein.models.local.handshake import Facts

RESULT_CHARS_MAX = 2000


def fit(request: ModelRequest, facts: Facts) -> tuple[ModelRequest, tuple[str, ...]]:
    """Returns the request for this model, and words for what was left out."""
    left_out = []
    messages = request.messages
    if not facts.sees_images and any(map(_has_image, messages)):
        messages = tuple(_without_images(message) for message in messages)
        left_out.append("images")
    if not facts.reads_tools:
        messages = tuple(_as_text(message) for message in messages)
        if request.tools:
            request = msgspec.structs.replace(request, tools=())
            left_out.append("tools")
    return msgspec.structs.replace(request, messages=messages), tuple(left_out)


def _has_image(message: ModelMessage) -> bool:
    match message:
        case UserMessage(content=content):
            return any(isinstance(piece, Image) for piece in content)
        case ToolMessage(results=results):
            return any(isinstance(piece, Image) for result in results for piece in result.content)
        case AssistantMessage():
            return False


def _without_images(message: ModelMessage) -> ModelMessage:
    match message:
        case UserMessage(content=content):
            return UserMessage(_images_as_text(content))
        case ToolMessage(results=results):
            return ToolMessage(
                tuple(
                    msgspec.structs.replace(result, content=_images_as_text(result.content))
                    for result in results
                )
            )
        case AssistantMessage():
            return message


def _images_as_text(content: tuple[Text | Image, ...]) -> tuple[Text | Image, ...]:
    if not any(isinstance(piece, Image) for piece in content):
        return content
    texts = [
        piece.text if isinstance(piece, Text) else "(an image, which you cannot see)"
        for piece in content
    ]
    return (Text("\n".join(texts)),)


def _as_text(message: ModelMessage) -> ModelMessage:
    match message:
        case AssistantMessage(content=content):
            return AssistantMessage(tuple(_call_as_text(piece) for piece in content))
        case ToolMessage(results=results):
            return UserMessage(
                tuple(piece for result in results for piece in _result_as_text(result))
            )
        case UserMessage():
            return message


def _call_as_text(piece: Text | Reasoning | ToolCall) -> Text | Reasoning:
    if isinstance(piece, ToolCall):
        return Text(f"\n(used {piece.name} with {piece.arguments[:RESULT_CHARS_MAX]})")
    return piece


def _result_as_text(result: ToolResult) -> tuple[Text | Image, ...]:
    texts = "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
    images = tuple(piece for piece in result.content if isinstance(piece, Image))
    kind = "It failed" if result.is_error else "It gave"
    return (Text(f"({kind}: {texts[:RESULT_CHARS_MAX]})"), *images)


OnProgress = Callable[[int, int], object]


class LocalDialect(ChatDialect):
    name = "local"
    url_variable = "BARGEIN_MODEL"
    key_variable = "BARGEIN_MODEL"

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def encode(self, model: str, request: ModelRequest) -> bytes:
        body = super().encode(model, request)
        return body[:-1] + b',"return_progress":true}'

    def decoder(self) -> Decoder:
        return LocalDecoder(self._on_progress)


class _Progress(msgspec.Struct, gc=False):
    total: int
    processed: int


class _Chunk(msgspec.Struct, gc=False):
    prompt_progress: _Progress | None = None


_chunks = msgspec.json.Decoder(_Chunk)


class LocalDecoder(ChatDecoder):
    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def feed(self, data: bytes, out: list[Part]) -> None:
        if b'"prompt_progress"' in data:
            self._tell(data)
        super().feed(data, out)

    def _tell(self, data: bytes) -> None:
        try:
            progress = _chunks.decode(data).prompt_progress
        except msgspec.DecodeError:
            return  # the model's text happens to contain the word
        if progress is not None:
            self._on_progress(progress.processed, progress.total)
