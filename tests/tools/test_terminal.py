"""`terminal` and `process` on real commands: what they report, what a stop ends, what goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import anyio
import msgspec
import pytest

from bargein.cancel import CancelSource, Cause
from bargein.contracts.tool import CallResult, CallStatus
from bargein.process import CaptureLimits, MeansChoice
from bargein.tools import invoke
from bargein.tools.tool_environment import ToolSettings
from tests.conftest import BACKENDS, Backend
from tests.process.keeper import PATIENT
from tests.tools.bench_of_tools import Shop, means_that_work, open_shop
from tests.tools.conftest import set_ladder
from tests.tools.desk import Desk, call, text_of, until, with_enough_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    """Processes are for asyncio, on either of its loops."""
    name: str = request.param
    return BACKENDS[name]


STUBBORN = "trap '' INT TERM; echo $$ > pid; while :; do sleep 0.1; done"
ESCAPEE = "setsid sh -c '(sleep 1000 & echo $! > pid; wait) &' & while :; do sleep 0.1; done"


async def test_output_and_exit_code_are_told(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "terminal", command="echo out; echo err >&2; exit 3")
    assert result.status is CallStatus.FINISHED
    assert re.fullmatch(r"out\nerr\n\[exit code 3, \d+\.\d s\]", text_of(result))
    assert result.summary == "exit code 3"
    assert result.unsuccessful
    assert not result.is_error
    assert "".join(desk.live) == "out\nerr\n"
    result = await shop.use(desk, "terminal", command="true")
    assert result.summary == "finished"
    assert not result.unsuccessful
    assert text_of(result).startswith("(no output)\n[exit code 0,")
    result = await shop.use(desk, "terminal", command="kill -SEGV $$")
    assert "[ended by SIGSEGV" in text_of(result)
    assert result.unsuccessful
    assert result.summary == "ended by SIGSEGV"


async def test_it_runs_in_the_folder_asked_for_with_nobody_to_ask(shop: Shop, desk: Desk) -> None:
    (shop.folder / "sub").mkdir()
    result = await shop.use(desk, "terminal", command="pwd; cat; echo $TERM $PAGER", cwd="sub")
    assert text_of(result).startswith(f"{shop.folder}/sub\ndumb cat\n")
    result = await shop.use(desk, "terminal", command="pwd", cwd="nowhere")
    assert result.status is CallStatus.FAILED
    assert "nowhere" in text_of(result)


async def test_keys_do_not_reach_a_command(warm_loop: None, tmp_path: Path, desk: Desk) -> None:
    async with open_shop(tmp_path, settings=ToolSettings(environment_allowed=("B_TOKEN",))) as shop:
        assert "A_TOKEN" not in shop.tool_environment.environment
        result = await shop.use(desk, "terminal", command="env")
        assert "PATH=" in text_of(result)
        assert "KEY" not in text_of(result)


async def test_output_is_cut_in_the_middle_and_says_so(
    warm_loop: None, tmp_path: Path, desk: Desk
) -> None:
    settings = ToolSettings(output_limits=CaptureLimits(1000, 3000))
    async with open_shop(tmp_path, settings=settings) as shop:
        result = await shop.use(desk, "terminal", command="yes 0123456 | head -c 8000000; echo END")
        text = text_of(result)
        assert len(text) < 4300
        assert "[... 7996004 bytes left out ...]" in text
        assert "END\n[exit code 0" in text
        # What is shown live is bounded too.
        assert sum(len(piece) for piece in desk.live) < 1 << 20


async def test_a_terminal_on_request(shop: Shop, desk: Desk) -> None:
    command = (
        "test -t 1 && echo yes; printf '\\033[31mred\\033[0m\\n'; printf 'a\\rb\\n'; echo $TERM"
    )
    result = await shop.use(desk, "terminal", command=command, pty=True)
    assert text_of(result).startswith("yes\nred\nb\nxterm-256color\n[exit code 0")
    result = await shop.use(desk, "terminal", command="test -t 1 || echo no")
    assert text_of(result).startswith("no\n")


async def test_what_a_command_leaves_running_is_ended_and_named(
    shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ladder(monkeypatch, PATIENT)
    result = await shop.use(desk, "terminal", command="sleep 1000 & echo $!")
    pid = int(text_of(result).partition("\n")[0])
    assert result.status is CallStatus.FINISHED
    assert f"(pid {pid}, SIGTERM); use terminal with background=true" in text_of(result)
    assert not shop.is_alive(pid)


@pytest.mark.parametrize(
    ("means", "command"),
    [
        (means, command)
        for means in means_that_work()
        for command in (STUBBORN, ESCAPEE)
        # A process group can be left, and says so: see `confirmed`.
        if (means, command) != ("group", ESCAPEE)
    ],
    ids=lambda value: {STUBBORN: "stubborn", ESCAPEE: "escapee"}.get(value, value),
)
@pytest.mark.parametrize("pty", [False, True], ids=["pipe", "pty"])
async def test_a_stop_ends_everybody_and_tells_how(
    warm_loop: None, tmp_path: Path, desk: Desk, means: MeansChoice, command: str, pty: bool
) -> None:
    async with open_shop(tmp_path, means=means) as shop:

        async def stop() -> None:
            await shop.file("pid")
            desk.stop()

        began_at = time.monotonic()
        result = await shop.use_and(
            desk, stop, "terminal", command=f"echo begun; {command}", pty=pty
        )
        assert time.monotonic() - began_at < 40
        assert result.status is CallStatus.STOPPED
        assert "the user stopped it (Ctrl-C)" in text_of(result)
        assert "may have happened in part" in text_of(result)
        assert "Output so far:\nbegun\n" in text_of(result)
        assert result.stop is not None
        assert result.stop.means == means
        assert result.stop.confirmed == (means != "group")
        assert result.stop.processes != ()
        assert result.stop.elapsed_ms < 10_000
        assert "process" in result.summary


async def test_what_escapes_from_a_group_is_named_and_not_said_to_be_gone(
    warm_loop: None, tmp_path: Path, desk: Desk
) -> None:
    async with open_shop(tmp_path, means="group") as shop:

        async def stop() -> None:
            await shop.file("pid")
            desk.stop()

        command = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & wait"
        result = await shop.use_and(desk, stop, "terminal", command=command)
        pid = int(await shop.file("pid"))
        try:
            assert shop.is_alive(pid)
            assert result.status in (CallStatus.STOPPED, CallStatus.ABANDONED)
            assert result.stop is not None
            assert not result.stop.confirmed
            survivors = [each.pid for each in result.stop.survivors]
            unknown = "cannot tell whether some of its processes still run" in text_of(result)
            assert unknown if not survivors else survivors == [pid]
            assert pid not in [each.pid for each in result.stop.processes]
        finally:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not shop.is_alive(pid))


async def test_a_time_limit_is_told_as_such(shop: Shop, desk: Desk) -> None:
    result, limit_s = await with_enough_time(
        lambda timeout_s: shop.use(
            desk, "terminal", command="echo a; sleep 60", timeout_s=timeout_s
        ),
        lambda result: "Output so far" in text_of(result),
        0.3,
    )
    assert result.status is CallStatus.STOPPED
    assert f"its time limit of {limit_s:g} s was reached" in text_of(result)
    assert "Output so far:\na" in text_of(result)
    assert not desk.turn.token.cancelled


async def test_a_command_stopped_before_it_starts_never_runs(shop: Shop, desk: Desk) -> None:
    desk.stop()
    result = await shop.use(desk, "terminal", command="touch ran")
    assert result.status is CallStatus.NOT_STARTED
    assert not (shop.folder / "ran").exists()


async def test_commands_side_by_side_and_one_is_stopped(shop: Shop, desk: Desk) -> None:
    """Of two sessions, in one process: the other's command goes on."""
    other = Desk()

    async def stop() -> None:
        await shop.file("pid")
        desk.stop()
        await until(lambda: not shop.is_alive((shop.folder / "pid").read_text().strip()))
        (shop.folder / "go").touch()

    async def both() -> None:
        result = await shop.use_and(
            other, stop, "terminal", command="while [ ! -e go ]; do sleep 0.05; done; echo done"
        )
        assert text_of(result).startswith("done\n")

    result = await shop.use_and(desk, both, "terminal", command="echo $$ > pid; sleep 1000")
    assert result.status is CallStatus.STOPPED


