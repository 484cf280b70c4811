"""Estimates the cost of a request until the provider reports it.

Four characters per token is close for English and code, and too low for most other writing. An
image counts as much as providers charge for one of medium size.
"""

from bargein.contracts.model import Image, ModelRequest, Text, ToolCall, ToolMessage, ToolResult

CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1000


def tokens_of(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def input_chars(request: ModelRequest) -> int:
    """Counts the characters of a request; an image counts as the characters of its tokens."""
    chars = len(request.system)
    for tool in request.tools:
        chars += len(tool.name) + len(tool.description) + len(bytes(tool.parameters))
    for message in request.messages:
        pieces = message.results if isinstance(message, ToolMessage) else message.content
        for piece in pieces:
            if isinstance(piece, ToolResult):
                chars += sum(_chars(inner) for inner in piece.content)
            elif isinstance(piece, Text | Image):
                chars += _chars(piece)
            elif isinstance(piece, ToolCall):
                chars += len(piece.name) + len(piece.arguments)
            else:
                chars += len(piece.text)
    return chars


def _chars(piece: Text | Image) -> int:
    return len(piece.text) if isinstance(piece, Text) else IMAGE_TOKENS * CHARS_PER_TOKEN
