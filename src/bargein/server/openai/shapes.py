"""The JSON that OpenAI's clients send, as far as it means something here.

Fields that are not listed are passed over, as every compatible server does: clients send many that
tune a model, and the agent behind this server has its own settings. What would be misunderstood if
it were passed over (tools of the client, several answers) is refused in words.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class TextPiece(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageAddress(msgspec.Struct, frozen=True):
    url: str


class ImagePiece(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: ImageAddress


Pieces = str | list[TextPiece | ImagePiece]


class FunctionAsked(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CallAsked(msgspec.Struct, frozen=True):
    id: str
    function: FunctionAsked


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    content: Pieces


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    content: Pieces


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    content: Pieces


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    content: Pieces | None = None
    tool_calls: list[CallAsked] | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Pieces = ""


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True):
    """`metadata.session` names a session of this server: then its own history counts, and only
    the last message is new. Without it the messages are all there is, and nothing is kept."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str = ""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    tools: list[msgspec.Raw] | None = None
    metadata: dict[str, str] | None = None


# Responses


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    image_url: str = ""


InputPieces = str | list[InputText | OutputText | InputImage]


class InputMessage(msgspec.Struct, frozen=True):
    content: InputPieces
    role: Literal["user", "assistant", "system", "developer"] = "user"
    type: Literal["message"] = "message"


class ResponseRequest(msgspec.Struct, frozen=True):
    """`previous_response_id` goes on in the same session."""

    input: str | Annotated[list[InputMessage], Meta(min_length=1)]
    model: str = ""
    instructions: str | None = None
    stream: bool | None = False
    background: bool | None = False
    previous_response_id: str | None = None
    tools: list[msgspec.Raw] | None = None
    metadata: dict[str, str] | None = None
