"""Name lookups, on threads that can be abandoned."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from bargein.net import resolver
from bargein.net.resolver import Found, ThreadResolver

pytestmark = pytest.mark.anyio


class HungLookup:
    """A name server that answers when told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.release = threading.Event()

    def __call__(self, host: str, port: int, **_: object) -> Found:
        self.calls.append(host)
        self.release.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
def hung() -> Iterator[HungLookup]:
    lookup = HungLookup()
    wait_until_none_is_under_way()
    yield lookup
    lookup.release.set()
    wait_until_none_is_under_way()


def wait_until_none_is_under_way() -> None:
    """They are counted, and a thread that was let go is still counted for a moment."""
    end = time.monotonic() + 30
    while resolver._under_way:
        assert time.monotonic() < end
        time.sleep(0.001)


async def until_called(lookup: HungLookup, count: int) -> None:
    async with asyncio.timeout(30):
        while len(lookup.calls) < count:  # noqa: ASYNC110 - the thread sends no event
            await asyncio.sleep(0.001)


async def test_this_machine_is_found() -> None:
    found = await ThreadResolver().resolve("localhost", 80)
    assert {entry["host"] for entry in found} <= {"127.0.0.1", "::1"}
    assert found[0]["port"] == 80
    assert found[0]["hostname"] == "localhost"


async def test_a_name_that_is_not_there() -> None:
    with pytest.raises(socket.gaierror):
        await ThreadResolver().resolve("nowhere.invalid", 80)


async def test_a_name_that_is_no_name() -> None:
    with pytest.raises(OSError, match="label"):
        await ThreadResolver().resolve("a" * 300 + ".invalid", 80)


async def test_requests_for_one_name_share_a_lookup(hung: HungLookup) -> None:
    asked = [asyncio.create_task(ThreadResolver(hung).resolve("a.test", 1)) for _ in range(50)]
    await until_called(hung, 1)
    hung.release.set()
    found = await asyncio.gather(*asked)
    assert hung.calls == ["a.test"]
    assert all(entry[0]["host"] == "127.0.0.1" for entry in found)


async def test_leaving_one_waiter_behind_harms_no_other(hung: HungLookup) -> None:
    impatient = asyncio.create_task(ThreadResolver(hung).resolve("a.test", 1))
    patient = asyncio.create_task(ThreadResolver(hung).resolve("a.test", 1))
    await until_called(hung, 1)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    hung.release.set()
    assert await patient


async def test_names_that_hang_are_bounded(hung: HungLookup) -> None:
    waiting = [
        asyncio.create_task(ThreadResolver(hung).resolve(f"{n}.test", 1))
        for n in range(resolver.LOOKUPS_MAX)
    ]
    await until_called(hung, resolver.LOOKUPS_MAX)
    with pytest.raises(OSError, match="already hang"):
        await ThreadResolver(hung).resolve("one-more.test", 1)
    hung.release.set()
    await asyncio.gather(*waiting)
    assert await ThreadResolver(hung).resolve("one-more.test", 1)


async def test_an_answer_after_the_loop_is_gone_harms_nobody(hung: HungLookup) -> None:
    async def leave() -> None:
        asyncio.ensure_future(ThreadResolver(hung).resolve("late.test", 1)).cancel()
        task = asyncio.ensure_future(ThreadResolver(hung).resolve("late.test", 1))
        await until_called(hung, 1)
        task.cancel()

    await asyncio.to_thread(asyncio.run, leave())
    hung.release.set()
    assert await ThreadResolver(hung).resolve("late.test", 1)


async def test_a_zone_is_kept() -> None:
    def lookup(*_: object, **__: object) -> Found:
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 1, 0, 3))]

    assert (await ThreadResolver(lookup).resolve("x.test", 1))[0]["host"] == "fe80::1%3"


PROGRAM = """
import asyncio, time
from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import ModelRequest
from bargein.models.dialects.chat import ChatDialect
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.retrying import RetryingModel

asked = []

def hang(*_, **__):
    asked.append(1)
    time.sleep(600)

async def main():
    endpoint = HttpEndpoint("m", "m", "http://model.test/v1", ChatDialect(), lookup=hang)
    source = CancelSource("request")

    async def ask():
        async with RetryingModel([endpoint]).open(ModelRequest(()), source.token) as stream:
            async for _ in stream:
                pass

    task = asyncio.create_task(ask())
    while not asked:
        await asyncio.sleep(0.001)
    source.cancel(Cause.USER_STOP)
    try:
        await task
    except Cancelled:
        print("cancelled")

asyncio.run(main())
print("gone")
"""


def test_a_hung_lookup_does_not_hold_the_programs_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.split() == ["cancelled", "gone"]
