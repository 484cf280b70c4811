"""What one process offers: output, input, exit, terminal, change of owner."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from bargein.cancel import Cancelled, CancelSource, Cause, start_thread
from bargein.process import (
    Captured,
    CaptureLimits,
    Containment,
    InputClosed,
    Ladder,
    Means,
    Process,
    PtySize,
    StopReport,
)
from tests.process import zoo
from tests.process.conftest import CERTAIN
from tests.process.keeper import PATIENT, SHORT, Said, keep
from tests.process.zoo import ZOO

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}


async def sh(containment: Containment, script: str, source: CancelSource) -> Process:
    return await containment.spawn(
        ["sh", "-c", script], cwd="/", env=ENVIRONMENT, token=source.token, ladder=SHORT
    )


async def test_output_and_exit_code(containment: Containment, source: CancelSource) -> None:
    process = await sh(containment, "echo out; echo err >&2; exit 3", source)
    ended = await process.wait()
    assert (ended.code, ended.signal, str(ended)) == (3, None, "exit 3")
    assert process.output == Captured(b"out\nerr\n")
    await process.settled()
    assert not process.alive
    assert (await process.stop()).found_over


async def test_death_by_a_signal_is_told(containment: Containment, source: CancelSource) -> None:
    process = await sh(containment, "kill -USR1 $$", source)
    assert str(await process.wait()) == "SIGUSR1"


async def test_the_environment_is_exactly_what_was_given(
    containment: Containment, source: CancelSource, tmp_path: Path
) -> None:
    """And, where there are cgroups, the tag of its enclosure."""
    program = "import os; print(*sorted(os.environ)); print(os.getcwd())"
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", program],
        cwd=tmp_path,
        env={"A": "1", "LC_CTYPE": "C.UTF-8"},
        token=source.token,
    )
    await process.wait()
    names, folder = process.output.text().splitlines()
    ours = [name for name in names.split() if name.startswith("BARGEIN_TAG_")]
    assert [name for name in names.split() if name not in ours] == ["A", "LC_CTYPE"]
    assert len(ours) == (1 if process.means is Means.CGROUP else 0)
    assert folder == str(tmp_path)


async def test_no_descriptor_of_ours_is_inherited(
    containment: Containment, source: CancelSource
) -> None:
    process = await sh(containment, "exec ls /proc/self/fd", source)
    await process.wait()
    # 3 is the directory that ls itself reads.
    assert process.output.head.split() == [b"0", b"1", b"2", b"3"]


def ignored_by_us() -> int:
    """What a plain child inherits, under `nohup` for example: the signals that this very process
    was started with as ignored. Python's own choices are undone for children."""
    own = (signal.SIGPIPE, signal.SIGXFSZ)
    ignored = [
        number
        for number in signal.valid_signals() - set(own)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    return sum(1 << (number - 1) for number in ignored)


async def test_signals_are_as_a_command_expects_them(
    containment: Containment, source: CancelSource
) -> None:
    process = await sh(containment, "exec grep -E '^Sig(Blk|Ign)' /proc/self/status", source)
    await process.wait()
    # Without the C library's own: a child of its posix_spawn, and all below, ignore one of them.
    # Python starts processes that way since 3.13, the workers of a test run for example.
    usable = sum(1 << (number - 1) for number in signal.valid_signals())
    values = [int(line.split()[1], 16) & usable for line in process.output.head.splitlines()]
    assert values == [0, ignored_by_us() if containment.means is Means.GROUP else 0]


async def test_input(containment: Containment, source: CancelSource) -> None:
    process = await containment.spawn(
        ["cat"], cwd="/", env=ENVIRONMENT, token=source.token, stdin="pipe"
    )
    data = b"0123456789" * 50_000
    await process.write(data)
    process.close_input()
    assert (await process.wait()).code == 0
    assert process.output.total_bytes == len(data)


async def test_writing_to_one_that_reads_no_more(
    containment: Containment, source: CancelSource
) -> None:
    process = await containment.spawn(
        ["true"], cwd="/", env=ENVIRONMENT, token=source.token, stdin="pipe"
    )
    await process.settled()
    with pytest.raises(InputClosed):
        await process.write(b"x" * 1_000_000)
    other = await sh(containment, "true", source)
    with pytest.raises(InputClosed, match="without a pipe"):
        await other.write(b"x")


async def test_a_writer_is_released_when_the_command_dies(
    containment: Containment, source: CancelSource
) -> None:
    process = await containment.spawn(
        ["sleep", "60"], cwd="/", env=ENVIRONMENT, token=source.token, stdin="pipe"
    )
    writing = asyncio.create_task(process.write(b"x" * 1_000_000))
    await asyncio.sleep(0)
    await process.stop(hurry=True)
    with pytest.raises(InputClosed):
        await writing


async def test_output_is_bounded_and_counted(
    containment: Containment, source: CancelSource
) -> None:
    program = "import sys; [sys.stdout.write(f'{n:07d}\\n') for n in range(100_000)]"
    process = await containment.spawn(
        [sys.executable, "-I", "-S", "-c", program],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        output=CaptureLimits(head_bytes=16, tail_bytes=24),
    )
    await process.wait()
    assert process.output == Captured(
        b"0000000\n0000001\n", b"0099997\n0099998\n0099999\n", 800_000 - 40
    )


async def test_output_that_is_not_text(containment: Containment, source: CancelSource) -> None:
    process = await sh(containment, r"printf '\377\376ok\000'", source)
    await process.wait()
    assert process.output.head == b"\xff\xfeok\0"
    assert process.output.text() == "\ufffd\ufffdok\0"


async def test_output_can_be_read_while_it_comes(
    containment: Containment, source: CancelSource
) -> None:
    said = Said()
    process = await containment.spawn(
        ["sh", "-c", "echo one; read line; echo two"],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        stdin="pipe",
        on_output=said.hear,
    )
    await said.wait_for(b"one")
    assert process.output.head == b"one\n"
    assert process.exit is None
    await process.write(b"\n")
    await process.wait()
    assert bytes(said.text) == b"one\ntwo\n"


async def test_a_listener_that_fails_hears_no_more_and_harms_nothing(
    containment: Containment, source: CancelSource, caplog: pytest.LogCaptureFixture
) -> None:
    heard = []

    def listen(piece: bytes) -> None:
        heard.append(piece)
        raise ValueError("no")

    process = await containment.spawn(
        ["sh", "-c", "echo one; read line; echo two"],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        stdin="pipe",
        on_output=listen,
    )
    await process.write(b"\n")
    await process.wait()
    assert process.output.head == b"one\ntwo\n"
    assert len(heard) == 1
    assert "gets no more of it" in caplog.text


async def test_wait_does_not_wait_for_who_holds_the_pipe(
    containment: Containment, source: CancelSource
) -> None:
    kept = await keep(containment, ZOO["pipe_holder"], source.token)
    assert (await kept.process.wait()).code == 0
    if containment.means is not Means.GROUP:
        assert kept.process.alive
        assert (await kept.process.stop()).confirmed
    zoo.put_down(kept.mark)


FLOOD_LINES = 1_000_000


@cache
def what_seq_writes(lines: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, lines + 1))


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize(
    "limits", [CaptureLimits(), CaptureLimits(0, 10), CaptureLimits(1 << 18, 1 << 20)], ids=str
)
async def test_of_a_flood_exactly_the_ends_are_kept(
    containment: Containment, source: CancelSource, limits: CaptureLimits, heard: bool
) -> None:
    """Also where the middle is thrown away by the kernel without being read."""
    written = what_seq_writes(FLOOD_LINES)
    pieces: list[int] = []
    process = await containment.spawn(
        ["seq", "1", str(FLOOD_LINES)],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        output=limits,
        on_output=(lambda piece: pieces.append(len(piece))) if heard else None,
    )
    await process.wait()
    output = process.output
    assert output.head == written[: limits.head_bytes]
    assert output.tail == written[len(written) - limits.tail_bytes :]
    assert output.total_bytes == len(written)
    assert sum(pieces) == (len(written) if heard else 0)


