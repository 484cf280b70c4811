"""Decides when to retry, how long to wait first, and when to fall back to another model. Pure.

A temporary failure is retried at the same model, after a jittered delay that doubles, or after the
delay that the provider asked for. A permanent failure, or one that has used up the attempts of its
model, falls back to the next model. No attempt begins after the total time budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from bargein.models.errors import ModelError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts_max` counts for each model of a chain, `total_s` for the whole chain."""

    attempts_max: int = 4
    total_s: float = 900.0
    delay_first_s: float = 0.5
    delay_max_s: float = 20.0
    retry_after_max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise ValueError(f"attempts_max must be at least 1, not {self.attempts_max}")


@dataclass(frozen=True, slots=True)
class Again:
    """Try the same model again."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class FallBack:
    """Ask the next model, at once."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise the error."""


def decide(
    policy: RetryPolicy,
    error: ModelError,
    *,
    failures: int,
    elapsed_s: float,
    has_next: bool,
    random: Callable[[], float],
) -> Again | FallBack | GiveUp:
    """Decides what follows the `failures`-th failure in a row, `elapsed_s` after opening."""
    if error.retryable and failures < policy.attempts_max:
        delay_s = _delay_s(policy, error, failures, random)
        if delay_s is not None and elapsed_s + delay_s <= policy.total_s:
            return Again(delay_s)
    if has_next and elapsed_s <= policy.total_s:
        return FallBack()
    return GiveUp()


def _delay_s(
    policy: RetryPolicy, error: ModelError, failures: int, random: Callable[[], float]
) -> float | None:
    ceiling_s = min(policy.delay_max_s, policy.delay_first_s * 2.0 ** (failures - 1))
    if error.retry_after_s is None:
        # Half of the delay is fixed, so that clients return neither at once nor all together.
        return ceiling_s * (0.5 + 0.5 * random())
    if error.retry_after_s > policy.retry_after_max_s:
        return None
    return error.retry_after_s + policy.delay_first_s * random()


def parse_retry_after(value: str | None, *, now: Callable[[], datetime]) -> float | None:
    """Returns the seconds of a Retry-After header (seconds or a date); None if it is neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        seconds = (date - now()).total_seconds()
    # `nan` compares false with everything.
    return max(seconds, 0.0) if seconds == seconds else None
