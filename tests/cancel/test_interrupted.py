"""A cancel, or anything else, comes while the same thread is inside the same token.

Every operation is interrupted before each of its instructions by every other one. Whatever the
place: no deadlock, one winner, each callback once, everything below flagged, nothing left over.
"""

from collections.abc import Callable

import pytest

from bargein.cancel import CancelSource, Cause, Link, Reason, Token, TokenEnded, bridge
from bargein.testing.clock import ManualClock
from tests.cancel.interruption import Interruption, at_each_instruction

STOP = Reason(Cause.USER_STOP)


def is_over(token: Token) -> bool:
    return token.cancelled or token.ended


def tokens_below(top: Token) -> list[Token]:
    """All that a cancel of `top` has to reach."""
    found = [top]
    for token in found:
        links = [link for link in token._below.values() if not was_unlinked(link)]
        found += [link._child for link in links if link._child not in found]
    return found


def was_unlinked(link: Link) -> bool:
    return any(fate.reason is None for fate in link._fate.values())


class Family:
    """Root, middle, leaf; the leaf also under another root; a callback on each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.root = CancelSource("root", clock=self.clock)
        self.other = CancelSource("other", clock=self.clock)
        self.middle = CancelSource("middle", self.root.token)
        self.leaf = CancelSource("leaf", self.middle.token)
        self.link = self.leaf.link(self.other.token)
        self.sources = [self.root, self.other, self.middle, self.leaf]
        self.fired: dict[str, int] = {}
        self.removed: set[str] = set()
        self.decisions: list[tuple[str, str]] = []
        self.unlinks = 0
        self.delivered_early: list[Token] = []
        self.registrations = {
            source.token.name: bridge(source.token, self._firing(source.token.name))
            for source in self.sources
        }

    def _firing(self, name: str) -> Callable[[], None]:
        def fire() -> None:
            self.fired[name] = self.fired.get(name, 0) + 1
            token = self.registrations[name]._token
            self.delivered_early += [below for below in tokens_below(token) if not is_over(below)]

        return fire

    def cancel(self, name: str) -> None:
        if getattr(self, name).cancel(STOP):
            self.decisions.append((name, "cancel"))
        assert all(is_over(token) for token in tokens_below(getattr(self, name).token))

    def seal(self, name: str) -> None:
        if getattr(self, name).seal():
            self.decisions.append((name, "seal"))
        assert is_over(getattr(self, name).token)

    def unlink(self) -> None:
        if self.link.unlink():
            self.unlinks += 1
        else:
            assert was_unlinked(self.link) or is_over(self.leaf.token)

    def remove(self) -> None:
        if self.registrations["middle"].remove():
            self.removed.add("middle")

    def child(self) -> None:
        name = f"child {len(self.sources)}"
        try:
            source = CancelSource(name, self.middle.token, timeout_s=5)
        except TokenEnded:
            return
        self.sources.append(source)
        self.registrations[name] = bridge(source.token, self._firing(name))

    def link_again(self) -> None:
        try:
            self.leaf.link(self.root.token)
        except TokenEnded:
            pass

    def expire(self) -> None:
        self.clock.advance(10)

    def check(self) -> None:
        assert self.unlinks <= 1
        assert self.delivered_early == []
        names = [name for name, _ in self.decisions]
        assert len(names) == len(set(names)), "two winners"
        for source in self.sources:
            token = source.token
            assert not (token.cancelled and token.ended)
            assert (token.reason is not None) == token.cancelled
            expected = 1 if token.cancelled and token.name not in self.removed else 0
            assert self.fired.get(token.name, 0) == expected
            if token.cancelled or token.ended:
                assert not token._hooks
            if token.cancelled or (token.ended and not token._below):
                assert not token._above
            for link in token._below.values():
                assert not link._child.cancelled
                assert not link._child.ended or link._child._below
        if ("root", "cancel") in self.decisions and not self.middle.token.ended:
            assert self.leaf.token.cancelled or self.leaf.token.ended
        if self.unlinks and ("other", "cancel") in self.decisions:
            reason = self.leaf.token.reason
            assert reason is None or reason.detail != "other"


OPERATIONS: dict[str, Callable[[Family], None]] = {
    "cancel root": lambda family: family.cancel("root"),
    "cancel other": lambda family: family.cancel("other"),
    "cancel leaf": lambda family: family.cancel("leaf"),
    "seal middle": lambda family: family.seal("middle"),
    "seal leaf": lambda family: family.seal("leaf"),
    "unlink": Family.unlink,
    "remove": Family.remove,
    "child": Family.child,
    "link": Family.link_again,
    "deadline": Family.expire,
}
INTERRUPTIONS = [
    "cancel root",
    "cancel other",
    "cancel leaf",
    "seal middle",
    "seal leaf",
    "unlink",
    "child",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
def test_one_inside_the_other(operation: str, interruption: str) -> None:
    def scene(interrupted: Callable[..., Interruption]) -> bool:
        family = Family()
        if operation == "deadline":
            family.child()
        inside = interrupted(lambda: OPERATIONS[interruption](family))
        inside.run(lambda: OPERATIONS[operation](family))
        family.check()
        return inside.happened

    assert at_each_instruction(scene) > 10


class HandlerRaised(BaseException):
    """What Ctrl-C is by default: raised by a signal handler, wherever the thread is."""


def raise_it() -> None:
    raise HandlerRaised


def test_a_handler_that_raises_inside_cancel_leaves_nothing_half_done() -> None:
    def scene(interrupted: Callable[..., Interruption]) -> bool:
        family = Family()
        inside = interrupted(raise_it)
        try:
            inside.run(lambda: family.root.cancel(STOP))
        except HandlerRaised:
            assert inside.happened
        if family.root.token.cancelled:
            # The one callback that it landed in is called again, since nobody knows how far it was.
            family.fired = {name: min(times, 1) for name, times in family.fired.items()}
            family.check()
        else:
            assert not family.root.token._cell
            assert family.fired == {}
        return inside.happened

    assert at_each_instruction(scene) > 100


def test_a_handler_that_raises_inside_seal_leaves_nothing_half_done() -> None:
    def scene(interrupted: Callable[..., Interruption]) -> bool:
        family = Family()
        family.seal("middle")
        inside = interrupted(raise_it)
        try:
            inside.run(family.leaf.seal)
        except HandlerRaised:
            assert inside.happened
        assert bool(family.leaf.token._cell) == family.leaf.token.ended
        family.check()
        return inside.happened

    assert at_each_instruction(scene) > 50


def test_what_the_handler_raised_is_raised_when_all_is_done() -> None:
    family = Family()
    inside = Interruption(60, raise_it)
    with pytest.raises(HandlerRaised):
        inside.run(lambda: family.root.cancel(STOP))
    family.check()
    assert family.leaf.token.cancelled
