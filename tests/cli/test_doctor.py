"""`bargein doctor`: what works here, what does not, and what to do about it."""

import socket
import sys
from pathlib import Path

import pytest

from bargein.cli.program import run


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BARGEIN_MODEL", "ANTHROPIC_API_KEY", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BARGEIN_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_that_answers_and_one_that_does_not(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        name = f"openai:m@http://me:hunter2@127.0.0.1:{port}/v1"
        run(["doctor", "--model", name])
        good = capsys.readouterr().out
    assert "ok  model: openai:m (it was named)" in good
    assert "ok  containment: " in good
    assert "ok  store: " in good
    with socket.socket() as deaf:
        # Bound, so that nobody else gets the port, and not listening.
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deaf.bind(("127.0.0.1", port))
        assert run(["doctor", "--model", name]) == 1
    bad = capsys.readouterr().out
    assert f"!!  model: openai:m (it was named), but 127.0.0.1:{port} does not answer" in bad
    assert "-> check the network" in bad
    assert "hunter2" not in good + bad
    assert "sk-very" not in good + bad


def test_a_store_that_cannot_be_written_is_told(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "data").mkdir()
    (alone / "data" / "sessions.sqlite3").mkdir()
    assert run(["doctor", "--model", "local"]) == 1
    told = capsys.readouterr().out
    assert "sessions.sqlite3 is a directory" in told
    assert "-> meanwhile, BARGEIN_HOME=" in told


def test_a_damaged_store_gets_no_advice_about_disks(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "data").mkdir()
    (alone / "data" / "sessions.sqlite3").write_bytes(b"no database " * 500)
    assert run(["doctor", "--model", "local"]) == 1
    told = capsys.readouterr().out
    assert "restore a backup" in told
    assert "-> meanwhile, BARGEIN_HOME=" in told
    assert "room" not in told


def test_a_place_where_nothing_can_be_kept_is_told(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "data").symlink_to("nowhere/at/all")
    assert run(["doctor", "--model", "local"]) == 1
    told = capsys.readouterr().out
    assert f"!!  store: {alone / 'data'} cannot be created: " in told
    assert "-> meanwhile, BARGEIN_HOME=ANOTHER_DIRECTORY starts with an empty store" in told


def test_an_embedded_model_without_its_runtime_is_told(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the import system takes for "not installed".
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert run(["doctor", "--model", "local"]) == 1
    assert "!!  model: The runtime of the embedded model is not" in capsys.readouterr().out


def test_whether_commands_see_the_data_directory_is_told(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["doctor", "--model", "local"])
    told = next(line for line in capsys.readouterr().out.splitlines() if "sandbox:" in line)
    assert "do not see the data directory" in told or "can read and change" in told
    monkeypatch.setenv("BARGEIN_SANDBOX_HIDE_DATA", "0")
    assert run(["doctor", "--model", "local"]) == 1
    told = capsys.readouterr().out
    assert "!!  sandbox: commands can read and change the data directory (it is off)" in told
    assert "only the owner's terminal and pages that are signed in can approve" in told
    assert "-> set sandbox.hide_data = true" in told
