from __future__ import annotations

import asyncio
import os
from threading import get_ident

import anyio
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.cancel._loops import call_if_open, loop_caller, runs_in_loop


def test_what_is_called_into_a_loop_that_anyio_did_not_start_knows_where_it_runs() -> None:
    """A program of `asyncio.run`: there a callback, unlike a task, does not tell which loop it is
    in, and whatever it starts would fail."""

    async def main() -> None:
        over = asyncio.Event()

        def call() -> None:
            scopes.append(anyio.CancelScope())
            over.set()

        scopes: list[anyio.CancelScope] = []
        call_if_open(loop_caller(), call)
        await asyncio.wait_for(over.wait(), 30)
        assert scopes

    asyncio.run(main())


@pytest.mark.anyio
async def test_it_is_called_in_every_kind_of_loop() -> None:
    over = anyio.Event()
    call_if_open(loop_caller(), over.set)
    with anyio.fail_after(30):
        await over.wait()


@pytest.mark.anyio
async def test_a_thread_knows_whether_it_runs_a_loop() -> None:
    assert runs_in_loop()
    assert not await anyio.to_thread.run_sync(runs_in_loop)


@pytest.mark.anyio
async def test_a_thread_gives_way_to_the_loop_that_its_cancel_has_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After everything is delivered, once; and not if nobody was woken."""
    source, idle = CancelSource("job"), CancelSource("idle")
    given: list[tuple[int, bool, bool]] = []
    threads: list[int] = []
    monkeypatch.setattr(
        os,
        "sched_yield",
        lambda: given.append((get_ident(), source.token.cancelled, source.token.in_use)),
    )

    def cancel() -> None:
        threads.append(get_ident())
        idle.cancel(Cause.USER_STOP)
        source.cancel(Cause.USER_STOP)
        source.cancel(Cause.USER_STOP)

    with anyio.fail_after(30):
        with source.token.scope(), source.token.scope():
            await anyio.to_thread.run_sync(cancel)
            await anyio.sleep_forever()
    # Clocks of other tests may cancel something too, in threads of theirs.
    (thread,) = threads
    assert [each for each in given if each[0] == thread] == [(thread, True, False)]


@pytest.mark.anyio
async def test_a_loop_that_cancels_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it woke in itself runs next; to yield its core would only cost it time."""
    given: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(get_ident()))
    source = CancelSource("job")
    with source.token.scope() as scope:
        source.cancel(Cause.USER_STOP)
        await anyio.sleep_forever()
    assert scope.caught
    assert get_ident() not in given
