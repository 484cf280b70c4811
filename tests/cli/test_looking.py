"""`bargein sessions` where nothing may be written: a backup, or another user's data."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.runtime.data_directory import SESSIONS_FILE
from tests.cli.screen import OBEDIENT, PROGRAM

SCRIPT = """
repeat = true
[[answers]]
when = "wait"
steps = [{ do = "say", text = "waiting " }, { do = "pause", seconds = 600 }]
[[answers]]
steps = [{ do = "say", text = "the answer" }]
"""

READS = (["list"], ["show", "mine"], ["search", "answer"], ["export", "mine"])


class Kept:
    """A data directory with one session in it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "data"
        (folder / "script.toml").write_text(SCRIPT)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "BARGEIN_HOME": str(self.home),
            "BARGEIN_MODEL": f"scripted:{folder / 'script.toml'}",
        }
        self.bargein("run", "--session", "mine", "hello")

    def bargein(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*OBEDIENT, PROGRAM, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    def begin(self) -> "subprocess.Popen[bytes]":
        """A program that has the directory, and has said so much."""
        running = subprocess.Popen(
            [PROGRAM, "run", "--session", "begun", "wait"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert running.stdout is not None
        with running.stdout as said:
            assert said.read(7) == b"waiting"
        return running

    def read_all(self) -> list[str]:
        done = [self.bargein("sessions", *each) for each in READS]
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * len(READS)
        return [each.stdout for each in done]

    def close(self) -> None:
        """For writing, to everybody."""
        for each in self.home.iterdir():
            each.chmod(0o400)
        self.home.chmod(0o500)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.home.chmod(0o700)


def test_all_can_be_read_and_nothing_is_written(kept: Kept) -> None:
    before = kept.read_all()
    assert "the answer" in before[1]
    kept.close()
    files = sorted(each.name for each in kept.home.iterdir())
    assert kept.read_all() == before
    assert sorted(each.name for each in kept.home.iterdir()) == files
    removed = kept.bargein("sessions", "rm", "mine")
    assert removed.returncode == 2
    assert str(kept.home) in removed.stderr


def test_what_a_crash_left_in_the_log_is_read_too(kept: Kept) -> None:
    running = kept.begin()
    running.kill()
    running.wait()
    kept.close()
    listed, *_ = kept.read_all()
    assert "begun" in listed
    assert "wait" in kept.bargein("sessions", "show", "begun").stdout


def test_what_is_being_written_is_read(kept: Kept) -> None:
    running = kept.begin()
    try:
        kept.close()
        listed, *_ = kept.read_all()
        assert "begun" in listed
    finally:
        kept.home.chmod(0o700)
        running.send_signal(signal.SIGTERM)
        running.wait()


def test_a_copy_that_sqlite_cannot_read_in_its_place_is_told_with_what_to_do(kept: Kept) -> None:
    """The log without the file that goes with it: it is never passed over."""
    running = kept.begin()
    running.kill()
    running.wait()
    (kept.home / f"{SESSIONS_FILE}-shm").unlink()
    kept.close()
    done = kept.bargein("sessions")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Copy " in done.stderr
    assert "BARGEIN_HOME" in done.stderr
    elsewhere = kept.home.with_name("elsewhere")
    shutil.copytree(kept.home, elsewhere)
    elsewhere.chmod(0o700)
    for each in elsewhere.iterdir():
        each.chmod(0o600)
    kept.home.chmod(0o700)
    shutil.rmtree(kept.home)
    elsewhere.rename(kept.home)
    assert "begun" in kept.bargein("sessions").stdout


def test_a_file_that_may_not_be_read_is_told_as_such(kept: Kept) -> None:
    (kept.home / SESSIONS_FILE).chmod(0o000)
    done = kept.bargein("sessions")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"this user may not read {kept.home / SESSIONS_FILE}" in done.stderr
    assert "BARGEIN_HOME" in done.stderr
