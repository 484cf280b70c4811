"""OpenAI Responses: items that are added, grow and are done.

The provider stores nothing (`store` is false), unless the answer is made in the background: then it
is a job of the provider, which goes on when the connection ends, until it is cancelled. Requests
ask a reasoning model for its thoughts in encrypted form and send them back with the next request,
as the provider demands. Their id and cipher are kept in `Reasoning.signature`, marked as this
dialect's so that no other provider gets them.
"""

import msgspec

from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    Part,
    Reasoning,
    ReasoningPart,
    StopReason,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from bargein.models.dialects import Decoder
from bargein.models.dialects.answer import AnswerDecoder
from bargein.models.dialects.chat_request import data_url, result_text
from bargein.models.dialects.faults import ErrorObject, FaultKind, StreamFault, fault_of
from bargein.models.dialects.json import decode, encode
from bargein.models.dialects.schema import OPENAI, Json, enforced_schema, object_schema
from bargein.models.errors import Secret

SIGNATURE_MARK = "openai-responses:"


class ResponsesDialect:
    name = "openai-responses"
    path = "/responses"
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"

    def __init__(self, *, background: bool = False) -> None:
        self._background = background

    def headers(self, key: Secret | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key.reveal()}"} if key else {}

    def encode(self, model: str, request: ModelRequest) -> bytes:
        body = _body(model, request)
        if self._background:
            body |= {"background": True, "store": True}
        return encode(body)

    def decoder(self) -> Decoder:
        return ResponsesDecoder(background=self._background)


def _reasons(model: str) -> bool:
    """Returns whether the model reasons. Others refuse a request for encrypted reasoning."""
    name = model.rpartition("/")[2]
    return name.startswith(("o1", "o3", "o4", "gpt-5", "codex")) and "chat" not in name


def _body(model: str, request: ModelRequest) -> Json:
    body: Json = {
        "model": model,
        "input": [item for message in request.messages for item in _items(message)],
        "stream": True,
        "store": False,
    }
    if _reasons(model):
        body["include"] = ["reasoning.encrypted_content"]
    if request.system:
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ]
    if request.output_tokens_max is not None:
        body["max_output_tokens"] = request.output_tokens_max
    if request.temperature is not None:
        body["temperature"] = request.temperature
    asked = object_schema(request.response_schema) if request.response_schema else None
    if asked is not None:
        enforced = enforced_schema(asked, OPENAI)
        body["text"] = {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": enforced or asked,
                "strict": enforced is not None,
            }
        }
    return body


def _items(message: ModelMessage) -> list[Json]:
    match message:
        case UserMessage(content=content):
            if not content:
                return []
            return [{"type": "message", "role": "user", "content": [_input(p) for p in content]}]
        case AssistantMessage(content=content):
            return [item for piece in content if (item := _said(piece)) is not None]
        case ToolMessage(results=results):
            return [
                {"type": "function_call_output", "call_id": r.call_id, "output": _output(r)}
                for r in results
            ]


def _input(piece: Text | Image) -> Json:
    if isinstance(piece, Text):
        return {"type": "input_text", "text": piece.text}
    return {"type": "input_image", "image_url": data_url(piece)}


def _said(piece: Text | Reasoning | ToolCall) -> Json | None:
    match piece:
        case Text(text=""):
            return None
        case Text(text=text):
            content = [{"type": "output_text", "text": text}]
            return {"type": "message", "role": "assistant", "content": content}
        case ToolCall():
            return {
                "type": "function_call",
                "call_id": piece.id,
                "name": piece.name,
                "arguments": piece.arguments,
            }
        case Reasoning(text=text, signature=signature):
            if signature is None or not signature.startswith(SIGNATURE_MARK):
                return None
            item_id, _, cipher = signature.removeprefix(SIGNATURE_MARK).partition(":")
            summary = [{"type": "summary_text", "text": text}] if text else []
            return {
                "type": "reasoning",
                "id": item_id,
                "summary": summary,
                "encrypted_content": cipher,
            }


