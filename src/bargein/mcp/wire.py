"""Encodes and decodes JSON-RPC messages. Pure.

A stranger wrote what a server sends. So only the outer fields are decoded; the rest stays raw JSON
until a caller needs it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

UNSUPPORTED_VERSION: Final = -32022
MISSING_CAPABILITY: Final = -32021
HEADER_MISMATCH: Final = -32020
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INVALID_REQUEST: Final = -32600

MODERN_ERRORS: Final = frozenset({UNSUPPORTED_VERSION, MISSING_CAPABILITY, HEADER_MISMATCH})
"""Only servers of the stateless era answer with these."""

VALUES_MAX: Final = 100_000

RequestId = int | str


class RpcError(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw()


class Incoming(msgspec.Struct, frozen=True):
    """A message of the server's: an answer, a request or a notification."""

    id: int | str | float | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: RpcError | None = None

    @property
    def is_answer(self) -> bool:
        return not self.method and (bool(bytes(self.result)) or self.error is not None)


class BadMessage(ValueError):
    """Not a JSON-RPC message."""


_one = msgspec.json.Decoder(Incoming)
_several = msgspec.json.Decoder(list[Incoming])


def decode(data: bytes) -> list[Incoming]:
    """Reads one message, or a batch as servers of 2025-03-26 may send it. Raises `BadMessage`."""
    try:
        if data.lstrip()[:1] == b"[":
            return _several.decode(data)
        return [_one.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error


def holds_too_much(data: bytes) -> bool:
    """Whether a message has so many values that reading it would hold up the loop: sixteen
    mebibytes of empty lists take seconds, and one text of that length a moment."""
    if _separators(data) <= VALUES_MAX:
        return False
    # Without escapes each quote begins or ends a text. None of these steps is slow.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * VALUES_MAX:
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return _separators(outside) > VALUES_MAX


def _separators(data: bytes) -> int:
    """How many values there are at most, besides the first, if none of this is in a text."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse(raw: msgspec.Raw) -> Any:
    """The JSON value; `{}` if there is none or it cannot be read."""
    try:
        return msgspec.json.decode(raw) if bytes(raw) else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def parse_object(raw: msgspec.Raw) -> dict[str, Any]:
    value = parse(raw)
    return value if isinstance(value, dict) else {}


def parse_number(value: object) -> float | None:
    """The number in a parsed JSON value; None if it is none, or larger than a float can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


class Outgoing(msgspec.Struct, frozen=True):
    """A message of ours. `name` and `headers` are what HTTP repeats of it for routers."""

    method: str
    body: bytes
    id: int | None = None
    name: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


def request(request_id: RequestId, method: str, params: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    )


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        body["params"] = params
    return msgspec.json.encode(body)


def answer(request_id: object, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def refusal(request_id: object, code: int, message: str, data: object = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})
