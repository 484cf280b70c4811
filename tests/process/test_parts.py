"""Tests of the small parts, one by one."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bargein.process import Captured, CaptureLimits, Ladder, PtySize, SpawnError
from bargein.process.exec_request import make_exec_request
from bargein.process.helper import procfs, wire
from bargein.process.listing import list_processes, parse_ps_line
from bargein.process.output import Capture
from bargein.process.process_report import MEMBERS_MAX, ProcessReport
from bargein.process.stopping import Rung, SignalGate, first_rung, next_rung
from bargein.process.waiting import Once


@pytest.mark.parametrize("seed", range(20))
def test_capture_keeps_the_ends_whatever_the_pieces(seed: int) -> None:
    chance = random.Random(seed)
    limits = CaptureLimits(chance.choice([0, 1, 7, 100]), chance.choice([0, 1, 9, 5000]))
    capture = Capture(limits)
    whole = b""
    for _ in range(50):
        piece = chance.randbytes(chance.choice([1, 3, 50, 4096, 70_000]))
        capture.add(piece)
        whole += piece
        captured = capture.snapshot()
        head = whole[: limits.head_bytes]
        rest = whole[len(head) :]
        tail = rest[max(0, len(rest) - limits.tail_bytes) :]
        assert captured == Captured(head, tail, len(rest) - len(tail))
        assert captured.total_bytes == len(whole)


def test_capture_holds_little_whatever_comes() -> None:
    limits = CaptureLimits(1000, 10_000)
    for size in (1, 10, 4095, 4096, 65_536):
        capture = Capture(limits)
        for _ in range(300_000 // size + 20):
            capture.add(b"x" * size)
        held = sum(map(len, capture._tail))
        assert held <= limits.tail_bytes + 2 * 65_536
        assert len(capture._tail) < 10


def test_captured_as_text_names_what_is_missing() -> None:
    assert Captured(b"a\xff", b"b").text() == "a\ufffdb"
    assert Captured(b"a", b"b", 7).text() == "a\n[... 7 bytes left out ...]\nb"


def test_every_step_of_the_ladder() -> None:
    ladder = Ladder(end_input_s=0.1)

    def step(rung: Rung, **facts: bool) -> Rung:
        names = ("spent", "leader_gone", "nobody_left", "hurry")
        return next_rung(rung, ladder, **{name: facts.get(name, False) for name in names})

    assert step(Rung.END_INPUT) is Rung.END_INPUT
    assert step(Rung.END_INPUT, spent=True) is Rung.INTERRUPT
    assert step(Rung.END_INPUT, leader_gone=True) is Rung.TERMINATE
    assert step(Rung.END_INPUT, hurry=True) is Rung.KILL
    assert step(Rung.INTERRUPT) is Rung.INTERRUPT
    assert step(Rung.INTERRUPT, spent=True) is Rung.TERMINATE
    assert step(Rung.INTERRUPT, leader_gone=True) is Rung.TERMINATE
    assert step(Rung.INTERRUPT, hurry=True) is Rung.KILL
    assert step(Rung.TERMINATE, leader_gone=True) is Rung.TERMINATE
    assert step(Rung.TERMINATE, spent=True) is Rung.KILL
    assert step(Rung.TERMINATE, hurry=True) is Rung.KILL
    assert step(Rung.KILL, leader_gone=True, hurry=True) is Rung.KILL
    assert step(Rung.KILL, spent=True) is Rung.OVER
    for rung in Rung:
        assert step(rung, nobody_left=True) is Rung.OVER
    assert step(Rung.OVER, spent=True) is Rung.OVER


def test_a_ladder_leaves_rungs_out() -> None:
    never = {"leader_gone": False, "nobody_left": False, "hurry": False}
    assert first_rung(Ladder()) is Rung.INTERRUPT
    assert first_rung(Ladder(interrupt_s=None)) is Rung.TERMINATE
    assert first_rung(Ladder(end_input_s=0.0)) is Rung.END_INPUT
    service = Ladder(end_input_s=0.1, interrupt_s=None)
    assert next_rung(Rung.END_INPUT, service, spent=True, **never) is Rung.TERMINATE


def test_the_whole_ladder_takes_less_than_a_second() -> None:
    assert 0.5 < Ladder().total_s < 1
    assert Ladder(end_input_s=1, interrupt_s=None, terminate_s=2, kill_s=3).total_s == 6
    with pytest.raises(ValueError, match="0 or more"):
        Ladder(end_input_s=-1)
    with pytest.raises(ValueError, match="0 or more"):
        Ladder(kill_s=-1)
    with pytest.raises(ValueError, match="0 or more"):
        CaptureLimits(head_bytes=-1)


def test_a_gate_lets_one_in_at_a_time() -> None:
    gate = SignalGate()
    assert gate.enter()
    assert not gate.enter()
    gate.leave()
    assert gate.enter()


def test_a_roll_is_bounded_and_remembers_the_first_word() -> None:
    report = ProcessReport()
    for pid in range(1, MEMBERS_MAX + 50):
        report.add(pid, f"command {pid}")
    report.signalled(1, 15)
    report.ended(1, "exit 0")
    report.ended(1, "SIGKILL")
    report.signalled(2, 9)
    report.ended(2)
    report.ended(10_000)
    ended = report.processes(began=0.0)
    assert [(each.pid, each.ended_by) for each in ended] == [(1, "exit 0"), (2, "SIGKILL")]
    report.everybody_ended()
    assert len(report.processes(0.0)) == MEMBERS_MAX


def test_an_order() -> None:
    request = make_exec_request(["ls", "-l"], cwd="/tmp/..", env={"PATH": "/a::/b"}, terminal=False)
    assert request.paths == [b"/a/ls", b"./ls", b"/b/ls"]
    assert request.directory == b"/"
    assert make_exec_request(["./x"], cwd="/", env={}, terminal=True).paths == [b"./x"]
    with pytest.raises(ValueError, match="list"):
        make_exec_request("ls -l", cwd="/", env={}, terminal=False)


@pytest.mark.parametrize("size", [0, wire.INLINE_BYTES_MAX, 3_000_000])
def test_a_message_of_any_size_arrives_with_its_descriptors(size: int) -> None:
    here, there = wire.pair()
    with here, there:
        readable, writable = os.pipe()
        wire.send(here, ("x", b"y" * size), [writable])
        os.close(writable)
        received = wire.receive(there)
        assert received is not None
        message, fds = received
        assert message == ("x", b"y" * size)
        assert [os.get_inheritable(fd) for fd in fds] == [False]
        os.write(fds[0], b"z")
        wire.close_all(fds)
        assert os.read(readable, 2) == b"z"
        os.close(readable)
        here.close()
        assert wire.receive(there) is None


def test_what_was_said_before_a_reset_is_heard() -> None:
    """The other end goes with something of ours unread: the kernel tells that first."""
    here, there = wire.pair()
    with here:
        wire.send(here, ("unread",))
        wire.send(there, ("last words",))
        there.close()
        received = wire.receive(here)
        assert received is not None
        assert received[0] == ("last words",)
        assert wire.receive(here) is None


def test_a_line_of_ps() -> None:
    line = "  501   1   501 Ss   Mon Nov 16 09:00:01 2026 /sbin/some thing --flag"
    listed = parse_ps_line(line)
    assert listed is not None
    assert listed[:4] == (501, 1, 501, 0)
    assert listed.command == "/sbin/some thing --flag"
    assert parse_ps_line(line.replace("Ss", "Z+")) is None
    assert parse_ps_line("") is None


def test_we_are_in_the_list_of_processes() -> None:
    listed = {each.pid: each for each in list_processes() or ()}
    assert listed[os.getpid()].parent == os.getppid()
    assert listed[os.getpid()].group == os.getpgrp()
    assert "python" in listed[os.getpid()].command


def test_a_stranger_is_not_signalled() -> None:
    """Signal 0 reaches nobody who is not below the root that is given."""
    assert procfs.send([os.getpid()], os.getpid(), 0) == []
    assert procfs.send([os.getpid()], os.getppid(), 0) == [os.getpid()]
    assert os.getpid() in procfs.descendants(os.getppid())
    assert procfs.descendants(os.getppid(), spared=[os.getpid()]).count(os.getpid()) == 0


FORKING = """
import ctypes, time
libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    libc.write(1, b"ready", 5)
    libc.sleep(600)
