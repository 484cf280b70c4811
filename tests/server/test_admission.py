"""Whom `bargein serve` lets in, and whom it offers the tools of the machine."""

import argparse
from pathlib import Path

import pytest

from bargein.cli.arguments import command_line
from bargein.cli.serve import admission, agent_for
from bargein.errors import UserError
from bargein.runtime.config import load_config

FOR_ALL = "--let-everyone-run-commands-on-this-machine"


def given(*arguments: str) -> argparse.Namespace:
    return command_line().parse_args(["serve", *arguments])


def test_without_tokens_the_operator_alone_is_let_in_on_this_machine_alone() -> None:
    made = admission(given(), set())
    assert (made.host_tools, made.sole) == (True, "operator")
    assert made.start_token is not None
    assert len(made.start_token) >= 43
    assert made.start_token != admission(given(), set()).start_token
    for host in ("0.0.0.0", "192.0.2.1", "::", "agents.example"):
        with pytest.raises(UserError, match="token add"):
            admission(given("--host", host), set())
    for host in ("127.0.0.1", "::1", "localhost"):
        assert admission(given("--host", host), set()).start_token is not None


def test_one_principal_has_the_tools_of_the_machine_for_itself() -> None:
    made = admission(given("--host", "0.0.0.0"), {"alice"})
    assert (made.start_token, made.host_tools, made.sole) == (None, True, "alice")


def test_with_more_than_one_they_are_off_unless_it_is_said_in_so_many_words() -> None:
    made = admission(given(), {"alice", "bob"})
    assert (made.start_token, made.host_tools, made.sole) == (None, False, None)
    made = admission(given(FOR_ALL), {"alice", "bob"})
    assert (made.host_tools, made.sole) == (True, None)


def test_without_the_tools_of_the_machine_all_else_is_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    own = tmp_path / ".config" / "bargein" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('instructions = "In French."\n[budget]\nsteps = 7\n')
    config = load_config(folder=tmp_path, flags={})
    agent = agent_for(given(), config, admission(given(), {"alice", "bob"}))
    assert agent.workspace is None
    assert agent.budget.steps == 7
    assert agent.instructions.endswith("In French.")
    assert agent.titles
    assert agent_for(given(), config, admission(given(), {"alice"})).workspace is not None


@pytest.mark.parametrize("port", ["99999", "http"])
def test_what_is_no_port_is_wrong_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        given("--port", port)
    assert caught.value.code == 2
    assert "from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("drain", ["-1", "nan", "inf", "soon"])
def test_what_is_no_drain_time_is_wrong_usage(
    drain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        given("--drain", drain)
    assert caught.value.code == 2
    assert f"'{drain}' is not a number of seconds" in capsys.readouterr().err
    assert given("--drain", "0").drain == 0.0
