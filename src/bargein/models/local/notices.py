"""Notices of a local model for the user: something takes time, or needs attention.

A notice is for people: `str(notice)` is the sentence to show. It decides nothing. The listener is
called on the loop and must be quick; it is dropped if it raises.
"""

import logging
from collections.abc import Callable
from enum import StrEnum

import msgspec

_log = logging.getLogger(__name__)


class WaitingForFetch(msgspec.Struct, frozen=True, tag="waiting"):
    """Another process is fetching the same weights; we will use them."""

    elapsed_s: float

    def __str__(self) -> str:
        return "Another Bargein is fetching the embedded model; waiting for it."


class Fetching(msgspec.Struct, frozen=True, tag="fetching"):
    """`done_bytes` is 0 until the first byte has come."""

    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"Fetching the embedded model: {_share(self.done_bytes, self.total_bytes)}"


class Unpacking(msgspec.Struct, frozen=True, tag="unpacking"):
    """The fetched file is being checked and unpacked."""

    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"Checking and unpacking it: {_share(self.done_bytes, self.total_bytes)}"


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """The runtime is starting and reading the weights."""

    elapsed_s: float

    def __str__(self) -> str:
        return f"Loading the model ({self.elapsed_s:.0f} s)"


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    pid: int
    elapsed_s: float
    context_tokens: int

    def __str__(self) -> str:
        return f"The local model is ready, after {self.elapsed_s:.1f} s."


class Reading(msgspec.Struct, frozen=True, tag="reading"):
    """The model is reading the conversation before it answers."""

    done_tokens: int
    total_tokens: int

    def __str__(self) -> str:
        return f"Reading: {self.done_tokens} of {self.total_tokens} tokens"


class Died(msgspec.Struct, frozen=True, tag="died"):
    """The runtime died. The next request starts it again."""

    how: str
    restarts_left: int

    def __str__(self) -> str:
        then = "it will be started again" if self.restarts_left else "no restart for now"
        return f"The local model's process ended unexpectedly ({self.how}); {then}."


class WhyStopped(StrEnum):
    IDLE = "idle"
    CLOSED = "closed"
    HUNG = "hung"


class RuntimeStopped(msgspec.Struct, frozen=True, tag="stopped"):
    why: WhyStopped

    def __str__(self) -> str:
        return f"The local model was stopped ({self.why})."


class TooSmall(msgspec.Struct, frozen=True, tag="too_small"):
    """Shown once: something that this model does not get because it cannot use it."""

    name: str
    left_out: str

    def __str__(self) -> str:
        return f"{self.name} cannot use {self.left_out}, so it gets none: it can only talk."


Notice = (
    WaitingForFetch
    | Fetching
    | Unpacking
    | Loading
    | Ready
    | Reading
    | Died
    | RuntimeStopped
    | TooSmall
)

OnNotice = Callable[[Notice], object]


class LocalNotices:
    """Passes notices to the listener, if there is one."""

    def __init__(self, listener: OnNotice | None = None) -> None:
        self.listener = listener

    def __call__(self, notice: Notice) -> None:
        if self.listener is None:
            return
        try:
            self.listener(notice)
        except Exception:  # boundary: a failing display must not stop the model
            self.listener = None
            _log.exception("a listener to the local model's notices failed")


def _share(done_bytes: int, total_bytes: int) -> str:
    percent = 100 * done_bytes // max(total_bytes, 1)
    return f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB ({percent} %)"
