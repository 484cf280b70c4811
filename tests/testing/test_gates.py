import anyio
import pytest

from bargein.testing.gates import Gates

pytestmark = pytest.mark.anyio


async def steps(gates: Gates, done: list[str]) -> None:
    for name in ("one", "two"):
        await gates.hold(name)
        done.append(name)


async def test_a_point_that_nobody_closed_holds_nobody() -> None:
    done: list[str] = []
    await steps(Gates(), done)
    assert done == ["one", "two"]


async def test_a_task_is_held_at_the_point_until_it_is_opened() -> None:
    gates, done = Gates(), list[str]()
    gate = gates.close("two")
    async with anyio.create_task_group() as group:
        group.start_soon(steps, gates, done)
        await gate.reached()
        await anyio.wait_all_tasks_blocked()
        assert done == ["one"]
        assert (gate.held, gate.arrivals) == (1, 1)
        assert repr(gate) == "<Gate two: closed, 1 held, 1 arrived>"
        gate.open()
    assert done == ["one", "two"]
    assert gate.held == 0


async def test_reached_counts_and_open_lets_all_go() -> None:
    gates = Gates()
    gate = gates.close("one")
    done: list[str] = []
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(steps, gates, done)
        await gate.reached(times=3)
        assert done == []
        gates.open_all()
    assert len(done) == 6


async def test_a_cancel_ends_the_waiting() -> None:
    gates = Gates()
    gate = gates.close("one")
    async with anyio.create_task_group() as group:
        group.start_soon(steps, gates, [])
        await gate.reached()
        group.cancel_scope.cancel()
    assert gate.held == 0


async def test_a_gate_that_holds_somebody_is_not_replaced() -> None:
    gates = Gates()
    gate = gates.close("one")
    async with anyio.create_task_group() as group:
        group.start_soon(steps, gates, [])
        await gate.reached()
        with pytest.raises(RuntimeError, match="'one' still holds 1"):
            gates.close("one")
        gate.open()
    assert gates.close("one") is not gate
