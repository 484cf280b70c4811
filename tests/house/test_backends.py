"""Code written against anyio is really tested on three event loops."""

from __future__ import annotations

import asyncio

import pytest
import trio

LOOPS = {"asyncio": "asyncio.unix_events", "uvloop": "uvloop", "trio": "trio"}


@pytest.mark.anyio
async def test_each_backend_is_the_loop_that_its_name_says(
    request: pytest.FixtureRequest,
) -> None:
    assert running_loop() == LOOPS[request.node.callspec.id]


def running_loop() -> str:
    if trio.lowlevel.in_trio_run():
        return "trio"
    return type(asyncio.get_running_loop()).__module__
