"""Whom `bargein serve` lets in, and whom it offers the tools of the machine."""

import argparse

import pytest

from bargein.cli.arguments import command_line
from bargein.cli.serve import admission
from bargein.errors import UserError

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
