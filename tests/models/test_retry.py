from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.models.errors import ModelError
from bargein.models.retry import Again, FallBack, GiveUp, RetryPolicy, decide, parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
POLICY = RetryPolicy(attempts_max=4, total_s=100, delay_first_s=1, delay_max_s=5)


def error(*, retryable: bool = True, retry_after_s: float | None = None) -> ModelError:
    return ModelError("x", retryable=retryable, retry_after_s=retry_after_s)


def step(
    problem: ModelError,
    *,
    failures: int = 1,
    elapsed_s: float = 0.0,
    has_next: bool = False,
    chance: float = 1.0,
) -> Again | FallBack | GiveUp:
    return decide(
        POLICY,
        problem,
        failures=failures,
        elapsed_s=elapsed_s,
        has_next=has_next,
        random=lambda: chance,
    )


def test_the_delay_doubles_up_to_its_bound() -> None:
    policy = RetryPolicy(attempts_max=9, delay_first_s=1, delay_max_s=5)
    delays = [
        decide(policy, error(), failures=n, elapsed_s=0.0, has_next=False, random=lambda: 1.0)
        for n in range(1, 6)
    ]
    assert delays == [Again(1), Again(2), Again(4), Again(5), Again(5)]


@given(st.floats(0, 1), st.integers(1, 3))
def test_jitter_takes_at_most_half(chance: float, failures: int) -> None:
    found = step(error(), failures=failures, chance=chance)
    assert isinstance(found, Again)
    assert 2 ** (failures - 1) / 2 <= found.delay_s <= 2 ** (failures - 1)


def test_what_will_not_pass_is_not_tried_again() -> None:
    assert step(error(retryable=False)) == GiveUp()
    assert step(error(retryable=False), has_next=True) == FallBack()


def test_attempts_are_counted() -> None:
    assert isinstance(step(error(), failures=3), Again)
    assert step(error(), failures=4) == GiveUp()
    assert step(error(), failures=4, has_next=True) == FallBack()


def test_nothing_begins_after_the_time_is_up() -> None:
    assert isinstance(step(error(), elapsed_s=99), Again)
    assert step(error(), elapsed_s=99.5) == GiveUp()
    assert step(error(), elapsed_s=99.5, has_next=True) == FallBack()
    assert step(error(), elapsed_s=100.5, has_next=True) == GiveUp()


def test_the_provider_is_obeyed_unless_it_asks_too_much() -> None:
    assert step(error(retry_after_s=30), chance=0) == Again(30)
    assert step(error(retry_after_s=30), chance=1) == Again(31)
    assert step(error(retry_after_s=61)) == GiveUp()
    assert step(error(retry_after_s=61), has_next=True) == FallBack()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
        ("Sun, 01 Mar 2026 12:00:30", 30.0),
        ("soon", None),
        ("", None),
        ("nan", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, now=lambda: NOW) == seconds


@given(st.text(max_size=60))
def test_any_retry_after_is_a_number_or_nothing(value: str) -> None:
    found = parse_retry_after(value, now=lambda: NOW)
    assert found is None or found >= 0


def test_a_policy_needs_an_attempt() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RetryPolicy(attempts_max=0)