async def test_a_flood_does_not_starve_the_loop(
    containment: Containment, source: CancelSource
) -> None:
    kept = await keep(containment, ZOO["flood"], source.token)
    turns = 0
    while kept.process.output.total_bytes < 64 << 20:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    await kept.process.stop(hurry=True)


async def test_a_terminal(containment: Containment, source: CancelSource) -> None:
    said = Said()
    process = await containment.spawn(
        ["sh", "-c", "stty size; test -t 0 && test -t 2 && echo tty; read line; stty size"],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        pty=PtySize(rows=30, columns=90),
        on_output=said.hear,
    )
    await said.wait_for(b"tty")
    process.resize(PtySize(rows=40, columns=100))
    await process.write(b"\n")
    assert (await process.wait()).code == 0
    assert process.output.head.replace(b"\r", b"").split(b"\n")[:2] == [b"30 90", b"tty"]
    assert b"40 100" in process.output.head


async def test_the_end_of_a_terminals_input(containment: Containment, source: CancelSource) -> None:
    process = await containment.spawn(
        ["sh", "-c", "stty -echo; echo ready; cat"],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        pty=PtySize(),
        on_output=(said := Said()).hear,
    )
    await said.wait_for(b"ready")
    await process.write(b"line\n")
    await said.wait_for(b"line")
    process.close_input()
    assert (await process.wait()).code == 0


