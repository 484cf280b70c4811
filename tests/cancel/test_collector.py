"""The garbage collector may run anywhere, and run finalizers that cancel."""

import gc
from collections.abc import Iterator
from functools import partial

import pytest

from bargein.cancel import CancelSource, Cause, bridge
from tests.cancel.harness import together

STOP = Cause.USER_STOP


class CancelsWhenCollected:
    """In a circle with itself, so that only the collector ends it."""

    def __init__(self, *sources: CancelSource) -> None:
        self.sources = sources
        self.circle = self

    def __del__(self) -> None:
        for source in self.sources:
            source.cancel(STOP)


@pytest.fixture
def eager_collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("eager_collector")
def test_finalizers_cancel_in_the_middle_of_everything() -> None:
    for _ in range(40):
        root = CancelSource("root")
        fired: list[int] = []
        sources = [root]
        for number in range(30):
            child = CancelSource(f"{number}", sources[number // 2].token)
            bridge(child.token, partial(fired.append, number))
            sources.append(child)
            if number % 5 == 4:
                child.link(sources[1].token)
            if number % 7 == 3:
                CancelsWhenCollected(child, sources[number // 2])
            if number == 28:
                CancelsWhenCollected(root)
        root.cancel(STOP)
        assert sorted(fired) == list(range(30))
        assert all(source.token.cancelled for source in sources)
        assert not any(source.token._below or source.token._above for source in sources)


@pytest.mark.usefixtures("eager_collector")
def test_finalizers_cancel_while_threads_do() -> None:
    root = CancelSource("root")
    missed: list[str] = []

    def work() -> None:
        for number in range(300):
            source = CancelSource(f"{number}", root.token)
            child = source.token.child("child")
            CancelsWhenCollected(source)
            if number % 2:
                source.seal()
                child.seal()
            else:
                source.cancel(STOP)
                if not child.token.cancelled:
                    missed.append(source.token.name)

    together(*([work] * 4))
    gc.collect()
    assert missed == []
    assert not root.token._below


def test_what_nobody_holds_is_collected() -> None:
    source = CancelSource("held by nobody")
    for _ in range(10):
        source = CancelSource("held by nobody", source.token)
    source.token.on_cancel(source.seal).remove()

    def count() -> int:
        found = (each for each in gc.get_objects() if type(each) is CancelSource)
        return sum(each.token.name == "held by nobody" for each in found)

    assert count() > 0
    del source
    gc.collect()
    assert count() == 0
