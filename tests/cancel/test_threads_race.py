"""Threads that begin together: exactly one winner, each callback once, nothing missed."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from bargein.cancel import CancelSource, Cause, Reason, Registration, TokenEnded, bridge
from tests.cancel.harness import frequent_switches, together

STOP = Reason(Cause.USER_STOP)
THREADS = 8
ROUNDS = 120


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with frequent_switches():
        yield


def test_one_of_many_cancels_wins_and_its_reason_stays() -> None:
    for _ in range(ROUNDS):
        source = CancelSource("contested")
        reasons = [Reason(Cause.USER_STOP, str(number)) for number in range(THREADS)]
        won = together(*(partial(source.cancel, reason) for reason in reasons))
        assert won.count(True) == 1
        assert source.token.reason == reasons[won.index(True)]


def test_one_of_many_seals_wins() -> None:
    for _ in range(ROUNDS):
        source = CancelSource("contested")
        assert together(*([source.seal] * THREADS)).count(True) == 1
        assert source.token.ended


def test_seal_against_cancel_has_one_winner_that_everybody_sees() -> None:
    for _ in range(ROUNDS):
        source = CancelSource("contested")

        def seal(source: CancelSource = source) -> tuple[bool, bool, bool]:
            return source.seal(), source.token.cancelled, source.token.ended

        def cancel(source: CancelSource = source) -> tuple[bool, bool, bool]:
            return source.cancel(STOP), source.token.cancelled, source.token.ended

        results = together(seal, cancel, seal, cancel, seal, cancel)
        assert [won for won, _, _ in results].count(True) == 1
        seen = {(cancelled, ended) for _, cancelled, ended in results}
        assert seen in ({(True, False)}, {(False, True)})


def test_unlink_against_a_cancel_of_the_parent_has_one_winner() -> None:
    for number in range(ROUNDS):
        parent, child = CancelSource("parent"), CancelSource("child")
        link = child.link(parent.token)
        cancel = partial(parent.cancel, STOP)
        if number % 2:
            one, first, other, second = together(link.unlink, cancel, link.unlink, cancel)
        else:
            first, one, second, other = together(cancel, link.unlink, cancel, link.unlink)
        assert [first, second].count(True) == 1
        assert [one, other].count(True) + child.token.cancelled == 1
        assert not parent.token._below
        assert not child.token._above


def test_a_callback_is_removed_or_called_and_never_both() -> None:
    for _ in range(ROUNDS):
        source = CancelSource("contested")
        calls: list[int] = []
        registrations = [
            bridge(source.token, partial(calls.append, number)) for number in range(20)
        ]

        def remove_all(registrations: list[Registration] = registrations) -> list[bool]:
            return [registration.remove() for registration in registrations]

        cancel: Callable[[], object] = partial(source.cancel, STOP)
        results = together(remove_all, cancel, remove_all, cancel)
        removed = [one or other for one, other in zip(results[0], results[2], strict=True)]  # type: ignore[call-overload]
        assert sorted(calls) == [number for number in range(20) if not removed[number]]


def test_a_callback_that_is_registered_while_a_cancel_comes_is_not_missed() -> None:
    for _ in range(ROUNDS):
        source = CancelSource("contested")
        calls: list[tuple[int, int]] = []

        def register(
            thread: int, source: CancelSource = source, calls: list[tuple[int, int]] = calls
        ) -> None:
            for number in range(10):
                bridge(source.token, partial(calls.append, (thread, number)))

        together(
            *(partial(register, thread) for thread in range(4)),
            partial(source.cancel, STOP),
        )
        assert sorted(calls) == [(thread, number) for thread in range(4) for number in range(10)]


def test_waiters_in_threads_all_wake_whichever_way_it_ends() -> None:
    for end in ("cancel", "seal"):
        for _ in range(30):
            source = CancelSource("awaited")
            finish: Callable[[], object] = (
                partial(source.cancel, STOP) if end == "cancel" else source.seal
            )
            results = together(*([partial(source.token.wait, 20)] * 6), finish)
            assert results[:6] == [end == "cancel"] * 6


def test_everything_at_once_in_one_tree() -> None:
    """Eight threads link, unlink, seal, cancel and make children at random in a shared tree. When
    all is cancelled at last, nothing is left, and each callback was called exactly once."""
    for seed in range(12):
        root = CancelSource("root")
        sources = [CancelSource(f"{n}", root.token) for n in range(10)]
        everything = [root, *sources]
        calls: list[str] = []

        def attack(
            number: int,
            seed: int = seed,
            everything: list[CancelSource] = everything,
            calls: list[str] = calls,
        ) -> None:
            chance = random.Random(f"{seed} {number}")
            numbers = count(number * 1000)
            for _ in range(150):
                source, other = chance.choice(everything[1:]), chance.choice(everything)
                deed = chance.random()
                try:
                    if deed < 0.45:
                        name = f"made {next(numbers)}"
                        child = CancelSource(name, other.token)
                        bridge(child.token, partial(calls.append, name))
                        everything.append(child)
                    elif deed < 0.75:
                        link = source.link(other.token)
                        if chance.random() < 0.7:
                            link.unlink()
                    elif deed < 0.88:
                        source.seal()
                    else:
                        source.cancel(STOP)
                except (TokenEnded, ValueError):
                    pass

        together(*(partial(attack, number) for number in range(THREADS)))
        for source in everything:
            source.cancel(STOP)
        expected = sorted(s.token.name for s in everything if s.token.cancelled)
        assert sorted(calls) == [name for name in expected if name.startswith("made")]
        for source in everything:
            assert source.token.cancelled != source.token.ended
            assert not source.token._below
            assert not source.token._above
            assert not source.token._hooks