async def test_ctrl_c_reaches_a_program_that_switched_it_off(
    containment: Containment, source: CancelSource
) -> None:
    """In raw mode the byte does nothing; the signal does."""
    process = await containment.spawn(
        [
            "sh",
            "-c",
            "stty raw; trap 'echo caught; exit 5' INT; echo ready; while :; do read x; done",
        ],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        pty=PtySize(),
        on_output=(said := Said()).hear,
        ladder=PATIENT,
    )
    await said.wait_for(b"ready")
    source.cancel(Cause.USER_STOP)
    await process.stop()
    assert process.exit is not None
    assert process.exit.code == 5


async def test_the_report_names_each_process(
    containment: Containment, source: CancelSource
) -> None:
    kept = await keep(containment, ZOO["family"], source.token)
    report = await kept.process.stop(PATIENT)
    assert report.means is containment.means
    assert len(report.processes) == 3
    leader = next(each for each in report.processes if each.pid == kept.process.pid)
    assert leader.ended_by == "SIGINT"
    assert "animals.py family" in leader.command
    assert all("animals.py" in each.command for each in report.processes)
    assert all(0 <= each.elapsed_ms <= report.elapsed_ms for each in report.processes)


async def test_the_report_leaves_out_who_had_ended_before(
    containment: Containment, source: CancelSource
) -> None:
    """Nobody has collected it, so that it can still be seen: as a bare name, at the moment of the
    stop."""
    script = "exec 3<&0; cat <&3 & echo $!; exec sleep 600"
    said = Said()
    process = await containment.spawn(
        ["sh", "-c", script],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        stdin="pipe",
        on_output=said.hear,
    )
    await said.wait_for(b"\n")
    until_it_runs(process.pid, "sleep 600")
    process.close_input()
    await asyncio.to_thread(until_it_has_ended, int(said.text))
    report = await process.stop(PATIENT)
    assert [each.pid for each in report.processes] == [process.pid]


def until_it_runs(pid: int, command: str) -> None:
    deadline = time.monotonic() + 20
    while zoo.command(pid) != command:
        assert time.monotonic() < deadline, zoo.command(pid)


