"""The data directory, met by a second program or where it cannot be."""

import os
from pathlib import Path

import msgspec
import pytest

from bargein.cli.home import RUNTIME_FILE, Runtime, make_home, own_home
from bargein.errors import UserError


def write(home: Path, runtime: Runtime) -> None:
    (home / RUNTIME_FILE).write_bytes(msgspec.json.encode(runtime))


def test_whoever_finds_a_server_there_is_told_where_it_is(tmp_path: Path) -> None:
    with own_home(tmp_path):
        write(tmp_path, Runtime("http://127.0.0.1:8484/", "secret", os.getpid()))
        with pytest.raises(UserError, match=r"open http://127\.0\.0\.1:8484/\?token=secret"):
            own_home(tmp_path)
        write(tmp_path, Runtime("http://127.0.0.1:8484/", None, os.getpid()))
        with pytest.raises(UserError, match=r"open http://127\.0\.0\.1:8484/ in a browser"):
            own_home(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"url": 1}'])
def test_what_a_killed_server_left_is_not_believed(tmp_path: Path, content: bytes) -> None:
    with own_home(tmp_path):
        (tmp_path / RUNTIME_FILE).write_bytes(content)
        with pytest.raises(UserError, match="in use by") as caught:
            own_home(tmp_path)
        assert "browser" not in str(caught.value)
        assert str(caught.value).endswith("choose another data directory (BARGEIN_HOME)")
        write(tmp_path, Runtime("http://127.0.0.1:8484/", None, os.getpid() + 1))
        with pytest.raises(UserError, match="in use by") as caught:
            own_home(tmp_path)
        assert "browser" not in str(caught.value)


def test_a_home_that_cannot_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set BARGEIN_HOME"):
        make_home(tmp_path / "file" / "home")
