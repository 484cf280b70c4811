"""The data directory, met by a second program or where it cannot be."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bargein.errors import UserError
from bargein.runtime.data_directory import (
    RUNNING_SERVER_FILE,
    RunningServer,
    make_data_directory,
    own_data_directory,
)
from tests.cli.screen import OBEDIENT, PROGRAM


def write(home: Path, runtime: RunningServer) -> None:
    (home / RUNNING_SERVER_FILE).write_bytes(msgspec.json.encode(runtime))


PLAIN = r"open http://127\.0\.0\.1:8484/ in a browser"


class Stderr(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_whoever_finds_a_server_there_is_told_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Stderr(is_terminal=True))
    with own_data_directory(tmp_path):
        write(tmp_path, RunningServer("http://127.0.0.1:8484/", "secret", os.getpid()))
        with pytest.raises(UserError, match=r"open http://127\.0\.0\.1:8484/#token=secret"):
            own_data_directory(tmp_path)
        write(tmp_path, RunningServer("http://127.0.0.1:8484/", None, os.getpid()))
        with pytest.raises(
            UserError, match=r"open http://127\.0\.0\.1:8484/ in a browser"
        ) as caught:
            own_data_directory(tmp_path)
        assert "token" not in str(caught.value)


@pytest.mark.parametrize("stderr", [Stderr(is_terminal=False), None])
def test_a_log_gets_the_address_of_a_server_without_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: Stderr | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with own_data_directory(tmp_path):
        write(tmp_path, RunningServer("http://127.0.0.1:8484/", "secret", os.getpid()))
        with pytest.raises(
            UserError, match=r"open http://127\.0\.0\.1:8484/ in a browser"
        ) as caught:
            own_data_directory(tmp_path)
    assert "secret" not in str(caught.value)
    path = tmp_path / RUNNING_SERVER_FILE
    assert str(caught.value).endswith(f"Its token is in {path}, which only this user can read")


@pytest.mark.parametrize("content", [b"", b"{", b'{"url": 1}'])
def test_what_a_killed_server_left_is_not_believed(tmp_path: Path, content: bytes) -> None:
    with own_data_directory(tmp_path):
        (tmp_path / RUNNING_SERVER_FILE).write_bytes(content)
        with pytest.raises(UserError, match="in use by") as caught:
            own_data_directory(tmp_path)
        assert "browser" not in str(caught.value)
        assert str(caught.value).endswith("choose another data directory (BARGEIN_HOME)")
        write(tmp_path, RunningServer("http://127.0.0.1:8484/", None, os.getpid() + 1))
        with pytest.raises(UserError, match="in use by") as caught:
            own_data_directory(tmp_path)
        assert "browser" not in str(caught.value)


def test_a_home_that_cannot_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set BARGEIN_HOME"):
        make_data_directory(tmp_path / "file" / "home")


def no_rights(home: Path) -> Path:
    home.chmod(0o000)
    return home


def not_writable(home: Path) -> Path:
    home.chmod(0o500)
    return home


def out_of_reach(home: Path) -> Path:
    home.chmod(0o000)
    return home / "data"


def not_to_be_made(home: Path) -> Path:
    home.chmod(0o500)
    return home / "not" / "there"


def below_a_file(home: Path) -> Path:
    (home / "file").touch()
    return home / "file" / "data"


def somebody_elses_lock(home: Path) -> Path:
    """As it is after one start with `sudo`."""
    (home / "owner.lock").touch(0o000)
    return home


def somebody_elses_store(home: Path) -> Path:
    for name in ("sessions.sqlite3", "gateway.sqlite3"):
        (home / name).touch(0o000)
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


# What needs only to look finds nothing in some of these, and says so.
FINDING_NOTHING = (below_a_file, not_to_be_made, not_writable, somebody_elses_lock)


@pytest.mark.parametrize(
    "wrong",
    [
        no_rights,
        not_writable,
        out_of_reach,
        not_to_be_made,
        below_a_file,
        somebody_elses_lock,
        somebody_elses_store,
    ],
)
def test_whatever_is_wrong_with_it_is_told_with_what_to_set(
    folder: Path, wrong: Callable[[Path], Path]
) -> None:
    home = wrong(folder)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/",
        "BARGEIN_HOME": str(home),
        "BARGEIN_CHAT_HOST": "0",
    }

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*OBEDIENT, PROGRAM, *arguments],
            env={**environment, "BARGEIN_MODEL": "openai:m", "OPENAI_API_KEY": "none"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
        assert done.returncode in (0, 1, 2)
        return done.stdout + done.stderr

    commands = [["run", "hi"], ["chat"], ["serve", "--port", "0"]]
    if wrong is not somebody_elses_lock:
        # These do not take the directory for themselves.
        commands += [["token", "list"], ["doctor"]]
    for arguments in commands:
        told = said(*arguments)
        assert str(home) in told, arguments
        assert "BARGEIN_HOME" in told, told
        assert "Traceback" not in told, told
        assert "[Errno" not in told, told
    looked = said("sessions")
    assert (f"no sessions in {home}" if wrong in FINDING_NOTHING else "BARGEIN_HOME") in looked
    assert "Traceback" not in looked