async def test_a_detached_command_survives_its_turn_and_not_its_session(
    shop: Shop, desk: Desk
) -> None:
    source = CancelSource("call")
    link = source.link(desk.turn.token)
    alive: list[bool] = []

    async def detach() -> None:
        pid = await shop.file("pid")
        source.link(desk.session.token)
        assert link.unlink()
        desk.stop()
        listed = ""
        with anyio.fail_after(30):
            # The command may have written its file before we are told that it has started.
            while "c1  running" not in listed:
                listed = text_of(
                    await shop.use(Desk(session=desk.session), "process", action="list")
                )
        assert "foreground" in listed
        alive.append(shop.is_alive(pid))
        desk.session.cancel(Cause.SHUTDOWN)

    results: list[CallResult] = []

    async def run() -> None:
        results.append(
            await invoke(
                shop.registry,
                call("terminal", command="echo $$ > pid; sleep 1000"),
                desk.context(source.token),
            )
        )

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await detach()
    assert alive == [True]
    assert results[0].status is CallStatus.STOPPED
    assert "shutting down" in text_of(results[0])


async def test_a_background_process_is_polled_written_to_and_killed(shop: Shop, desk: Desk) -> None:
    command = "echo $$ > pid; echo ready; while read line; do echo got $line; done; echo over"
    async with anyio.create_task_group() as group:
        result = await shop.start(group, desk, command)
        assert result.status is CallStatus.DETACHED
        assert "Started in the background as c1 (pid " in text_of(result)
        pid = await shop.file("pid")
        # Stopping the turn leaves it alone; the next turn sees it.
        desk.stop()
        later = Desk(session=desk.session)
        assert "c1  running  pid" in text_of(await shop.use(later, "process", action="list"))

        async def polled_until(words: str) -> str:
            output = ""
            while words not in output:
                output += text_of(await shop.use(later, "process", action="poll", id="c1"))
            return output

        assert "ready\n[c1: running" in await polled_until("ready")
        await shop.use(later, "process", action="write", id="c1", input="hello\n")
        assert "ready" not in await polled_until("got hello")
        result = await shop.use(later, "process", action="kill", id="c1")
        assert f"(pid {pid}" in text_of(result)
        assert "[c1: ended (" in text_of(result)
        assert not shop.is_alive(pid)
        assert "c1  ended (" in text_of(await shop.use(later, "process", action="list"))
        result = await shop.use(later, "process", action="kill", id="c1")
        assert "had already ended" in text_of(result)
    way_out, (outcome,) = shop.background["c1"]
    assert (outcome.status, outcome.summary) == (CallStatus.STOPPED, "killed by the model")
    assert outcome.stop is not None
    assert int(pid) in [each.pid for each in outcome.stop.processes]
    assert way_out.known
    assert "ready" in "".join(desk.live)


