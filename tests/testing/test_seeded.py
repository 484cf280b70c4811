"""The same seed gives the same run, on both backends, in this process and in another."""

import asyncio
import hashlib
import random
import subprocess
import sys
import threading
import time
from typing import cast

import anyio
import pytest

from bargein.cancel import CancelSource, Cause, TaskOwner, current_token, run_abandonable, shield
from bargein.testing import seeded_asyncio, seeded_trio
from bargein.testing.seeded import Backend, Deadlock, Seeded, run_seeded

BACKENDS = ["trio", "asyncio"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return cast(Backend, request.param)


async def busy_scenario(run: Seeded) -> str:
    """Twenty tasks that sleep, meet in an event, and are stopped by a deadline; hashed."""
    trace: list[tuple[object, ...]] = []
    meeting = anyio.Event()

    async def worker(number: int) -> None:
        try:
            for step in range(6):
                await anyio.sleep(run.random.choice([0, 0, 0.25, 1.0]))
                trace.append((number, step, anyio.current_time(), random.random()))
                if number == 7 and step == 3:
                    meeting.set()
            await meeting.wait()
            trace.append((number, "met"))
        finally:
            trace.append((number, "over"))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(worker, number)
        source = CancelSource("whole", clock=run.clock, timeout_s=2.5)
        with source.token.scope():
            await anyio.sleep_forever()
        trace.append(("deadline", anyio.current_time()))
        group.cancel_scope.cancel()
    return hashlib.sha256(repr(trace).encode()).hexdigest()


def test_the_same_seed_gives_the_same_trace_and_others_give_others(backend: Backend) -> None:
    hashes = [run_seeded(busy_scenario, seed, backend=backend) for seed in [*range(8), *range(8)]]
    assert hashes[:8] == hashes[8:]
    assert len(set(hashes)) == 8


def test_another_process_has_the_same_trace(backend: Backend) -> None:
    code = (
        "from tests.testing.test_seeded import *\n"
        "junk = [object() for _ in range(random.SystemRandom().randrange(100_000))]\n"
        f"print(run_seeded(busy_scenario, 5, backend={backend!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == run_seeded(busy_scenario, 5, backend=backend)


def test_every_order_of_ready_tasks_is_found(backend: Backend) -> None:
    async def scenario(run: Seeded) -> str:
        order: list[str] = []

        async def one(name: str) -> None:
            await anyio.sleep(1)
            order.append(name)

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
        return "".join(order)

    orders = {run_seeded(scenario, seed, backend=backend) for seed in range(60)}
    assert orders == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_time_jumps_and_a_day_takes_no_time(backend: Backend) -> None:
    async def scenario(run: Seeded) -> float:
        began = anyio.current_time()
        await anyio.sleep(86_400 * 3)
        with shield(60), anyio.move_on_after(1000):
            await anyio.sleep_forever()
        return anyio.current_time() - began

    began = time.monotonic()
    assert run_seeded(scenario, 1, backend=backend) == 86_400 * 3 + 60
    assert time.monotonic() - began < 40


def test_the_kernel_runs_in_it_with_abandoned_work_and_all(backend: Backend) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await anyio.sleep(1)
            except anyio.get_cancelled_exc_class():
                pass

    async def scenario(run: Seeded) -> tuple[str, float]:
        token = current_token()
        assert token is not None
        assert token.clock is run.clock
        async with TaskOwner() as owner:
            with token.child("call", timeout_s=30) as source:
                outcome = await run_abandonable(
                    stubborn, token=source.token, grace_s=5, owner=owner
                )
            assert source.token.reason is not None
            assert source.token.reason.cause is Cause.DEADLINE
        return outcome.status, outcome.elapsed_s

    assert run_seeded(scenario, 3, backend=backend) == ("abandoned", 35.0)


def test_what_the_scenario_raises_is_raised_as_it_is(backend: Backend) -> None:
    async def scenario(run: Seeded) -> None:
        raise LookupError("of the scenario")

    with pytest.raises(LookupError, match="of the scenario"):
        run_seeded(scenario, 1, backend=backend)


def test_a_deadlock_is_found_and_says_who_waits_where(backend: Backend) -> None:
    async def waits_in_vain(never: anyio.Event) -> None:
        await never.wait()

    async def scenario(run: Seeded) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(waits_in_vain, anyio.Event(), name="the one in vain")

    with pytest.raises(Deadlock, match=r"seed 9 on .*\n(.|\n)*the one in vain waits in .*in_vain"):
        run_seeded(scenario, 9, backend=backend)


def test_a_thread_that_still_comes_is_waited_for(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (seeded_asyncio, seeded_trio):
        monkeypatch.setattr(module, "THREAD_S_MAX", 30.0)

    def comes_late() -> str:
        time.sleep(0.1)
        return "came"

    async def scenario(run: Seeded) -> str:
        return await anyio.to_thread.run_sync(comes_late)

    assert run_seeded(scenario, 1, backend=backend) == "came"


def test_plain_callbacks_keep_their_order_on_asyncio() -> None:
    async def scenario(run: Seeded) -> list[int]:
        order: list[int] = []
        for number in range(20):
            asyncio.get_running_loop().call_soon(order.append, number)
        await anyio.sleep(1)
        return order

    for seed in range(10):
        assert run_seeded(scenario, seed, backend="asyncio") == list(range(20))


def test_the_random_numbers_of_the_program_are_put_back(backend: Backend) -> None:
    async def scenario(run: Seeded) -> float:
        return random.random()

    random.seed(4)
    expected = random.random()
    random.seed(4)
    inside = run_seeded(scenario, 99, backend=backend)
    assert random.random() == expected
    assert inside == random.Random(99).random()


def test_one_run_at_a_time(backend: Backend) -> None:
    problems: list[str] = []

    async def scenario(run: Seeded) -> None:
        def second() -> None:
            try:
                run_seeded(scenario, 2, backend=backend)
            except RuntimeError as error:
                problems.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    run_seeded(scenario, 1, backend=backend)
    assert problems == ["one seeded run at a time: the schedulers share their random numbers"]


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="'trio' or 'asyncio', not 'curio'"):
        run_seeded(busy_scenario, 1, backend=cast(Backend, "curio"))


def test_without_trio_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['trio'] = None\n"
        "from bargein.testing.seeded import run_seeded\n"
        "async def scenario(run): return 'ran'\n"
        "print(run_seeded(scenario, 1, backend='asyncio'))\n"
        "try: run_seeded(scenario, 1)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ran, said = done.stdout.splitlines()
    assert ran == "ran"
    assert said.startswith("a seeded run on trio needs trio, which is not installed: pip install")
