"""OpenAI Chat Completions, which nearly every server speaks, each a little differently.

The decoder accepts what servers really send: a missing `[DONE]` after a reason to stop, usage at
the end only, in every chunk or never, empty `choices`, a whole message in place of a delta, tool
calls without an index, without an id, with the id or the name repeated in every piece, several
calls under one index, arguments as an object, reasoning under two names. An answer that ends with
neither a reason to stop nor `[DONE]` was cut short, and raises `StreamFault`.
"""

import secrets
from collections.abc import Callable

import msgspec

from bargein.contracts.model import ModelRequest, Part, StopReason, Usage
from bargein.models.dialects import Decoder
from bargein.models.dialects.answer import AnswerDecoder
from bargein.models.dialects.chat_request import Quirks, encode_chat
from bargein.models.dialects.faults import ErrorObject, FaultKind, StreamFault, fault_of
from bargein.models.dialects.json import decode
from bargein.models.errors import Secret


class ChatDialect:
    name = "openai"
    path = "/chat/completions"
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"

    def __init__(self, quirks: Quirks | None = None) -> None:
        self._quirks = quirks or Quirks()

    def headers(self, key: Secret | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key.reveal()}"} if key else {}

    def encode(self, model: str, request: ModelRequest) -> bytes:
        return encode_chat(model, request, self._quirks)

    def decoder(self) -> Decoder:
        return ChatDecoder()


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Piece(msgspec.Struct, gc=False):
    """An item of a content list: Mistral sends text and thinking this way."""

    type: str = ""
    text: str | None = None
    thinking: "list[_Piece] | str | None" = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None


class _Groq(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    error: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: ErrorObject | str | None = None
    x_groq: _Groq | None = None


_chunks = msgspec.json.Decoder(_Chunk, strict=False)

_STOPS = {
    "stop": StopReason.END,
    "end_turn": StopReason.END,
    "eos": StopReason.END,
    "eos_token": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_calls": StopReason.TOOL_CALLS,
    "tool_use": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
    "safety": StopReason.REFUSED,
    "refusal": StopReason.REFUSED,
}
_FAILED = frozenset({"error", "abort", "insufficient_system_resource", "cancelled"})


class ChatDecoder(AnswerDecoder):
    """One for each answer. The module's docstring lists the deviations it accepts."""

    def __init__(self, new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(8)}") -> None:
        super().__init__()
        self._new_id = new_id
        self._call_of_index: dict[int, int] = {}

    def feed(self, data: bytes, out: list[Part]) -> None:
        if data.startswith(b"[DONE]"):
            self.done = True
            return
        try:
            chunk = _chunks.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            chunk = decode(_chunks, data)
        if chunk.choices:
            for choice in chunk.choices:
                if choice.index == 0:
                    self._choice(choice, out)
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        if chunk.error:
            raise fault_of(chunk.error)
        if chunk.x_groq is not None:
            if chunk.x_groq.usage is not None:
                self._take_usage(chunk.x_groq.usage)
            if chunk.x_groq.error:
                raise fault_of(chunk.x_groq.error)

    def _choice(self, choice: _Choice, out: list[Part]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            if delta.content:
                if isinstance(delta.content, str):
                    self.text(delta.content, out)
                else:
                    self._pieces(delta.content, out)
            thought = delta.reasoning_content or delta.reasoning
            if thought:
                self.thought(thought, out)
            if delta.tool_calls:
                for call in delta.tool_calls:
                    self._call(call, out)
            elif delta.function_call is not None:
                self._call(_Call(index=0, function=delta.function_call), out)
            if delta.refusal:
                self.refused = True
                self.text(delta.refusal, out)
        if choice.finish_reason:
            self._finish(choice.finish_reason.lower())

    def _finish(self, reason: str) -> None:
        if reason in _FAILED:
            raise StreamFault(FaultKind.SERVER, f"the provider gave up (finish_reason {reason})")
        self.finished = True
        self.stop = _STOPS.get(reason, StopReason.OTHER)

    def _pieces(self, pieces: list[_Piece], out: list[Part]) -> None:
        for piece in pieces:
            if piece.text:
                self.text(piece.text, out)
            if isinstance(piece.thinking, str):
                self.thought(piece.thinking, out)
            elif piece.thinking:
                self.thought("".join(inner.text or "" for inner in piece.thinking), out)

    def _call(self, call: _Call, out: list[Part]) -> None:
        name = (call.function.name if call.function else None) or ""
        arguments = _arguments(call.function)
        number = self._number(call, name)
        if number is not None:
            self.continue_call(number, arguments, out)
            return
        number = self.begin_call(call.id or self._new_id(), name, arguments, out)
        if call.index is not None:
            self._call_of_index[call.index] = number

    def _number(self, call: _Call, name: str) -> int | None:
        """Returns the number of the call that a piece belongs to, or None if it begins one.

        A new index, or a name with a new id, begins a call.
        """
        ids = self.call_ids
        known: int | None
        if call.index is not None:
            known = self._call_of_index.get(call.index)
        elif call.id:
            known = ids.index(call.id) if call.id in ids else None
            if known is None and not name and ids:
                known = len(ids) - 1
        else:
            # Without index and id, only a name begins a call.
            known = len(ids) - 1 if ids and not name else None
        if known is None:
            return None
        begins_another = bool(name and call.id) and call.id != ids[known]
        return None if begins_another else known

    def _take_usage(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        cached = usage.prompt_cache_hit_tokens
        if details is not None and details.cached_tokens is not None:
            cached = details.cached_tokens
        self.usage = Usage(
            input_tokens=usage.prompt_tokens or 0,
            output_tokens=usage.completion_tokens or 0,
            cached_input_tokens=cached or 0,
        )


def _arguments(function: _Function | None) -> str:
    if function is None or not function.arguments:
        return ""
    if isinstance(function.arguments, str):
        return function.arguments
    return msgspec.json.encode(function.arguments).decode()
