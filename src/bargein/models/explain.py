"""Turns a failure into the error that the user reads: model, host, status, and what to do.

Everything here is pure. The provider's text is bounded and freed of the key. The HTTP client's
errors are reworded, because they may contain the request's headers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from bargein.models.dialects.faults import FaultKind, StreamFault, error_in
from bargein.models.errors import (
    ContextTooLong,
    KeyRefused,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    ModelUnavailable,
    ModelUnreachable,
    RateLimited,
    RequestRefused,
    Secret,
    StreamBroken,
    excerpt,
)
from bargein.models.retry import parse_retry_after
from bargein.net.sse import EventTooLong

_RETRYABLE = frozenset({408, 409, 425, 429})
_CONTEXT_ADVICE = "Shorten the conversation, or choose a model with a larger context"


@dataclass(frozen=True, slots=True)
class Target:
    """The model and host of a request, for messages."""

    model: str
    host: str
    url_variable: str
    key_variable: str
    key: Secret | None = None

    def __str__(self) -> str:
        return f"{self.model} at {self.host}"


def from_status(
    target: Target,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ModelError:
    """Returns the error for a response whose status is not 200."""
    fault = error_in(body)
    said = excerpt(fault.message if fault else body.decode("utf-8", "replace"), target.key)
    said = said.removesuffix(".")
    kind = fault.kind if fault else FaultKind.SERVER
    words = f"{target} answered {status}" + (f": {said}" if said else "")
    if 300 <= status < 400:
        return _redirected(target, status, headers.get("Location", ""))
    if kind is FaultKind.CONTEXT or status == 413:
        return _make(ContextTooLong, target, f"{words}. {_CONTEXT_ADVICE}.", status)
    if status in (401, 403):
        advice = f"Set {target.key_variable} to a key that may use this model."
        return _make(KeyRefused, target, f"{words}. {advice}", status)
    if status == 404:
        advice = f"Check the model's name, and {target.url_variable} (now: {target.host})."
        return _make(ModelNotFound, target, f"{words}. {advice}", status)
    retryable = status in _RETRYABLE or status >= 500
    if headers.get("x-should-retry", "").lower() in ("true", "false"):
        retryable = headers["x-should-retry"].lower() == "true"
    retry_after_s = _retry_after(headers, now)
    if status == 402 or kind is FaultKind.CREDIT:
        advice = "The account has no credit left: top it up, or choose another model."
        return _make(RateLimited, target, f"{words}. {advice}", status)
    if status == 429:
        error = _make(RateLimited, target, words, status, retryable=retryable)
    elif retryable:
        error = _make(ModelUnavailable, target, words, status, retryable=True)
    else:
        return _make(RequestRefused, target, words, status)
    error.retry_after_s = retry_after_s
    return error


def _redirected(target: Target, status: int, location: str) -> ModelError:
    where = excerpt(location.partition("?")[0], target.key, chars_max=200)
    return _make(
        ModelNotFound,
        target,
        f"{target} answered {status}: a redirect"
        + (f" to {where}" if where else "")
        + f". Keys are not sent along; if the address is right, set {target.url_variable} to it.",
        status,
    )


def _retry_after(headers: Mapping[str, str], now: Callable[[], datetime]) -> float | None:
    milliseconds = headers.get("retry-after-ms", "")
    if milliseconds.isdecimal() and milliseconds.isascii():
        return int(milliseconds[:12]) / 1000
    return parse_retry_after(headers.get("Retry-After"), now=now)


def from_stream(target: Target, fault: StreamFault | EventTooLong) -> ModelError:
    """Returns the error for a stream that reported a failure or cannot be parsed."""
    if isinstance(fault, EventTooLong):
        return _make(StreamBroken, target, f"{target} sent {fault}", None, retryable=True)
    said = excerpt(fault.message, target.key).removesuffix(".")
    words = f"{target} failed in the middle of the answer: {said}"
    match fault.kind:
        case FaultKind.CONTEXT:
            return _make(ContextTooLong, target, f"{words}. {_CONTEXT_ADVICE}.", None)
        case FaultKind.KEY:
            advice = f"Set {target.key_variable} to a key that may use this model."
            return _make(KeyRefused, target, f"{words}. {advice}", None)
        case FaultKind.MISSING:
            return _make(ModelNotFound, target, words, None)
        case FaultKind.REFUSED:
            return _make(RequestRefused, target, words, None)
        case FaultKind.CREDIT:
            return _make(RateLimited, target, words, None)
        case FaultKind.RATE:
            return _make(RateLimited, target, words, None, retryable=True)
        case FaultKind.SERVER:
            return _make(ModelUnavailable, target, words, None, retryable=True)
        case FaultKind.BROKEN:
            return _make(StreamBroken, target, f"{target}: {said}", None, retryable=True)


def not_a_stream(target: Target, content_type: str, body: bytes) -> ModelError:
    """Returns the error for a 200 that is not an event stream: a JSON error, or a web page."""
    fault = error_in(body)
    if fault is not None:
        return from_stream(target, fault)
    kind = excerpt(content_type, target.key, chars_max=80)
    said = excerpt(body.decode("utf-8", "replace"), target.key, chars_max=160).removesuffix(".")
    return _make(
        StreamBroken,
        target,
        f"{target} answered with {kind}, not with a stream of events"
        + (f": {said}" if said else "")
        + f". Check {target.url_variable}: it must be the address of an API.",
        200,
    )


def timed_out(target: Target, phase: str) -> ModelError:
    words = f"{target} was too slow: {phase}"
    return _make(ModelTimeout, target, words, None, retryable=True)


class Stage(Enum):
    """How far an attempt has got."""

    CONNECTING = "connecting"
    WAITING = "waiting for the answer"
    STREAMING = "reading the answer"


def from_network(target: Target, error: BaseException, stage: Stage) -> ModelError:
    """Returns the error for a connection that failed or broke."""
    if stage is Stage.STREAMING:
        words = f"{target} closed the connection in the middle of the answer"
        return _make(StreamBroken, target, words, None, retryable=True)
    if stage is Stage.WAITING:
        words = f"{target} closed the connection without a proper answer"
        return _make(ModelUnavailable, target, words, None, retryable=True)
    # Loaded by now, because a connection was attempted; naming a model does not need it.
    import ssl

    cause = _root(error)
    host = target.host
    if isinstance(cause, ssl.SSLCertVerificationError):
        words = f"the certificate of {host} is not trusted ({cause.verify_message})"
        advice = f"Check {target.url_variable}, or install the authority that signed it."
        return _make(ModelUnreachable, target, f"{target.model}: {words}. {advice}", None)
    if isinstance(cause, ssl.SSLError):
        words = f"no TLS connection to {host} ({excerpt(cause.reason or 'handshake failed')})"
        advice = f"Does {target.url_variable} say https where the server speaks plain http?"
        return _make(ModelUnreachable, target, f"{target.model}: {words}. {advice}", None)
    if type(error).__name__ == "ClientConnectorDNSError" or type(cause).__name__ == "gaierror":
        words = f"the name {host} cannot be found"
        advice = f"Check the network and {target.url_variable}."
    elif type(error).__name__ == "ClientProxyConnectionError":
        words = f"the proxy on the way to {host} cannot be reached ({_os_words(cause)})"
        advice = "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."
    elif isinstance(cause, ConnectionRefusedError):
        words = f"nothing listens at {host}"
        advice = f"Start the server there, or set {target.url_variable} to where it is."
    elif isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        words = "no connection, because too many files are open"
        advice = "Raise the limit (ulimit -n), or run fewer things at once."
    else:
        words = f"{host} cannot be reached ({_os_words(cause)})"
        advice = "Check the network."
    return _make(
        ModelUnreachable, target, f"{target.model}: {words}. {advice}", None, retryable=True
    )


def _root(error: BaseException) -> BaseException:
    """Returns the system's own error from under the HTTP client's wrappers."""
    for _ in range(5):
        below = error.__cause__ or getattr(error, "os_error", None)
        if not isinstance(below, BaseException):
            break
        error = below
    return error


def _os_words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return excerpt(str(error.strerror), chars_max=120)
    return type(error).__name__


def _make(
    kind: type[ModelError],
    target: Target,
    message: str,
    status: int | None,
    *,
    retryable: bool = False,
) -> ModelError:
    return kind(message, retryable=retryable, model=target.model, host=target.host, status=status)
