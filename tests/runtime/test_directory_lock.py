"""One owner per data directory, really: other processes, real kills."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bargein.errors import UserError
from bargein.runtime.directory_lock import FILE_NAME, DirectoryInUse, DirectoryLock

HOLD = """
import sys
from bargein.runtime.directory_lock import DirectoryLock
lock = DirectoryLock.take(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(directory: Path, code: str = HOLD, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_told_who_has_it_and_what_to_do(tmp_path: Path) -> None:
    with holder(tmp_path, HOLD, "--some-flag") as process:
        with pytest.raises(DirectoryInUse) as caught:
            DirectoryLock.take(tmp_path)
        said = str(caught.value)
        assert str(tmp_path) in said
        assert f"process {process.pid} (" in said
        assert "--some-flag" in said
        assert "end it, or choose another data directory" in said
        assert caught.value.owner is not None
        assert caught.value.owner.pid == process.pid
        assert str(pickle.loads(pickle.dumps(caught.value))) == said


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    for _ in range(5):
        with holder(tmp_path) as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
            DirectoryLock.take(tmp_path).release()


def test_two_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    with DirectoryLock.take(tmp_path) as lock:
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
            DirectoryLock.take(tmp_path)
        lock.release()
        lock.release()
        with DirectoryLock.take(tmp_path):
            pass


def test_other_directories_are_free(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with DirectoryLock.take(tmp_path / "a"), DirectoryLock.take(tmp_path / "b"):
        pass


LEAVE_A_CHILD = """
import os, signal, subprocess, sys
from bargein.runtime.directory_lock import DirectoryLock
lock = DirectoryLock.take(sys.argv[1])
if sys.argv[2] == "exec":
    child = subprocess.Popen(["sleep", "60"], close_fds=False).pid
else:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        if sys.argv[2] == "fork and release":
            lock.release()
        os.write(writing, b"!")
        signal.pause()
    os.read(reading, 1)
with open(sys.argv[3], "w") as note:
    print(child, file=note)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["exec", "fork"])
def test_a_child_that_lives_on_does_not_keep_it(tmp_path: Path, way: str) -> None:
    note = tmp_path / "child"
    with holder(tmp_path, LEAVE_A_CHILD, way, str(note)) as process:
        with pytest.raises(DirectoryInUse, match=f"process {process.pid}"):
            DirectoryLock.take(tmp_path)
        child = int(note.read_text())
        process.kill()
        process.wait()
        os.kill(child, 0)
        try:
            DirectoryLock.take(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_fork_leaves_the_lock_with_the_parent(tmp_path: Path) -> None:
    """Also if the child releases what it thinks it has."""
    note = tmp_path / "child"
    with holder(tmp_path, LEAVE_A_CHILD, "fork and release", str(note)) as process:
        with pytest.raises(DirectoryInUse, match=f"process {process.pid}"):
            DirectoryLock.take(tmp_path)
        os.kill(int(note.read_text()), signal.SIGKILL)


def test_what_a_dead_owner_wrote_is_not_taken_for_the_living(tmp_path: Path) -> None:
    """The new owner has the lock, but has not come to write its name."""
    process = subprocess.Popen(["true"])
    process.wait()
    with DirectoryLock.take(tmp_path):
        text = f'{{"pid": {process.pid}, "command": "old", "since": 0, "host": ""}}'
        (tmp_path / FILE_NAME).write_text(text.replace('""', f'"{os.uname().nodename}"'))
        with pytest.raises(DirectoryInUse, match="in use by another process") as caught:
            DirectoryLock.take(tmp_path)
        assert caught.value.owner is None


@pytest.mark.parametrize("rubbish", [b"", b"\xff\xfe", b"{}", b"x" * 100_000])
def test_rubbish_in_the_file_does_no_harm(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(rubbish)
    with DirectoryLock.take(tmp_path):
        (tmp_path / FILE_NAME).write_bytes(rubbish)
        with pytest.raises(DirectoryInUse, match="another process"):
            DirectoryLock.take(tmp_path)


def test_a_place_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no directory {tmp_path / 'missing'}"):
        DirectoryLock.take(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is not a directory"):
        DirectoryLock.take(tmp_path / "file")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / FILE_NAME).symlink_to("/dev/null")
    with pytest.raises(UserError, match="cannot be opened"):
        DirectoryLock.take(tmp_path / "taken")
