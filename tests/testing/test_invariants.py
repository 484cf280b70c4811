"""Each checker accepts a lawful history and reports one that breaks its law."""

import dataclasses

import pytest

from bargein.cancel import CancelSource, Cause, Reason, Token
from bargein.cancel.tree import assign
from bargein.testing.clock import ManualClock
from bargein.testing.invariants import (
    LAWS,
    CancelAsked,
    Isolation,
    LawBroken,
    Laws,
    OneWay,
    look_at,
    tokens_below,
)


def family() -> tuple[CancelSource, CancelSource, CancelSource]:
    root = CancelSource("root")
    return root, CancelSource("left", root.token), CancelSource("right", root.token)


def both() -> Laws:
    return Laws([Isolation(), OneWay()])


def forge(token: Token, **values: object) -> None:
    for name, value in values.items():
        assign(token, name, value)


def test_a_lawful_history_passes() -> None:
    root, left, right = family()
    laws = both()
    laws.observe_tree(root.token)
    laws.observe(CancelAsked(left.token, Cause.USER_STOP))
    left.cancel(Cause.USER_STOP)
    right.seal()
    born_late = CancelSource("late", left.token)
    laws.observe(look_at(born_late.token, left.token))
    laws.observe_tree(root.token)
    laws.check()
    laws.observe(CancelAsked(root.token, Reason(Cause.SHUTDOWN, "quit")))
    root.cancel(Reason(Cause.SHUTDOWN, "quit"))
    laws.observe_tree(root.token)
    laws.check()


def test_a_deadline_needs_not_be_asked_for() -> None:
    clock = ManualClock()
    source = CancelSource("timed", timeout_s=1, clock=clock)
    laws = both()
    laws.observe_tree(source.token)
    clock.advance(1)
    laws.check()


def test_tokens_below_follows_links_and_diamonds_once() -> None:
    root, left, right = family()
    shared = CancelSource("shared", left.token)
    shared.link(right.token)
    assert [token.name for token in tokens_below(root.token)] == ["root", "left", "right", "shared"]


def test_law_1_sees_a_sibling_that_was_hit() -> None:
    root, left, right = family()
    laws = both()
    laws.observe_tree(root.token)
    laws.observe(CancelAsked(left.token, Cause.USER_STOP))
    left.cancel(Cause.USER_STOP)
    forge(right.token, cancelled=True, reason=left.token.reason)
    with pytest.raises(LawBroken, match=r"law 1 \(isolation\): .*nobody asked") as caught:
        laws.check()
    assert caught.value.law == 1
    assert "<Token right: cancelled, user_stop>" in str(caught.value)
    assert "seen: TokenSeen(token=<Token right" in str(caught.value)


def test_law_1_sees_a_reason_that_comes_from_nowhere_above() -> None:
    root, left, right = family()
    laws = both()
    laws.observe_tree(root.token)
    laws.observe(CancelAsked(left.token, Cause.USER_STOP))
    left.cancel(Cause.USER_STOP)
    assert left.token.reason is not None
    forge(right.token, cancelled=True, reason=left.token.reason.below("left"))
    with pytest.raises(LawBroken, match="nothing above it was cancelled for"):
        laws.check()


def test_law_1_sees_a_child_that_was_missed() -> None:
    root, left, _ = family()
    laws = both()
    laws.observe_tree(root.token)
    laws.observe(CancelAsked(root.token, Cause.USER_STOP))
    forge(root.token, cancelled=True, reason=Reason(Cause.USER_STOP))
    with pytest.raises(LawBroken, match="the parent is cancelled, the token is not"):
        laws.check()
    assert not left.token.cancelled


def test_law_1_can_do_without_being_told_who_asked() -> None:
    root, left, _ = family()
    laws = Laws([Isolation(strict=False)])
    laws.observe_tree(root.token)
    left.cancel(Cause.BUDGET)
    laws.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cancelled": False, "reason": None}, "was cancelled, and is no longer"),
        ({"reason": Reason(Cause.SHUTDOWN)}, "the first reason was replaced"),
        ({"ended": True}, "both cancelled and ended"),
        ({"reason": None}, "cancelled without a reason"),
    ],
)
def test_law_2_sees_a_verdict_that_was_changed(change: dict[str, object], words: str) -> None:
    source = CancelSource("s")
    laws = Laws([OneWay()])
    laws.observe_tree(source.token)
    source.cancel(Cause.USER_STOP)
    laws.check()
    forge(source.token, **change)
    with pytest.raises(LawBroken, match=rf"law 2 \(one way\): {words}"):
        laws.check()


def test_law_2_sees_an_end_that_was_taken_back() -> None:
    source = CancelSource("s")
    laws = Laws([OneWay()])
    source.seal()
    laws.observe_tree(source.token)
    forge(source.token, ended=False)
    with pytest.raises(LawBroken, match="had ended, and is live again"):
        laws.check()


def test_further_laws_are_further_classes() -> None:
    @dataclasses.dataclass(frozen=True)
    class Settled:
        seconds: float

    class Bounded:
        law = 6

        def __init__(self) -> None:
            self._slowest = 0.0

        def observe(self, what: object) -> None:
            if isinstance(what, Settled):
                self._slowest = max(self._slowest, what.seconds)

        def check(self) -> None:
            if self._slowest > 1:
                raise LawBroken(self.law, f"settled after {self._slowest:g} s")

    laws = Laws([Isolation(), OneWay(), Bounded()])
    laws.observe(Settled(0.5), Settled(3))
    with pytest.raises(LawBroken, match=r"law 6 \(bounded\): settled after 3 s"):
        laws.check()
    assert list(LAWS) == list(range(1, 11))
