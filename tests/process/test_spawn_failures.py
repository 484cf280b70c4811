"""A command that cannot be started raises an error that says why, and leaves nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bargein.cancel import CancelSource, Cause
from bargein.process import Containment, Means, Process, SpawnError, StopReport, open_containment
from tests.process import zoo
from tests.process.keeper import SHORT, keep
from tests.process.ordinary_user import as_ordinary_user
from tests.process.zoo import ZOO

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}


async def spawn(
    containment: Containment, argv: list[str], cwd: str = "/", env: dict[str, str] | None = None
) -> Process:
    with CancelSource("call") as source:
        process = await containment.spawn(argv, cwd=cwd, env=env or ENVIRONMENT, token=source.token)
        await process.wait()
        return process


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "words"),
    [
        (["no-such-command"], "/", errno.ENOENT, "'no-such-command' not found on PATH"),
        (["/no/such/command"], "/", errno.ENOENT, "/no/such/command"),
        (["true"], "/no/such/folder", errno.ENOENT, "/no/such/folder"),
        (["true"], "/etc/passwd", errno.ENOTDIR, "/etc/passwd"),
        (["/etc/passwd"], "/", errno.EACCES, "/etc/passwd"),
        (["/etc"], "/", errno.EACCES, "/etc"),
        (["true", "x" * 200_000], "/", errno.E2BIG, "too large"),
    ],
)
async def test_why(
    containment: Containment, argv: list[str], cwd: str, code: int, words: str
) -> None:
    with pytest.raises(SpawnError) as caught:
        await spawn(containment, argv, cwd)
    assert caught.value.errno == code
    assert words in str(caught.value)
    assert caught.value.command == argv[0]
    assert not caught.value.retryable
    assert containment.processes == ()
    assert (await spawn(containment, ["true"])).exit is not None


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([], {}),
        (["a\0b"], {}),
        (["true"], {"A=B": "1"}),
        (["true"], {"": "1"}),
        (["true"], {"A": "1\0"}),
    ],
)
async def test_what_no_program_could_be_given(
    containment: Containment, argv: list[str], env: dict[str, str]
) -> None:
    with CancelSource("call") as source, pytest.raises(ValueError, match=r"."):
        await containment.spawn(argv, cwd="/", env=env, token=source.token)


async def test_a_huge_environment(containment: Containment) -> None:
    """Larger than a packet of the helper's channel can be."""
    env = ENVIRONMENT | {f"VARIABLE_{n}": "x" * 100_000 for n in range(8)}
    argv = ["sh", "-c", "echo ${#VARIABLE_7}"]
    assert (await spawn(containment, argv, env=env)).output.head == b"100000\n"


async def test_the_folders_of_path_are_tried_in_turn(
    containment: Containment, tmp_path: Path
) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        program = tmp_path / name / "tool"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho {name}\n")
        program.chmod(mode)
    path = f"/no/such/folder:{tmp_path}/first:{tmp_path}/second"
    assert (await spawn(containment, ["tool"], env={"PATH": path})).output.head == b"second\n"
    with pytest.raises(SpawnError) as caught:
        await spawn(containment, ["tool"], env={"PATH": f"{tmp_path}/first"})
    assert caught.value.errno == errno.EACCES


