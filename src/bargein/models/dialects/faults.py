"""Reads a provider's error, in a body or in the middle of a stream.

All three dialects, and nearly every imitation of them, wrap a failure in an object called `error`,
with different content. This module finds the message and the kind in each of them.
"""

import re
from enum import Enum

import msgspec

_CONTEXT = re.compile(
    r"context[ _]length|context[ _]window|context[ _]size|maximum context|prompt is too long"
    r"|input is too long|exceeds? the (?:model'?s )?(?:maximum )?context|reduce the length",
    re.IGNORECASE,
)


class FaultKind(Enum):
    """The kind of a failure. `rate`, `server` and `broken` may pass; the others will not."""

    CONTEXT = "context"
    RATE = "rate"
    CREDIT = "credit"
    KEY = "key"
    MISSING = "missing"
    REFUSED = "refused"
    SERVER = "server"
    BROKEN = "broken"


_KINDS = (
    (re.compile(r"insufficient_quota|billing|credit|402", re.IGNORECASE), FaultKind.CREDIT),
    (re.compile(r"rate_?limit|too_many_requests|quota|429", re.IGNORECASE), FaultKind.RATE),
    (re.compile(r"authentication|api_key|permission|401|403", re.IGNORECASE), FaultKind.KEY),
    (re.compile(r"not_found|404", re.IGNORECASE), FaultKind.MISSING),
    (re.compile(r"invalid|bad_request|400|422|policy", re.IGNORECASE), FaultKind.REFUSED),
)


class StreamFault(Exception):
    """Raised by a decoder, which knows neither model nor host. The attempt turns it into a
    `ModelError`."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class ErrorObject(msgspec.Struct):
    """The fields we read. Each may be missing, null or a number."""

    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    metadata: dict[str, object] | None = None


class _ErrorBody(msgspec.Struct):
    error: ErrorObject | str | None = None
    message: str | None = None
    detail: object = None
    type: str | None = None
    code: str | int | None = None


_body = msgspec.json.Decoder(_ErrorBody, strict=False)
_bodies = msgspec.json.Decoder(list[_ErrorBody], strict=False)


def fault_of(error: ErrorObject | str) -> StreamFault:
    """Returns the failure that an `error` object inside a stream describes."""
    if isinstance(error, str):
        error = ErrorObject(message=error)
    words = error.message or ""
    if error.metadata and isinstance(raw := error.metadata.get("raw"), str):
        words = f"{words}: {raw}" if words else raw
    labels = " ".join(str(label) for label in (error.type, error.code) if label is not None)
    return StreamFault(_kind(labels, words), words or labels or "an error without a message")


def error_in(body: bytes) -> StreamFault | None:
    """Returns the failure that the body of an answer describes, or None if its form is unknown."""
    try:
        found = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            found = next(iter(_bodies.decode(body)), _ErrorBody())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    if found.error is not None:
        return fault_of(found.error)
    if found.message is not None:
        return fault_of(ErrorObject(message=found.message, type=found.type, code=found.code))
    if found.detail is not None:
        detail = found.detail
        words = detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()
        return fault_of(ErrorObject(message=words))
    return None


def _kind(labels: str, words: str) -> FaultKind:
    if _CONTEXT.search(labels) or _CONTEXT.search(words):
        return FaultKind.CONTEXT
    for pattern, kind in _KINDS:
        if pattern.search(labels):
            return kind
    return FaultKind.SERVER
