"""Law 9: aimed. A stop for what has ended touches nothing; one for what is starting is kept."""

import threading

import anyio
import pytest

from bargein.cancel import (
    CancelSource,
    Cause,
    Token,
    as_current,
    current_token,
    is_interrupted,
    run_thread,
)

pytestmark = pytest.mark.anyio

STOP = Cause.USER_STOP


async def test_a_stop_of_what_has_ended_answers_false_and_touches_nothing() -> None:
    session = CancelSource("session")
    with CancelSource("turn", session.token) as turn:
        await anyio.lowlevel.checkpoint()
    assert not turn.cancel(STOP)
    with CancelSource("next turn", session.token) as following:
        with following.token.scope() as scope:
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        assert not scope.caught
    assert following.token.ended


async def test_a_stop_while_a_turn_is_only_starting_is_kept_and_honoured() -> None:
    """The source exists before anything else of the turn; stopping it early is not a no-op."""
    turn = CancelSource("turn")
    turn.cancel(STOP)
    started: list[str] = []

    async def build_agent(token: Token) -> None:
        with token.scope() as scope:
            await anyio.lowlevel.checkpoint()
            started.append("the agent")
        assert scope.caught

    await build_agent(turn.token)
    outcome = await run_thread(started.append, "a tool", token=turn.token, grace_s=1)
    assert outcome.status == "cancelled"
    assert started == []


async def test_a_stop_in_the_last_callback_does_not_hit_the_callers_next_await() -> None:
    for _ in range(100):
        turn = CancelSource("turn")

        async def agent(turn: CancelSource = turn) -> str:
            with turn.token.scope():
                await anyio.lowlevel.checkpoint()
                turn.cancel(STOP)
                return "answered"
            return "stopped"

        answer = await agent()
        assert answer == "answered"
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()


async def test_a_stop_of_one_call_of_a_turn_leaves_the_turn_running() -> None:
    turn = CancelSource("turn")
    calls = [turn.token.child(f"call {number}") for number in range(3)]
    ended: dict[str, bool] = {}

    async def run(call: CancelSource, over: anyio.Event) -> None:
        with call.token.scope() as scope:
            await over.wait()
        ended[call.token.name] = scope.caught

    over = anyio.Event()
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(run, call, over)
        await anyio.wait_all_tasks_blocked()
        calls[1].cancel(STOP)
        await anyio.wait_all_tasks_blocked()
        over.set()
    assert ended == {"call 0": False, "call 1": True, "call 2": False}
    assert not turn.token.cancelled


async def test_what_a_job_left_in_its_context_does_not_reach_the_next_job() -> None:
    seen: list[tuple[str | None, bool]] = []
    first, second = CancelSource("first"), CancelSource("second")

    def job() -> None:
        token = current_token()
        seen.append((token.name if token else None, is_interrupted()))

    await run_thread(job, token=first.token, grace_s=1, name="one")
    first.cancel(STOP)
    await run_thread(job, token=second.token, grace_s=1, name="two")
    assert seen == [("one", False), ("two", False)]
    assert current_token() is None


def test_a_reader_of_an_old_token_is_not_told_about_the_new_one() -> None:
    """The next run replaced the token on a shared object: the old tool read the new, clear one."""

    class Agent:
        token: Token

    agent = Agent()
    first, second = CancelSource("first"), CancelSource("second")
    agent.token = first.token
    seen: list[bool] = []
    replaced = threading.Event()

    def tool(token: Token) -> None:
        with as_current(token):
            replaced.wait(10)
            seen.append(is_interrupted())

    thread = threading.Thread(target=tool, args=(agent.token,))
    thread.start()
    first.cancel(STOP)
    agent.token = second.token
    replaced.set()
    thread.join()
    assert seen == [True]