"""


@contextmanager
def forking() -> Iterator[int]:
    """A process that waits for its vfork, and cannot be woken meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", FORKING], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(5) == b"ready"
            # Its child may be quicker to write than it is to fall asleep.
            deadline = time.monotonic() + 20
            while procfs.status_fields(process.pid)[0] != b"D":
                assert time.monotonic() < deadline, procfs.status_fields(process.pid)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_is_about_to_start_another_is_named_whole() -> None:
    with forking() as pid:
        # Until it has been put to sleep the kernel does not say where.
        deadline = time.monotonic() + 20
        while not (named := procfs.command_of(pid)).startswith(f"{sys.executable} -I -c"):
            assert time.monotonic() < deadline, named


def test_a_process_that_is_stuck_in_the_kernel_is_named_without_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at a dead network drive; here the kernel is not believed when it says that it forks."""
    monkeypatch.setattr(procfs, "_FORKING", ())
    with forking() as pid:
        assert re.fullmatch(r"python[\d.]*", procfs.command_of(pid))


def test_whoever_has_ended_is_named_by_what_is_left_of_it() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert procfs.command_of(process.pid) == "true"
    assert procfs.command_of(process.pid) == ""


def test_whoever_is_told_has_a_name() -> None:
    """However soon it was gone."""
    report = ProcessReport()
    report.add(7, "")
    report.everybody_ended()
    (ended,) = report.processes(time.monotonic())
    assert ended.command == "(its name could not be read)"


def test_an_error_can_leave_a_process() -> None:
    error = SpawnError("no such thing", errno=2, command="x")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.errno, again.command, again.retryable) == (
        "no such thing",
        2,
        "x",
        False,
    )


def test_a_size_is_rows_and_columns() -> None:
    assert PtySize(rows=2, columns=3) == PtySize(2, 3)


@pytest.mark.anyio
async def test_each_waits_on_its_own() -> None:
    once: Once[int] = Once(asyncio.get_running_loop())
    waits = [asyncio.create_task(once.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    once.set(7)
    assert await asyncio.gather(*waits[1:]) == [7, 7]
    assert waits[0].cancelled()
    assert await once.wait() == 7
