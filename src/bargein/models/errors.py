"""Errors of models, as branches of the tree in `bargein.errors`.

    UserError
    ├── UnknownModel          no model has this name
    ├── MissingKey            the provider needs a key and none is set
    └── ScriptError           a script for the scripted model is invalid, or was not followed
    WorldError
    └── ModelError            a request failed; names model, host, status and what to do
        ├── ModelUnreachable  no connection: name, network, refusal, TLS
        ├── ModelTimeout      connected, but nothing arrived in time
        ├── KeyRefused        401, 403
        ├── ModelNotFound     404: no such model, or the address is not an API
        ├── RequestRefused    400 and similar: the provider does not accept this request
        │   └── ContextTooLong
        ├── RateLimited       429
        ├── ModelUnavailable  408, 5xx, 529, or an error inside the stream
        └── StreamBroken      the answer ended early or cannot be parsed

`retryable` describes one failure; `bargein.models.retry` decides how often to try again. No message
contains a key: `excerpt` removes it from the provider's words.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from bargein.contracts.model import ContextExceeded
from bargein.errors import UserError, WorldError

PROVIDER_TEXT_MAX: Final = 500


class UnknownModel(UserError):
    """No model has this name; the message lists the valid forms."""


class MissingKey(UserError):
    """The provider needs a key; the message names the variable to set."""


class ScriptError(UserError):
    """A script for the scripted model cannot be read, or the conversation did not follow it."""


class ModelError(WorldError):
    """One attempt failed; when a stream raises it, all attempts failed.

    `status` is the HTTP status, if one arrived. `retry_after_s` is the delay that the provider
    asked for. `tried` lists the errors of earlier attempts in order.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        model: str = "",
        host: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
        tried: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.model = model
        self.host = host
        self.status = status
        self.retry_after_s = retry_after_s
        self.tried = tried

    def __str__(self) -> str:
        message: str = self.args[0]
        if not self.tried:
            return message
        others = [each for each in dict.fromkeys(self.tried) if each != message]
        times = f"tried {len(self.tried) + 1} times"
        return f"{message} ({'; before that: '.join([times, *others])})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), retryable=self.retryable), self.args, self.__dict__


class ModelUnreachable(ModelError):
    """No connection could be made."""


class ModelTimeout(ModelError):
    """An attempt ran out of time. Not the user's doing, so it is retried."""


class KeyRefused(ModelError):
    """The provider does not accept the key."""


class ModelNotFound(ModelError):
    """The provider has no such model, or the address is not an API."""


class RequestRefused(ModelError):
    """The provider understood the request and does not accept it."""


class ContextTooLong(RequestRefused, ContextExceeded):
    """The conversation is longer than the model can read."""


class RateLimited(ModelError):
    """The provider wants fewer requests."""


class ModelUnavailable(ModelError):
    """The provider failed on its own side."""


class StreamBroken(ModelError):
    """The answer ended early or violated the protocol."""


class Secret:
    """A key that no repr, log or traceback shows. Call `reveal` only to fill the header."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(***)" if self._value else "Secret()"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret cannot be pickled")


def excerpt(text: str, secret: Secret | None = None, *, chars_max: int = PROVIDER_TEXT_MAX) -> str:
    """Returns a provider's text on one line: bounded, printable and without the key."""
    if secret:
        text = text.replace(secret.reveal(), "***")
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * chars_max]).split())
    return words if len(words) <= chars_max else words[: chars_max - 1] + "…"
