from __future__ import annotations

import asyncio

import anyio
import pytest

from bargein.cancel._loops import call_if_open, loop_caller


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