@contextmanager
def no_descriptors_left(but: int = 0) -> Iterator[None]:
    """Lowers the limit to what is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    first_free = next(fd for fd in range(soft) if fd not in used)
    fillers = []
    top = max(used) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + but, hard))
    try:
        for _ in range(first_free, top):
            try:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for fd in fillers[len(fillers) - but :] if but else []:
            os.close(fd)
            fillers.remove(fd)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)


@pytest.mark.parametrize("argument", ["short", "long" * 25_000], ids=["short", "long"])
@pytest.mark.parametrize("left", range(12))
async def test_no_descriptor_left_to_start_with(
    containment: Containment, left: int, argument: str
) -> None:
    """A long request goes to the spare process in a file, which takes one more."""
    with no_descriptors_left(left):
        spawning = spawn(containment, ["true", argument])
        outcome = (await asyncio.gather(spawning, return_exceptions=True))[0]
    if not isinstance(outcome, Process):
        assert isinstance(outcome, SpawnError)
        assert outcome.errno == errno.EMFILE
        assert outcome.retryable
    assert (await spawn(containment, ["true"])).exit is not None


def start_others(count: int) -> None:
    for _ in range(count):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


@pytest.mark.parametrize("others", [0, 400], ids=["calm", "busy"])
async def test_no_descriptor_left_to_stop_with(
    containment: Containment, source: CancelSource, others: int
) -> None:
    """After many other starts, the processes since ours are listed instead of tried one by one."""
    kept = [await keep(containment, ZOO[name], source.token) for name in ("deaf", "setsid")]
    start_others(others)
    with no_descriptors_left():
        source.cancel(Cause.USER_STOP)
        reports = [await each.process.stop() for each in kept]
    for each, report in zip(kept, reports, strict=True):
        if containment.means is Means.GROUP:
            zoo.put_down(each.mark)
        else:
            assert report.confirmed
        assert zoo.alive(each.mark) == []


@pytest.mark.parametrize("means", [Means.SUPERVISOR, Means.GROUP], ids=str)
async def test_no_process_left_to_start_with(means: Means) -> None:
    """A limit on processes counts for ordinary users only."""
    program = f"""
import asyncio, resource, os
from bargein.cancel import CancelSource
from bargein.process import SpawnError, open_containment
async def main():
    async with await open_containment({means.value!r}) as containment:
        source = CancelSource("call")
        ready = await containment.spawn(["true"], cwd="/", env={{}}, token=source.token)
        await ready.settled()
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        if containment.means != "group":
            resource.prlimit(containment._backend.helper.pid, resource.RLIMIT_NPROC, (0, 0))
        for _ in range(3):
            try:
                process = await containment.spawn(["true"], cwd="/", env={{}}, token=source.token)
                await process.settled()
            except SpawnError as error:
                assert error.retryable, error
                print(error.errno)
        assert containment.processes == ()
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [*as_ordinary_user(), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    assert str(errno.EAGAIN) in done.stdout.split()


async def test_the_task_is_cancelled_while_it_starts(means: Means) -> None:
    """Whatever was started is stopped, and told; nothing is left."""
    heard: list[StopReport] = []
    mark = zoo.new_mark()
    async with await open_containment(
        means.value, on_stopped=lambda _process, report: heard.append(report)
    ) as containment:
        source = CancelSource("call")
        for turns in range(12):
            task = asyncio.create_task(
                containment.spawn(
                    ["sleep", "60"],
                    cwd="/",
                    env=zoo.environment(mark),
                    token=source.token,
                    ladder=SHORT,
                )
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await (await task).stop(hurry=True)
            except asyncio.CancelledError:
                pass
        for process in containment.processes:
            assert process.stopping
            await process.settled()
        assert zoo.alive(mark) == []
        assert all(report.confirmed or means is Means.GROUP for report in heard)


async def test_the_token_is_cancelled_while_it_starts(
    containment: Containment,
) -> None:
    mark = zoo.new_mark()
    for turns in range(8):
        source = CancelSource("call")
        task = asyncio.create_task(
            containment.spawn(
                ["sleep", "60"], cwd="/", env=zoo.environment(mark), token=source.token
            )
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        source.cancel(Cause.USER_STOP)
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(outcome, Process):
            await outcome.settled()
    assert zoo.alive(mark) == []
    assert containment.processes == ()


async def test_nothing_starts_in_a_closed_containment(means: Means, source: CancelSource) -> None:
    containment = await open_containment(means.value)
    await containment.aclose()
    await containment.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await containment.spawn(["true"], cwd="/", env={}, token=source.token)