def until_it_has_ended(pid: int) -> None:
    """And waits for somebody to collect it."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, pid


def until_it_sleeps(mark: str) -> None:
    """A process in the middle of its exec has no environment, so no mark, for a moment."""
    deadline = time.monotonic() + 20
    while [zoo.command(pid) for pid in zoo.alive(mark)] != ["sleep 600"]:
        assert time.monotonic() < deadline, "nobody sleeps"


def without_a_turn_of_the_loop_until_gone(process: Process, mark: str) -> None:
    """The dying lose their environment a moment before the kernel counts them as gone from their
    cgroup, in which they could be sent another signal."""
    deadline = time.monotonic() + 20
    while zoo.alive(mark) or _is_populated(process):
        assert time.monotonic() < deadline, "nobody has been signalled"


def _is_populated(process: Process) -> bool:
    if process.means is not Means.CGROUP:
        return False
    directory = process._enclosure.directory  # type: ignore[attr-defined]
    return "populated 1" in Path(directory, "cgroup.events").read_text()


@pytest.mark.parametrize("means", CERTAIN, ids=str)
async def test_whom_the_first_process_left_the_canceller_signals_too(
    means: Means, containment: Containment, source: CancelSource
) -> None:
    mark = zoo.new_mark()
    process = await containment.spawn(
        ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"],
        cwd="/",
        env=zoo.environment(mark),
        token=source.token,
        ladder=PATIENT,
    )
    await process.wait()
    await asyncio.sleep(0)  # in which the backend hears that the first process has ended
    until_it_sleeps(mark)
    source.cancel(Cause.USER_STOP)
    without_a_turn_of_the_loop_until_gone(process, mark)
    report = await process.stop()
    assert report.confirmed
    others = [each for each in report.processes if each.pid != process.pid]
    assert [each.ended_by for each in others] == ["SIGTERM"]


async def test_the_report_names_whom_the_canceller_s_signal_ended(
    containment: Containment, source: CancelSource
) -> None:
    """The first signal is quicker than any look at who is there, unless that comes first."""
    kept = await keep(containment, ZOO["family"], source.token, ladder=PATIENT)
    source.cancel(Cause.USER_STOP)
    # A group is looked for in all of /proc, which a canceller's thread must not do.
    named = 1 if containment.means is Means.GROUP else 3
    without_a_turn_of_the_loop_until_gone(kept.process, kept.mark)
    report = await kept.process.stop()
    assert len(report.processes) >= named
    assert {each.ended_by for each in report.processes[:named]} == {"SIGINT"}
    assert all("animals.py" in each.command for each in report.processes)


async def test_one_that_takes_its_time_over_a_signal_was_ended_by_it(
    containment: Containment, source: CancelSource, tmp_path: Path
) -> None:
    """It is looked at while it ends: that it was there before counts, not that it still is."""
    gate, number = tmp_path / "gate", tmp_path / "number"
    slow = (
        f"trap 'echo caught; until [ -e {gate} ]; do sleep 0.01; done; exit 0' INT; "
        f"echo $$ > {number}; echo ready; while :; do sleep 0.01; done"
    )
    process = await containment.spawn(
        ["sh", "-c", 'trap : INT; sh -c "$1"; exit 0', "sh", slow],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        on_output=(said := Said()).hear,
        ladder=PATIENT,
    )
    await said.wait_for(b"ready")
    source.cancel(Cause.USER_STOP)
    await said.wait_for(b"caught")
    gate.touch()
    report = await process.stop()
    (told,) = [each for each in report.processes if each.pid == int(number.read_text())]
    assert told.ended_by in ("SIGINT", "exit 0")


async def test_the_ladder_is_climbed_to_the_rung_that_is_needed(
    containment: Containment, source: CancelSource
) -> None:
    deaf = await keep(containment, ZOO["deaf"], source.token)
    report = await deaf.process.stop()
    assert {each.ended_by for each in report.processes} == {"SIGKILL"}
    assert report.elapsed_ms >= 1000 * (SHORT.total_s - SHORT.kill_s)
    shell = await containment.spawn(
        ["sh", "-c", "trap '' INT; sleep 60 & echo ready; wait"],
        cwd="/",
        env=ENVIRONMENT,
        token=source.token,
        on_output=(said := Said()).hear,
    )
    await said.wait_for(b"ready")
    report = await shell.stop(Ladder(interrupt_s=0.05, terminate_s=15, kill_s=15))
    assert {each.ended_by for each in report.processes} == {"SIGTERM"}


async def test_hurry_skips_the_polite_rungs(containment: Containment, source: CancelSource) -> None:
    kept = await keep(containment, ZOO["deaf"], source.token)
    slow = asyncio.create_task(kept.process.stop(Ladder(interrupt_s=20)))
    await asyncio.sleep(0)
    report = await kept.process.stop(hurry=True)
    assert report.elapsed_ms < 10_000
    assert await slow is report


async def test_two_stops_at_once_are_one(containment: Containment, source: CancelSource) -> None:
    kept = await keep(containment, ZOO["family"], source.token)
    reports = await asyncio.gather(*(kept.process.stop() for _ in range(5)))
    assert all(report is reports[0] for report in reports)


async def test_a_stop_goes_on_when_its_caller_is_cancelled(
    containment: Containment, source: CancelSource
) -> None:
    kept = await keep(containment, ZOO["deaf"], source.token)
    stopping = asyncio.create_task(kept.process.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await kept.process.settled()
    assert kept.process.stop_report is not None


async def test_stop_races_with_the_end(containment: Containment, source: CancelSource) -> None:
    for _ in range(30):
        process = await sh(containment, "exit 0", source)
        report, ended = await asyncio.gather(process.stop(), process.wait())
        assert ended.code == 0 or ended.signal is not None
        assert report.confirmed or containment.means is Means.GROUP


async def test_a_cancel_from_another_thread_races_with_the_end(
    containment: Containment,
) -> None:
    """The signal is sent by number: it must never go out after the number was given back."""
    for _ in range(50):
        with CancelSource("call") as source:
            process = await sh(containment, "exit 0", source)
            start_thread(source.cancel, Cause.USER_STOP)
            await process.wait()
            await process.settled()


async def test_adopted_by_another_token(containment: Containment) -> None:
    turn, session = CancelSource("turn"), CancelSource("session")
    process = await sh(containment, "sleep 60", turn)
    assert process.adopt(session.token)
    turn.cancel(Cause.USER_STOP)
    await asyncio.sleep(0)
    assert process.alive
    assert not process.stopping
    session.cancel(Cause.SHUTDOWN)
    await process.settled()
    assert process.stop_report is not None


async def test_adopted_too_late(containment: Containment, source: CancelSource) -> None:
    turn = CancelSource("turn")
    process = await sh(containment, "sleep 60", turn)
    turn.cancel(Cause.USER_STOP)
    assert not process.adopt(source.token)
    await process.settled()
    assert not process.adopt(source.token)


async def test_adopted_by_a_token_that_is_cancelled_already(containment: Containment) -> None:
    turn, gone = CancelSource("turn"), CancelSource("gone")
    gone.cancel(Cause.SHUTDOWN)
    process = await sh(containment, "sleep 60", turn)
    assert not process.adopt(gone.token)
    await process.settled()


async def test_nothing_starts_under_a_cancelled_token(
    containment: Containment, tmp_path: Path
) -> None:
    source = CancelSource("call")
    source.cancel(Cause.USER_STOP)
    with pytest.raises(Cancelled):
        await sh(containment, f"touch {tmp_path}/started", source)
    assert os.listdir(tmp_path) == []
    assert containment.processes == ()


async def test_one_is_stopped_and_the_others_go_on(containment: Containment) -> None:
    everyone = CancelSource("session")
    calls = [everyone.token.child(f"call {number}") for number in range(20)]
    processes = await asyncio.gather(*(sh(containment, "sleep 60", each) for each in calls))
    calls[7].cancel(Cause.USER_STOP)
    await processes[7].settled()
    others = [each for each in processes if each is not processes[7]]
    assert all(each.alive and not each.stopping for each in others)
    assert set(containment.processes) == set(others)
    everyone.cancel(Cause.SHUTDOWN)
    await asyncio.gather(*(each.settled() for each in processes))


async def test_whoever_listens_hears_of_every_stop(means: Means) -> None:
    from bargein.process import open_containment

    heard: list[tuple[Process, StopReport]] = []
    async with await open_containment(
        means.value, on_stopped=lambda process, report: heard.append((process, report))
    ) as containment:
        source = CancelSource("call")
        process = await sh(containment, "sleep 60", source)
        source.cancel(Cause.USER_STOP)
        report = await process.stop()
        done = await sh(containment, "true", CancelSource("other"))
        await done.settled()
        await done.stop()
    assert heard == [(process, report)]
