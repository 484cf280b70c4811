"""A host that terminals start: it outlives them, and they outlive it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from bargein.cli.hosting import STARTING_FILE, UNFIT_FILE
from bargein.client import Client
from bargein.runtime.data_directory import DOOR_FILE, owner_listens
from bargein.runtime.directory_lock import DirectoryLock, Owner, owner_of
from tests.cli.screen import CTRL_D, DOWN, ESCAPE, PROGRAM, WAIT_S, Screen, typed_late

SCRIPT = """
repeat = true
[[answers]]
when = "quick"
steps = [{ do = "say", text = "done already" }]
[[answers]]
when = "where"
steps = [{ do = "call", name = "terminal", arguments = { command = "pwd" } }]
[[answers]]
when = "where"
steps = [{ do = "say", text = "that is where" }]
[[answers]]
when = "count"
steps = [{ do = "say", text = "for ever and ever" }, { do = "pause", seconds = 600.0 }]
"""


class Hosted:
    """A data directory, and the terminals on it. Its host ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.screens: list[Screen] = []
        self.linger_s = "60"

    def open(self, *arguments: str, folder: str = "") -> Screen:
        home = self.folder / folder if folder else self.folder
        screen = Screen(
            *arguments,
            home=home,
            script=SCRIPT,
            BARGEIN_HOME=str(self.data),
            BARGEIN_CHAT_HOST="1",
            BARGEIN_HOST_LINGER_S=self.linger_s,
            BARGEIN_SHARE_ADDRESS="127.0.0.1",
        )
        self.screens.append(screen)
        return screen

    @property
    def owner(self) -> Owner:
        owner = owner_of(self.data)
        assert owner is not None
        return owner

    def wait_until_gone(self, pid: int) -> None:
        process = os.pidfd_open(pid)
        try:
            assert select.select([process], [], [], WAIT_S)[0]
        finally:
            os.close(process)

    def close(self) -> None:
        for screen in self.screens:
            screen.close()
        owner = owner_of(self.data)
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)


@pytest.fixture
def hosted(tmp_path: Path, host_possible: None) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    yield made
    made.close()


