"""Random trees, random deeds, one small model: the tree always agrees with it.

Deeds are done one after the other, inside the callbacks of one another, or several at once by
threads that begin together. Then some order of them, done in the model one after the other, has to
explain every answer that was given and everything that is seen afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bargein.cancel import CancelSource, Cause, Link, Reason, TokenEnded, bridge
from bargein.testing.invariants import CancelAsked, Isolation, Laws, OneWay, look_at
from tests.cancel.harness import frequent_switches, together

STOP = Reason(Cause.USER_STOP)
LIVE, CANCELLED, ENDED = "live", "cancelled", "ended"


@dataclass
class Model:
    """A tree of tokens without threads, callbacks and memory. Links are by number."""

    verdicts: list[str] = field(default_factory=list)
    links: dict[int, tuple[int, int]] = field(default_factory=dict)

    def below(self, top: int) -> Iterator[int]:
        yield top
        for parent, child in self.links.values():
            if parent == top:
                yield from self.below(child)

    def cancel(self, name: int) -> bool:
        decided = self.verdicts[name] == LIVE
        for each in set(self.below(name)) if decided else ():
            self.verdicts[each] = CANCELLED if self.verdicts[each] == LIVE else self.verdicts[each]
        return decided

    def seal(self, name: int) -> bool:
        decided = self.verdicts[name] == LIVE
        self.verdicts[name] = ENDED if decided else self.verdicts[name]
        return decided

    def link(self, number: int, parent: int, child: int) -> bool:
        if self.verdicts[child] == LIVE and self.verdicts[parent] != ENDED:
            self.links[number] = parent, child
            if self.verdicts[parent] == CANCELLED:
                self.cancel(child)
        return self.verdicts[child] != LIVE or number in self.links

    def unlink(self, number: int) -> bool:
        child = self.links.get(number, (0, 0))[1]
        return self.verdicts[child] == LIVE and self.links.pop(number, None) is not None


@dataclass(frozen=True)
class Deed:
    """`what`, with places in the lists of tokens or links, taken modulo how many there are."""

    what: str
    one: int
    other: int


deeds = st.builds(
    Deed,
    st.sampled_from(["cancel", "seal", "link", "unlink", "unlink", "cancel"]),
    st.integers(0, 999),
    st.integers(0, 999),
)


class TokenTree(RuleBasedStateMachine):
    TOKENS_MAX = 14

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.sources: list[CancelSource] = []
        self.links: dict[int, Link | None] = {}
        self.fired: dict[int, int] = {}
        self.laws = Laws([Isolation(), OneWay()])
        self.make(0, 0)

    # --- one after the other ---

    @precondition(lambda self: len(self.sources) < self.TOKENS_MAX)
    @rule(parent=st.integers(0, 999), parents=st.integers(0, 3))
    def make(self, parent: int, parents: int) -> None:
        """A new token under none to three others."""
        name = len(self.sources)
        source = CancelSource(str(name))
        self.sources.append(source)
        self.model.verdicts.append(LIVE)
        bridge(source.token, partial(self._fire, name))
        for number in range(parents if name else 0):
            self._agree(self._bound(Deed("link", parent + number, name), fixed_child=True))
        self.laws.observe(look_at(source.token))

    @rule(deed=deeds)
    def do(self, deed: Deed) -> None:
        self._agree(self._bound(deed))

    # --- inside the callbacks of one another ---

    @rule(name=st.integers(0, 999), deed=deeds)
    def do_when_cancelled(self, name: int, deed: Deed) -> None:
        """Cancel something; its callback does another deed, in the middle of the delivery."""
        name %= len(self.sources)
        inner = self._bound(deed)
        answers: list[bool] = []
        hook = bridge(self.sources[name].token, lambda: answers.append(self._do(inner)))
        if self.model.verdicts[name] == CANCELLED:
            assert answers == [self._do_in_model(self.model, inner)]
        else:
            self._agree(self._bound(Deed("cancel", name, 0)))
            expected = [self._do_in_model(self.model, inner)] if answers else []
            assert answers == expected
        hook.remove()

    # --- at once ---

    @rule(several=st.lists(deeds, min_size=2, max_size=4))
    def do_at_once(self, several: list[Deed]) -> None:
        bound = [self._bound(deed) for deed in several]
        answers = together(*(partial(self._do, deed) for deed in bound))
        seen = [self._verdict(name) for name in range(len(self.sources))]
        for order in permutations(range(len(bound))):
            model = Model(list(self.model.verdicts), dict(self.model.links))
            explained = {place: self._do_in_model(model, bound[place]) for place in order}
            if model.verdicts == seen and [explained[n] for n in range(len(bound))] == answers:
                self.model = model
                return
        pytest.fail(f"no order of {bound} explains {answers} and {seen} after {self.model}")

    # --- what must always hold ---

    @invariant()
    def the_tree_agrees_with_the_model(self) -> None:
        assert [self._verdict(name) for name in range(len(self.sources))] == self.model.verdicts

    @invariant()
    def each_callback_was_called_once_and_only_if_cancelled(self) -> None:
        cancelled = [n for n, verdict in enumerate(self.model.verdicts) if verdict == CANCELLED]
        assert self.fired == dict.fromkeys(cancelled, 1)

    @invariant()
    def the_laws_hold(self) -> None:
        for source in self.sources:
            self.laws.observe(look_at(source.token))
        self.laws.check()

    @invariant()
    def what_is_over_has_left(self) -> None:
        for source in self.sources:
            token = source.token
            if token.cancelled or (token.ended and not token._below):
                assert not token._above
            for link in token._below.values():
                assert not link._child.cancelled
                assert not link._child.ended or link._child._below

    # --- how a deed is done ---

    def _bound(self, deed: Deed, fixed_child: bool = False) -> Deed:
        """With real places; a parent is always the older one, so that no circle is tried."""
        if deed.what == "unlink":
            return Deed("unlink", deed.one % len(self.links) if self.links else -1, 0)
        if deed.what != "link":
            return Deed(deed.what, deed.one % len(self.sources), 0)
        child = deed.other if fixed_child else deed.other % len(self.sources)
        number = len(self.links)
        self.links[number] = None
        return Deed(f"link {number}", deed.one % child if child else -1, child)

    def _agree(self, deed: Deed) -> None:
        assert self._do(deed) == self._do_in_model(self.model, deed)

    def _do(self, deed: Deed) -> bool:
        if deed.one < 0:
            return False
        if deed.what == "unlink":
            link = self.links[deed.one]
            return link is not None and link.unlink()
        source = self.sources[deed.one]
        if deed.what == "cancel":
            self.laws.observe(CancelAsked(source.token, STOP))
            return source.cancel(STOP)
        if deed.what == "seal":
            return source.seal()
        child = self.sources[deed.other]
        self.laws.observe(look_at(child.token, source.token))
        try:
            self.links[int(deed.what[5:])] = child.link(source.token)
        except TokenEnded:
            return False
        return True

    @staticmethod
    def _do_in_model(model: Model, deed: Deed) -> bool:
        if deed.one < 0:
            return False
        if deed.what == "unlink":
            return model.unlink(deed.one)
        if deed.what == "cancel":
            return model.cancel(deed.one)
        if deed.what == "seal":
            return model.seal(deed.one)
        return model.link(int(deed.what[5:]), deed.one, deed.other)

    def _fire(self, name: int) -> None:
        self.fired[name] = self.fired.get(name, 0) + 1

    def _verdict(self, name: int) -> str:
        token = self.sources[name].token
        return CANCELLED if token.cancelled else ENDED if token.ended else LIVE


TestTokenTree = TokenTree.TestCase
TestTokenTree.settings = settings(
    max_examples=80,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True, scope="module")
def switching() -> Iterator[None]:
    with frequent_switches():
        yield