def _output(result: ToolResult) -> str | list[Json]:
    images = [piece for piece in result.content if isinstance(piece, Image)]
    if not images:
        return result_text(result)
    return [_input(Text(result_text(result))), *(_input(image) for image in images)]


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    error: ErrorObject | str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int = 0
    item: _Item | None = None
    response: _Response | None = None
    error: ErrorObject | str | None = None
    message: str | None = None
    code: str | int | None = None


# In events that we ignore, such as those about audio, `delta` is an object.
class _Kind(msgspec.Struct, gc=False):
    type: str = ""


_events = msgspec.json.Decoder(_Event, strict=False)
_kinds = msgspec.json.Decoder(_Kind, strict=False)


class ResponsesDecoder(AnswerDecoder):
    """One per answer."""

    def __init__(self, *, background: bool = False) -> None:
        super().__init__()
        self._background = background
        self._call_of_item: dict[int, int] = {}

    def feed(self, data: bytes, out: list[Part]) -> None:
        if data.startswith(b"[DONE]"):
            self.done = True
            return
        try:
            event = _events.decode(data)
        except msgspec.ValidationError:
            if decode(_kinds, data).type in _OURS:
                event = decode(_events, data)
            else:
                return
        except msgspec.DecodeError:
            event = decode(_events, data)
        self._event(event, out)

    def _event(self, event: _Event, out: list[Part]) -> None:
        delta = event.delta
        match event.type:
            case "response.output_text.delta" if delta:
                self.text(delta, out)
            case "response.refusal.delta" if delta:
                self.refused = True
                self.text(delta, out)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if delta:
                self.thought(delta, out)
            case "response.function_call_arguments.delta" if delta:
                number = self._call_of_item.get(event.output_index)
                if number is None:
                    raise StreamFault(
                        FaultKind.BROKEN, "arguments came for a tool call that never began"
                    )
                self.continue_call(number, delta, out)
            case "response.output_item.added" if event.item is not None:
                self._added(event.output_index, event.item, out)
            case "response.output_item.done" if event.item is not None:
                self._item_done(event.output_index, event.item, out)
            case "response.created" | "response.queued" if self._background:
                self.job = (event.response.id if event.response is not None else None) or self.job
            case "response.completed" | "response.incomplete" | "response.failed" | "response.done":
                self._closed(event.response or _Response())
            case "error":
                raise fault_of(event.error or ErrorObject(event.message, "", event.code))
            case "" if event.error:
                raise fault_of(event.error)
            case _:
                pass

    def _added(self, index: int, item: _Item, out: list[Part]) -> None:
        if item.type == "function_call" and index not in self._call_of_item:
            call_id = item.call_id or item.id or f"call_{len(self.call_ids)}"
            number = self.begin_call(call_id, item.name or "", item.arguments or "", out)
            self._call_of_item[index] = number

    def _item_done(self, index: int, item: _Item, out: list[Part]) -> None:
        if item.type == "function_call":
            # Some servers send the item only when it is complete.
            self._added(index, item, out)
            number = self._call_of_item[index]
            if item.arguments and not self.has_arguments(number):
                self.continue_call(number, item.arguments, out)
        elif item.type == "reasoning" and item.encrypted_content:
            signature = f"{SIGNATURE_MARK}{item.id or ''}:{item.encrypted_content}"
            out.append(ReasoningPart("", signature))

    def _closed(self, response: _Response) -> None:
        if response.usage is not None:
            details = response.usage.input_tokens_details
            self.usage = Usage(
                input_tokens=response.usage.input_tokens or 0,
                output_tokens=response.usage.output_tokens or 0,
                cached_input_tokens=(details.cached_tokens if details else 0) or 0,
            )
        if response.error:
            raise fault_of(response.error)
        if response.status in ("failed", "cancelled"):
            raise StreamFault(FaultKind.SERVER, f"the provider gave up (status {response.status})")
        self.finished = self.done = True
        why = response.incomplete_details.reason if response.incomplete_details else None
        if why == "max_output_tokens":
            self.stop = StopReason.LENGTH
        elif why == "content_filter":
            self.stop = StopReason.REFUSED
        elif why:
            self.stop = StopReason.OTHER


_OURS = frozenset(
    {
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    }
)
