from functools import partial

import pytest

from bargein.cancel import CancelSource, Cause, Clock
from bargein.testing.clock import ManualClock, VirtualClock
from bargein.testing.seeded import Seeded, run_seeded


def test_both_are_clocks_for_tokens() -> None:
    clocks: list[Clock] = [ManualClock(), VirtualClock()]
    assert len(clocks) == 2


def test_a_manual_clock_fires_each_timer_at_its_own_time_in_order() -> None:
    clock = ManualClock(now=100.0)
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, clock.now()))

    for name, when in (("late", 109.0), ("early", 101.0), ("never", 111.0), ("late too", 109.0)):
        clock.call_at(when, partial(note, name))
    clock.advance(10)
    assert fired == [("early", 101.0), ("late", 109.0), ("late too", 109.0)]
    assert clock.now() == 110.0
    assert clock.timers_held() == 1


def test_a_timer_added_by_a_timer_fires_in_the_same_advance() -> None:
    clock = ManualClock()
    fired: list[float] = []
    clock.call_at(1, lambda: clock.call_at(2, lambda: fired.append(clock.now())))
    clock.advance(3)
    assert fired == [2.0]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = ManualClock()
    fired: list[str] = []
    clock.call_at(1, lambda: fired.append("a")).cancel()
    clock.call_at(1, lambda: fired.append("b"))
    clock.advance(1)
    assert fired == ["b"]


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        ManualClock().advance(-1)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_token_deadline_and_a_sleep_are_on_one_virtual_scale(backend: str) -> None:
    import anyio

    async def scenario(run: Seeded) -> list[float]:
        began = anyio.current_time()
        first = CancelSource("first", clock=run.clock, timeout_s=3600)
        later = CancelSource("later", first.token, timeout_s=7200)
        with later.token.scope() as scope:
            await anyio.sleep(5000)
        assert scope.caught
        assert later.token.reason is not None
        assert later.token.reason.root.cause is Cause.DEADLINE
        return [anyio.current_time() - began, run.clock.now() - began]

    passed = run_seeded(scenario, 1, backend="trio" if backend == "trio" else "asyncio")
    assert passed == [3600.0, 3600.0]
