"""Command lines that cannot be meant are refused at once, with one sentence."""

import os
from pathlib import Path

import pytest

from bargein.cli.arguments import command_line
from bargein.cli.names import SESSION_CHARACTERS_MAX
from bargein.cli.program import run
from bargein.session.engine import SESSION_ID_CHARACTERS_MAX


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "script.toml").write_text(
        'repeat = true\n[[answers]]\nsteps = [{ do = "say", text = "the answer" }]\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BARGEIN_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("BARGEIN_MODEL", "scripted:script.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--session", "", "hi"], "--session: '' cannot name a session"),
        (["run", "--session", "a\nb", "hi"], "'a\\nb' cannot name a session"),
        (["run", "--session", "x" * 201, "hi"], "1 to 200 visible characters"),
        (["--resume", ""], "--resume: '' cannot name a session"),
        (["run", "--model", " ", "hi"], "--model: give the name of a model, such as openai:NAME"),
        (["sessions", "list", "--limit", "0"], "'0' is not a whole number from 1 to 1000000"),
        (["sessions", "list", "--limit", "-1"], "'-1' is not a whole number from 1 to 1000000"),
        (["sessions", "list", "--limit", "9" * 20], "is not a whole number from 1 to 1000000"),
        (
            ["sum up README.md"],
            "there is no command 'sum up README.md'; to ask something:  bargein run \"...\"",
        ),
        (["sesions"], "there is no command 'sesions'; did you mean sessions?"),
        (["sessions", "remove", "x"], "there is no action 'remove'; there are list, show, search"),
        (["token", "lst"], "there is no action 'lst'; did you mean list?"),
        (["serve", "--host", ""], "--host: give an address or a name, such as 127.0.0.1"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line().parse_args(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--origin", "example.com", "write it like https://agents.example or http://10.0.0.1:3000"),
        ("--origin", "https://example.com/page", "write it like https://agents.example"),
        ("--origin", "*", "write it like https://agents.example"),
        ("--origin", "https://", "write it like https://agents.example"),
        ("--origin", "https://a.example:port", "write it like https://agents.example"),
        (
            "--name",
            "https://agents.example",
            "write it like agents.example, without scheme and port",
        ),
        ("--name", "agents.example:443", "write it like agents.example, without scheme and port"),
        ("--name", "*.example", "write it like agents.example"),
        ("--name", "", "write it like agents.example"),
    ],
)
def test_a_name_or_page_that_no_request_could_have_is_refused(
    option: str, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command_line().parse_args(["serve", option, text])
    shown = capsys.readouterr().err
    kind = {"--origin": "an origin", "--name": "a host name"}[option]
    assert f"argument {option}: {text!r} is not {kind}: {told}" in shown


def test_names_and_pages_are_as_a_browser_sends_them() -> None:
    given = command_line().parse_args(
        [
            "serve",
            "--origin",
            "HTTPS://Agents.example/",
            "--origin",
            "http://[::1]:3000",
            "--name",
            "Agents.Example",
            "--name",
            "machine-1",
        ]
    )
    assert given.origin == ["https://agents.example", "http://[::1]:3000"]
    assert given.name == ["Agents.Example", "machine-1"]


def test_bytes_that_are_no_text_are_a_name_that_is_not_there(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "hello"]) == 0
    bad = os.fsdecode(b"\xff")
    for command in (["sessions", "show", bad], ["sessions", "rm", bad]):
        assert run(command) == 2
        assert "there is no session '\N{REPLACEMENT CHARACTER}'" in capsys.readouterr().err
    assert run(["sessions", "search", bad]) == 0


def test_a_folder_that_is_gone_is_told(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = alone / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert run(["run", "hello"]) == 2
    told = capsys.readouterr().err
    assert told == "bargein run: the current folder is gone; change to another one\n"


def test_a_search_that_finds_nothing_says_so(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "hello"]) == 0
    capsys.readouterr()
    assert run(["sessions", "search", "no", "such"]) == 0
    found = capsys.readouterr()
    assert (found.out, found.err) == ("", "nothing was said with 'no such' in it\n")
    assert run(["sessions", "search", "ANSWER"]) == 0
    found = capsys.readouterr()
    assert ("answer" in found.out, found.err) == (True, "")


def test_a_name_may_be_as_long_as_the_engine_takes_it() -> None:
    assert SESSION_CHARACTERS_MAX == SESSION_ID_CHARACTERS_MAX