async def test_one_on_a_terminal_is_written_to_and_ends_by_itself(shop: Shop, desk: Desk) -> None:
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, "test -t 0 && read line && echo got $line", pty=True)
        await shop.use(desk, "process", action="write", id="c1", input="hello\n")
    way_out, (outcome,) = shop.background["c1"]
    assert (outcome.status, outcome.summary) == (CallStatus.FINISHED, "finished")
    assert "got hello" in text_of(outcome)
    assert not way_out.known


async def test_waiting_ends_with_the_process_the_time_or_a_stop(shop: Shop, desk: Desk) -> None:
    command = "while [ ! -e go ]; do sleep 0.02; done; echo done"
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, command)
        result = await shop.use(desk, "process", action="wait", id="c1", timeout_s=0.1)
        assert result.status is CallStatus.FINISHED
        assert "[it is still running after 0.1 s of waiting]" in text_of(result)
        stopped = Desk(session=desk.session)

        async def stop() -> None:
            stopped.stop()

        result = await shop.use_and(stopped, stop, "process", action="wait", id="c1")
        assert result.status in (CallStatus.STOPPED, CallStatus.NOT_STARTED)
        assert "c1  running" in text_of(await shop.use(desk, "process", action="list"))

        async def go() -> None:
            (shop.folder / "go").touch()

        result = await shop.use_and(desk, go, "process", action="wait", id="c1")
        assert text_of(result).startswith("done\n[c1: ended (exit 0)")
    way_out, (outcome,) = shop.background["c1"]
    assert (outcome.status, way_out.known) == (CallStatus.FINISHED, True)


async def test_a_write_that_is_stopped_may_have_been_made_in_part(shop: Shop, desk: Desk) -> None:
    """More than a pipe holds, for a process that takes only the beginning of it."""
    command = "head -c 5 > taken; echo >> taken; sleep 1000"
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, command)
        stopped = Desk(session=desk.session)

        async def stop() -> None:
            assert await shop.file("taken") == "12345"
            stopped.stop()

        result = await shop.use_and(
            stopped, stop, "process", action="write", id="c1", input="12345" * 100_000
        )
        assert result.status is CallStatus.STOPPED
        assert "Part of the input may have been written." in text_of(result)
        assert "c1  running" in text_of(await shop.use(desk, "process", action="list"))
        desk.session.cancel(Cause.SHUTDOWN)


async def test_the_end_of_the_input_is_told_to_a_process(shop: Shop, desk: Desk) -> None:
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, "wc -c")
        result = await shop.use(
            desk, "process", action="write", id="c1", input="12345", end_input=True
        )
        assert "Wrote 5 bytes to c1 and closed its input." in text_of(result)
        assert text_of(await shop.use(desk, "process", action="wait", id="c1")).startswith("5\n")
        result = await shop.use(desk, "process", action="write", id="c1", input="more")
        assert result.status is CallStatus.FAILED


