"""Processes that outlive calls: servers on standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys

import anyio
import anyio.lowlevel
import pytest

from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.process import (
    SERVICE_LADDER,
    CaptureLimits,
    Containment,
    InputClosed,
    Ladder,
    Means,
    Service,
    SpawnError,
)
from tests.process import zoo
from tests.process.conftest import CERTAIN

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(40)]

SHORT = Ladder(end_input_s=0.05, interrupt_s=None, terminate_s=0.05, kill_s=15)
PATIENT = Ladder(end_input_s=15, interrupt_s=None, terminate_s=15, kill_s=15)

# Answers each line with itself, and exits at the end of its input.
ECHO = "for line in sys.stdin: print('heard', line, end='', flush=True)"
# Goes on at the end of its input; says which signal it got, so that a SIGINT would be seen.
GOES_ON = """
def hear(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM: os._exit(3)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, hear)
print('ready', flush=True)
while True: time.sleep(60)
"""
DEAF = "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
# A server that starts a child in a session of its own.
LEAVES_ONE = """
if os.fork() == 0:
    os.setsid()
    for fd in (0, 1, 2): os.close(fd)
    time.sleep(600)
print('ready', flush=True)
"""
UNTIL_THE_END = "sys.stdin.read()"


async def serve(
    containment: Containment,
    program: str,
    source: CancelSource,
    *,
    ladder: Ladder = SHORT,
    wrapped: bool = False,
    mark: str = "",
    errors: CaptureLimits | None = None,
) -> Service:
    argv = [sys.executable, "-I", "-S", "-c", f"import os, signal, sys, time\n{program}"]
    if wrapped:
        # As npx and uvx do: the server is a grandchild.
        argv = ["sh", "-c", '"$@"; exit 0', "wrapper", *argv]
    return await containment.start_service(
        argv,
        cwd="/",
        env=zoo.environment(mark or zoo.new_mark()),
        token=source.token,
        ladder=ladder,
        errors=errors or CaptureLimits(),
    )


async def read_until(service: Service, wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        piece = await service.read()
        assert piece, (text, service.errors)
        text += piece
    return text


async def read_all(service: Service) -> bytes:
    pieces = []
    while piece := await service.read():
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_conversation(
    containment: Containment, source: CancelSource, wrapped: bool
) -> None:
    service = await serve(containment, ECHO, source, ladder=PATIENT, wrapped=wrapped)
    for number in range(3):
        await service.write(b"line %d\n" % number)
        assert await read_until(service, b"\n") == b"heard line %d\n" % number
    assert service.alive
    report = await service.stop()
    # It ended because its input did: no signal was sent.
    assert {each.ended_by for each in report.processes} <= {"exit 0", "ended"}
    assert report.elapsed_ms < 10_000
    assert str(service.exit) == "exit 0"
    assert await service.read() == b""
    with pytest.raises(InputClosed):
        await service.write(b"x")


async def test_a_write_at_once_is_whole_or_not_at_all(
    containment: Containment, source: CancelSource
) -> None:
    service = await serve(containment, "time.sleep(0.2)\n" + ECHO, source)
    line = b"x" * 99 + b"\n"
    written = 0
    while service.try_write(line):
        written += 1
    # The pipe is full.
    assert written > 100
    assert not service.try_write(b"x" * 100_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.write, line * 100)
        await anyio.lowlevel.checkpoint()
        # Another write waits, and nothing goes before the end of it.
        assert not service.try_write(b"y\n")
        heard = b""
        while heard.count(b"\n") < written + 100:
            heard += await service.read()
    assert heard == b"heard " + (b"\nheard ".join([line[:-1]] * (written + 100))) + b"\n"
    await service.stop()
    with pytest.raises(InputClosed):
        service.try_write(line)


async def test_output_and_errors_are_apart(containment: Containment, source: CancelSource) -> None:
    program = "print('out'); print('error', file=sys.stderr)"
    service = await serve(containment, program, source)
    assert await read_all(service) == b"out\n"
    assert str(await service.wait()) == "exit 0"
    assert service.errors.head == b"error\n"
    report = await service.stopped()
    assert report.found_over


async def test_one_that_ignores_the_end_of_its_input_gets_sigterm_and_no_sigint(
    containment: Containment, source: CancelSource
) -> None:
    service = await serve(containment, GOES_ON, source, ladder=Ladder(0.05, None, 15, 15))
    assert await read_until(service, b"ready\n") == b"ready\n"
    report = await service.stop()
    assert await read_all(service) == b"SIGTERM\n"
    assert str(service.exit) == "exit 3"
    assert report.elapsed_ms >= 50
    assert not zoo.runs(service.pid)


async def test_a_deaf_one_is_killed(containment: Containment, source: CancelSource) -> None:
    program = DEAF + "print('ready', flush=True)\nwhile True: time.sleep(60)"
    service = await serve(containment, program, source)
    await read_until(service, b"ready\n")
    report = await service.stop()
    assert str(service.exit) == "SIGKILL"
    assert report.elapsed_ms >= 1000 * (SHORT.total_s - SHORT.kill_s)
    assert report.confirmed == (containment.means is not Means.GROUP)


def test_a_stop_is_bounded_and_does_not_interrupt() -> None:
    assert SERVICE_LADDER.total_s < 1.5
    assert SERVICE_LADDER.end_input_s
    assert SERVICE_LADDER.interrupt_s is None


async def test_the_owners_token_stops_it(containment: Containment, source: CancelSource) -> None:
    with CancelSource("another") as call:
        service = await serve(containment, ECHO, source, ladder=PATIENT)
        call.cancel(Cause.USER_STOP)
        await service.write(b"still here\n")
        assert await read_until(service, b"\n") == b"heard still here\n"
    source.cancel(Cause.SHUTDOWN)
    report = await service.stop()
    assert str(service.exit) == "exit 0"
    assert not report.survivors
    with pytest.raises(Cancelled):
        await serve(containment, ECHO, source)


@pytest.mark.parametrize("means", CERTAIN, ids=str)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_nobody_is_left_after_it_has_ended_by_itself(
    containment: Containment, source: CancelSource, wrapped: bool
) -> None:
    mark = zoo.new_mark()
    service = await serve(
        containment, LEAVES_ONE + UNTIL_THE_END, source, wrapped=wrapped, mark=mark
    )
    await read_until(service, b"ready\n")
    assert len(zoo.alive(mark)) == 2 + wrapped
    service.close_input()
    report = await service.stopped()
    assert str(service.exit) == "exit 0"
    assert zoo.alive(mark) == []
    assert report.confirmed
    assert not report.found_over
    assert "SIGTERM" in {each.ended_by for each in report.processes}


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_a_stop_ends_its_children(containment: Containment, source: CancelSource) -> None:
    mark = zoo.new_mark()
    service = await serve(
        containment, DEAF + LEAVES_ONE + UNTIL_THE_END, source, wrapped=True, mark=mark
    )
    await read_until(service, b"ready\n")
    report = await service.stop()
    assert zoo.alive(mark) == []
    assert report.confirmed
    assert "SIGKILL" in {each.ended_by for each in report.processes}


async def test_output_waits_until_it_is_read(
    containment: Containment, source: CancelSource
) -> None:
    total = 5_000_000
    program = f"sys.stdout.write('x' * {total}); sys.stdout.flush(); sys.stderr.write('all')"
    service = await serve(containment, program, source, ladder=PATIENT)
    assert len(await service.read(1000)) == 1000
    # A pipe holds far less than all of it, so it cannot have written everything.
    await asyncio.sleep(0.05)
    assert service.exit is None
    assert service.errors.head == b""
    rest = await read_all(service)
    assert len(rest) == total - 1000
    await service.wait()
    assert service.errors.head == b"all"


async def test_a_flood_of_errors_blocks_nothing(
    containment: Containment, source: CancelSource
) -> None:
    program = "os.write(2, b'e' * 3_000_000)\nprint('done')"
    service = await serve(containment, program, source, errors=CaptureLimits(100, 1000))
    assert await read_all(service) == b"done\n"
    await service.wait()
    assert service.errors.total_bytes == 3_000_000
    assert len(service.errors.head) + len(service.errors.tail) == 1100


async def test_a_cancelled_read_loses_nothing(
    containment: Containment, source: CancelSource
) -> None:
    service = await serve(containment, ECHO, source)
    reading = asyncio.create_task(service.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    await service.write(b"a\n")
    assert await read_until(service, b"\n") == b"heard a\n"
    await service.stop()


async def test_a_writer_is_released_by_a_stop(
    containment: Containment, source: CancelSource
) -> None:
    """The server does not read, so that its input is full."""
    service = await serve(containment, "time.sleep(600)", source)
    writing = asyncio.create_task(service.write(b"x" * 10_000_000))
    reading = asyncio.create_task(service.read())
    await asyncio.sleep(0.01)
    assert not writing.done()
    await service.stop()
    with pytest.raises(InputClosed):
        await writing
    assert await reading == b""


async def test_a_reader_is_not_held_by_one_that_escaped_with_the_pipe(
    containment: Containment, source: CancelSource
) -> None:
    """Reading ends with the processes. Under a process group the pipe's holder lives on."""
    mark = zoo.new_mark()
    program = (
        "readable, writable = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n    os.write(writable, b'x')\n    time.sleep(600)\n"
        "os.read(readable, 1)\nprint('bye', flush=True)"
    )
    service = await serve(containment, program, source, mark=mark)
    assert await read_all(service) == b"bye\n"
    report = await service.stopped()
    assert report.confirmed or zoo.alive(mark)
    zoo.put_down(mark)


async def test_one_that_cannot_be_started(containment: Containment, source: CancelSource) -> None:
    with pytest.raises(SpawnError, match="not found"):
        await containment.start_service(
            ["no-such-server"], cwd="/", env={"PATH": os.defpath}, token=source.token
        )
