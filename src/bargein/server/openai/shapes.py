"""The JSON that OpenAI's clients send. `fields` says which fields of a request are used.

A request with a field that is not listed is refused. A message may have more fields than are listed
(`name`, `refusal`, `annotations`, or what another server added), because clients send back what
they received.
"""

from typing import Annotated, Any, Literal

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


class ChatSystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    content: Pieces


class ChatDeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    content: Pieces


class ChatUserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    content: Pieces


class ChatAssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    content: Pieces | None = None
    tool_calls: list[CallAsked] | None = None


class ChatToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Pieces = ""


ChatMessage = (
    ChatSystemMessage
    | ChatDeveloperMessage
    | ChatUserMessage
    | ChatAssistantMessage
    | ChatToolMessage
)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


# Formats of an answer


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class JsonFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, frozen=True):
    """Whether it is `strict` or not, the answer is checked."""

    name: str
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class SchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """As Chat Completions have it."""

    json_schema: NamedSchema


class TextSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """As Responses have it."""

    name: str
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextSettings(msgspec.Struct, frozen=True):
    format: TextFormat | JsonFormat | TextSchemaFormat | None = None
    verbosity: str | None = None


Ignored = Annotated[Any, Meta(description="Ignored: the agent has its own settings.")]
Refused = Annotated[Any, Meta(description="Refused, unless its value asks for nothing.")]


class ChatRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`metadata.session` names a session of this server: then its own history counts, and only
    the last message is new. Without it, the messages are the whole history, and nothing is kept.
    `metadata.questions` says what happens to questions: wait, error, refuse or allow."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str = ""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: TextFormat | JsonFormat | SchemaFormat | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = False
    audio: Refused = None
    frequency_penalty: Ignored = None
    function_call: Refused = None
    functions: Refused = None
    logit_bias: Refused = None
    logprobs: Refused = None
    max_completion_tokens: Ignored = None
    max_tokens: Ignored = None
    min_p: Ignored = None
    modalities: Refused = None
    n: Refused = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    presence_penalty: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    repetition_penalty: Ignored = None
    safety_identifier: Ignored = None
    seed: Ignored = None
    service_tier: Ignored = None
    stop: Refused = None
    temperature: Ignored = None
    tool_choice: Refused = None
    tools: Refused = None
    top_k: Ignored = None
    top_logprobs: Refused = None
    top_p: Ignored = None
    user: Ignored = None
    verbosity: Ignored = None
    web_search_options: Refused = None


class ErrorDetail(msgspec.Struct, frozen=True):
    """`code` is one of ours and never changes; `param` names the field that is wrong."""

    message: str
    type: str
    code: str
    param: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An error in OpenAI's form."""

    error: ErrorDetail


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


class ResponseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`previous_response_id` goes on after that response. `store: false` keeps nothing after the
    answer. `metadata.questions` says what happens to questions."""

    input: str | Annotated[list[InputMessage], Meta(min_length=1)]
    model: str = ""
    instructions: str | None = None
    stream: bool | None = False
    background: bool | None = False
    previous_response_id: str | None = None
    store: bool | None = True
    text: TextSettings | None = None
    metadata: dict[str, str] | None = None
    context_management: Ignored = None
    conversation: Refused = None
    include: Ignored = None
    max_output_tokens: Ignored = None
    max_tool_calls: Refused = None
    parallel_tool_calls: Ignored = None
    prompt: Refused = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    stream_options: Ignored = None
    temperature: Ignored = None
    tool_choice: Refused = None
    tools: Refused = None
    top_logprobs: Refused = None
    top_p: Ignored = None
    truncation: Ignored = None
    user: Ignored = None