async def test_ending_the_session_ends_its_background_and_no_other(shop: Shop, desk: Desk) -> None:
    stranger = Desk(session_id="s2")
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, f"cd /; {STUBBORN.replace('pid', str(shop.folder / 'pid'))}")
        await shop.start(group, stranger, "echo $$ > other; exec sleep 1000", call_id="c2")
        pid, other = await shop.file("pid"), await shop.file("other")
        desk.session.cancel(Cause.SHUTDOWN)
        await until(lambda: not shop.is_alive(pid))
        assert shop.is_alive(other)
        stranger.session.cancel(Cause.SHUTDOWN)
    _, (outcome,) = shop.background["c1"]
    assert outcome.status is CallStatus.STOPPED
    assert outcome.stop is not None
    assert int(pid) in [each.pid for each in outcome.stop.processes]


async def test_background_processes_are_bounded_in_number(
    warm_loop: None, tmp_path: Path, desk: Desk
) -> None:
    settings = ToolSettings(background_max=2)
    async with (
        open_shop(tmp_path, settings=settings) as shop,
        anyio.create_task_group() as group,
    ):
        for number in (1, 2):
            await shop.start(group, desk, "sleep 1000", call_id=f"c{number}")
        result = await shop.start(group, desk, "sleep 1000", call_id="c3")
        assert result.status is CallStatus.FAILED
        assert "2 background processes are running already (c1, c2)" in text_of(result)
        await shop.use(desk, "process", action="kill", id="c1")
        result = await shop.start(group, desk, "sleep 1000", call_id="c4")
        assert "as c4" in text_of(result)
        desk.session.cancel(Cause.SHUTDOWN)


async def test_another_sessions_processes_are_not_seen(shop: Shop, desk: Desk) -> None:
    async with anyio.create_task_group() as group:
        await shop.start(group, desk, "sleep 1000")
        stranger = msgspec.structs.replace(Desk().context(), session_id="s2")
        for arguments in ({"action": "poll", "id": "c1"}, {"action": "kill", "id": "c1"}):
            result = await invoke(shop.registry, call("process", **arguments), stranger)
            assert "There is no process 'c1' here; there are: none." in text_of(result)
        desk.session.cancel(Cause.SHUTDOWN)


async def test_a_call_made_by_a_call_can_not_run_on(shop: Shop, desk: Desk) -> None:
    without = msgspec.structs.replace(desk.context(), background=None)
    asked = call("terminal", command="touch ran", background=True)
    result = await invoke(shop.registry, asked, without)
    assert result.status is CallStatus.FAILED
    assert "cannot move to the background" in text_of(result)
    assert not (shop.folder / "ran").exists()


async def test_wrong_use_of_process_is_told(shop: Shop, desk: Desk) -> None:
    result = await shop.use(desk, "process", action="poll")
    assert "poll needs an id" in text_of(result)
    result = await shop.use(desk, "process", action="explode")
    assert '`action` must be one of "kill", "list", "poll", "wait", "write"' in text_of(result)
    result = await shop.use(desk, "process", action="list")
    assert text_of(result) == "There are no background processes."


async def test_a_stop_at_any_moment_of_the_start_leaves_nobody(shop: Shop) -> None:
    """The stop comes after 0, 1, 2 ... steps of the loop, and then after many: what is done in a
    thread takes as many as the machine makes it."""
    statuses: set[CallStatus] = set()
    for steps in (*range(40), *(100 * 2**number for number in range(10))):
        if steps >= 40 and CallStatus.STOPPED in statuses:
            break
        desk = Desk()

        async def stop(desk: Desk = desk, steps: int = steps) -> None:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            desk.stop()

        result = await shop.use_and(desk, stop, "terminal", command="sleep 1000 & sleep 1000")
        statuses.add(result.status)
        assert shop.alive() == []
        # Whatever was started was waited for, and its end is told.
        if result.status is CallStatus.STOPPED:
            assert result.stop is not None
            assert (result.stop.means, result.stop.confirmed) == (shop.means, True)
    assert statuses <= {CallStatus.NOT_STARTED, CallStatus.STOPPED}
    assert CallStatus.STOPPED in statuses


async def test_a_command_that_the_first_signal_ends_is_always_named(shop: Shop) -> None:
    """It may be gone before the loop begins to count who is there."""
    for _ in range(20):
        desk = Desk()

        async def stop(desk: Desk = desk) -> None:
            await shop.file("pid")
            desk.stop()

        result = await shop.use_and(
            desk, stop, "terminal", command="echo $$ > pid; exec sleep 1000"
        )
        pid = int(await shop.file("pid"))
        (shop.folder / "pid").unlink()
        assert result.stop is not None
        assert pid in [each.pid for each in result.stop.processes]