def test_a_turn_goes_on_without_its_terminal(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    one.enter("count")
    one.wait_for("for ever and ever")
    two = hosted.open("-c")
    two.wait_for("for ever and ever")
    assert "host" in hosted.owner.command
    one.type(CTRL_D)
    one.wait_for("it goes on without you")
    one.type(CTRL_D)
    assert one.exit_code() == 0
    two.type(ESCAPE)
    two.wait_for("stopped")
    two.wait_ready()
    two.type(CTRL_D)
    assert two.exit_code() == 0


CANNOT_HIDE = """
if unshare -U -r true 2>/dev/null; then
    exec unshare -U -r sh -c \'
        echo 0 >/proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all "$@"\' sh "$@"
fi
exec "$@"
"""


def test_where_no_host_can_hide_each_terminal_runs_its_own_agent(tmp_path: Path) -> None:
    """The first terminal takes the directory from the host that has just found this out."""
    for _ in range(3):
        screen = Screen(
            home=tmp_path,
            script=SCRIPT,
            command=["sh", "-c", CANNOT_HIDE, "sh", str(PROGRAM)],
            BARGEIN_CHAT_HOST="1",
        )
        try:
            screen.wait_ready()
            assert (tmp_path / "data" / UNFIT_FILE).exists()
            assert not owner_listens(tmp_path / "data")
            screen.enter("quick")
            screen.wait_for("done already")
        finally:
            screen.close()
        (tmp_path / "data" / UNFIT_FILE).unlink()


def test_terminals_that_start_at_once_share_one_host(hosted: Hosted) -> None:
    screens = [hosted.open() for _ in range(3)]
    for screen in screens:
        screen.wait_ready()
    log = (hosted.data / "host.log").read_text()
    assert "in use" not in log, log
    screens[0].enter("/sessions")
    screens[0].wait_for("nothing has been said")


LEAVES_AT_ONCE = """
import os
from bargein.cli.hosting import begin_host
from bargein.runtime.config import load_config
assert begin_host(load_config()) is not None
os._exit(0)
"""


def test_a_host_whose_terminal_has_left_meanwhile_is_waited_for(hosted: Hosted) -> None:
    """As of Ctrl-C in the first second. The next terminal used to start another host, and to fail
    because the directory was in use."""
    environment = {
        **os.environ,
        "BARGEIN_HOME": str(hosted.data),
        "HOME": str(hosted.folder),
        "BARGEIN_CHAT_HOST": "1",
    }
    subprocess.run([sys.executable, "-c", LEAVES_AT_ONCE], env=environment, check=True)
    screen = hosted.open()
    screen.wait_ready()
    log = (hosted.data / "host.log").read_text()
    assert "in use" not in log, log
    # Neither the host nor what it has started holds the lock any longer.
    starting = os.open(hosted.data / STARTING_FILE, os.O_RDWR)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(starting)


def test_after_kill_9_the_terminals_go_on_with_the_next_host(hosted: Hosted) -> None:
    one, two = hosted.open(), hosted.open()
    one.wait_ready()
    two.wait_ready()
    one.enter("count")
    one.wait_for("for ever and ever")
    before = hosted.owner.pid
    os.kill(before, signal.SIGKILL)
    one.wait_for("unanswered")
    two.enter("quick")
    two.wait_for("done already")
    assert hosted.owner.pid != before
    one.enter("quick")
    one.wait_for("done already")
    again = one.text.replace("not stored: for ever and ever", "")
    assert again.count("for ever and ever") == 1


def test_a_host_that_nobody_needs_ends(hosted: Hosted) -> None:
    hosted.linger_s = "0.3"
    one = hosted.open()
    one.wait_ready()
    pid = hosted.owner.pid
    one.type(CTRL_D)
    assert one.exit_code() == 0
    hosted.wait_until_gone(pid)
    assert not (hosted.data / DOOR_FILE).exists()
    again = hosted.open()
    again.wait_ready()
    assert hosted.owner.pid != pid


def test_a_session_belongs_to_its_folder(hosted: Hosted) -> None:
    for name in ("here", "there"):
        (hosted.folder / name).mkdir()
    one = hosted.open(folder="here")
    one.wait_ready()
    one.enter("where am I")
    one.wait_for("that is where")
    assert str(hosted.folder / "here") in one.text
    two = hosted.open("-c", folder="there")
    two.wait_for("no session of this folder")
    two.wait_ready()
    three = hosted.open("-c", folder="here")
    three.wait_for("where am I")
    three.wait_ready()
    other = hosted.open("-c", "--all", folder="there")
    other.wait_for("This session works in")
    other.wait_for("waits for you")
    # A question counts as read after half a second.
    other.wait_until(lambda: typed_late(other, "1", "Enter answers: "), "the answer")
    other.type("\r")
    other.wait_ready()
    place = f"it works in {hosted.folder / 'here'}"
    assert "".join(place.split()) in "".join(other.text.split()), "where it works, also if it wraps"
    # The first answer is on the screen as well.
    answers = other.text.count("that is where")
    other.enter("where now")
    other.wait_until(lambda: other.text.count("that is where") > answers, "the second answer")
    assert str(hosted.folder / "here") in other.text
    other.wait_ready()
    other.type(CTRL_D)
    other.exit_code()
    # -c would look for a session of this folder.
    assert re.search(r"bargein --resume (\S+) goes on here \(session \1\)", other.text)


def run(hosted: Hosted, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(hosted.folder),
        "BARGEIN_HOME": str(hosted.data),
        "BARGEIN_MODEL": f"scripted:{hosted.folder / 'script.toml'}",
    }
    return subprocess.run(
        [str(PROGRAM), "run", *arguments],
        env=environment,
        cwd=hosted.folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_run_uses_the_host_if_there_is_one(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    done = run(hosted, "quick, please")
    assert (done.returncode, done.stdout) == (0, "done already\n"), done.stderr
    late = run(hosted, "--timeout", "1", "count")
    assert late.returncode == 124, late.stderr
    assert "for ever and ever" in late.stdout
    assert owner_listens(hosted.data)


OTHER_VERSION = """
import sys, bargein
bargein.__version__ = "0.0.1"
from bargein.cli.main import main
sys.argv = ["bargein", "host"]
sys.exit(main())
"""


def test_an_idle_host_of_another_version_makes_room(hosted: Hosted) -> None:
    hosted.data.mkdir()
    environment = {**os.environ, "BARGEIN_HOME": str(hosted.data), "HOME": str(hosted.folder)}
    with subprocess.Popen([sys.executable, "-c", OTHER_VERSION], env=environment, cwd="/") as old:
        until = time.monotonic() + WAIT_S
        while not owner_listens(hosted.data):
            assert time.monotonic() < until
            assert old.poll() is None
            time.sleep(0.05)
        one = hosted.open()
        one.wait_ready()
        assert old.wait(WAIT_S) == 0
        one.enter("quick")
        one.wait_for("done already")


async def greeted(data: Path) -> None:
    async with Client(f"unix:{data / DOOR_FILE}") as client:
        assert (await client.me()).host


def test_a_host_that_leaves_keeps_its_door_until_nobody_starts_another(hosted: Hosted) -> None:
    """A terminal that comes just then waits for its end. It used to find the door closed, start a
    host, and fail because the directory was still in use."""
    hosted.data.mkdir()
    environment = {**os.environ, "BARGEIN_HOME": str(hosted.data), "HOME": str(hosted.folder)}
    command = [str(PROGRAM), "host"]
    with subprocess.Popen(command, env=environment, cwd="/") as host:
        until = time.monotonic() + WAIT_S
        while not owner_listens(hosted.data):
            assert time.monotonic() < until
            assert host.poll() is None
            time.sleep(0.05)
        # It listens before it hears signals, and greets afterwards.
        anyio.run(greeted, hosted.data)
        starting = os.open(hosted.data / STARTING_FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(starting, fcntl.LOCK_EX)
            host.terminate()
            time.sleep(1.0)  # it would be gone by now
            assert host.poll() is None
            assert owner_listens(hosted.data)
            fcntl.flock(starting, fcntl.LOCK_UN)
            while owner_listens(hosted.data):
                assert time.monotonic() < until + WAIT_S
                time.sleep(0.01)
            # Whoever gets the lock now finds a directory that is free.
            fcntl.flock(starting, fcntl.LOCK_EX)
            DirectoryLock.take(hosted.data).release()
        finally:
            os.close(starting)


def test_an_idle_host_makes_room_for_a_command(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    one.enter("quick")
    one.wait_for("done already")
    one.wait_ready()
    pid = hosted.owner.pid
    environment = {**os.environ, "BARGEIN_HOME": str(hosted.data), "HOME": str(hosted.folder)}

    def sessions(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), "sessions", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    session_id = sessions().stdout.split()[2]
    refused = sessions("rm", session_id)
    assert refused.returncode == 2
    assert "ends a minute after the last has left" in refused.stderr
    assert hosted.owner.pid == pid
    one.type(CTRL_D)
    assert one.exit_code() == 0
    removed = sessions("rm", session_id)
    assert (removed.returncode, removed.stdout) == (0, ""), removed.stderr
    assert owner_of(hosted.data) is None


def test_everything_is_stopped_from_any_terminal(hosted: Hosted) -> None:
    one, two = hosted.open(), hosted.open()
    for screen in (one, two):
        screen.wait_ready()
        screen.enter("count")
        screen.wait_for("for ever and ever")
    environment = {**os.environ, "BARGEIN_HOME": str(hosted.data), "HOME": str(hosted.folder)}
    stopped = subprocess.run(
        [str(PROGRAM), "stop", "--all"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert "everything is stopped: 2 sessions in" in stopped.stderr
    for screen in (one, two):
        screen.wait_for("stopped in")
        screen.wait_ready()
    one.enter("/panic")
    one.wait_for("nothing was running")


def test_sessions_are_chosen_named_and_forked(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    one.enter("quick question")
    one.wait_for("done already")
    one.wait_ready()
    one.enter("/rename my own title")
    one.wait_for("is now 'my own title'")
    one.enter("/fork t1")
    one.wait_for("forked after turn t1")
    one.wait_until(lambda: one.text.count("quick question") >= 2, "the words of before, again")
    one.enter("/resume")
    one.wait_for("Up and Down choose")
    one.wait_for("my own title")
    one.type(DOWN + "\r")
    one.wait_for("goes back")
    one.wait_for("quick question")


def test_a_pause_is_seen_on_every_screen(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    one.enter("count")
    one.wait_for("for ever and ever")
    two = hosted.open("-c")
    two.wait_for("for ever and ever")
    two.enter("/pause")
    one.wait_status("paused")
    one.enter("/continue")
    two.wait_status("working")
    two.type(ESCAPE)
    one.wait_for("stopped")


def test_a_draft_is_of_its_terminal(hosted: Hosted) -> None:
    one = hosted.open()
    one.wait_ready()
    one.type("half a thought")
    one.wait_until(lambda: one.line == "half a thought", "the words")
    two = hosted.open()
    two.wait_ready()
    assert two.line == ""
    one.close()
    three = hosted.open()
    three.wait_until(lambda: three.line == "half a thought", "the draft")
