"""`bargein.client.Session` has the methods of `bargein.Session`, and both are an `AnySession`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable

import pytest

from bargein.client import Session as WireSession
from bargein.client.problems import ERRORS
from bargein.client.session import StopOverWire
from bargein.server.problems import Code
from bargein.session import session as async_session
from bargein.session.abort import Interrupt
from bargein.session.any_session import AnySession, AskedStop
from bargein.session.results import TurnResult
from bargein.session.sending import Sent
from bargein.session.streaming import TurnStream

SAID_BY_THE_TOKEN = ("sender", "by", "standing", "cause")
"""Parameters that only the engine's own methods have. Over the wire the token says who speaks, and
how far they are trusted; what one asks for is always a person's stop."""

OVERLOADED = ("send", "stream")
"""A Protocol has only their overloads, which mypy compares (`local` and `wire` below)."""


def methods(of: type) -> dict[str, Callable[..., object]]:
    found = inspect.getmembers(of, inspect.isfunction)
    return {name: function for name, function in found if not name.startswith("_")}


def hints(function: Callable[..., object]) -> dict[str, object]:
    module = inspect.getmodule(function)
    return typing.get_type_hints(function, {**vars(async_session), **vars(module)})


def parameters(function: Callable[..., object]) -> list[tuple[object, ...]]:
    return [
        (each.name, each.kind, each.default, hints(function).get(each.name))
        for each in inspect.signature(function).parameters.values()
        if each.name not in SAID_BY_THE_TOKEN
    ]


def result(function: Callable[..., object]) -> object:
    """What it returns. The type of an answer's output is the server's to know."""
    return _plain(hints(function)["return"])


def _plain(found: object) -> object:
    if found in (Interrupt, StopOverWire):
        return AskedStop
    origin = typing.get_origin(found)
    if origin in (Sent, TurnResult, TurnStream):
        return origin
    if origin in (typing.Union, types.UnionType):
        return tuple(map(_plain, typing.get_args(found)))
    return found


@pytest.mark.parametrize("twin", [WireSession, AnySession])
def test_every_method_is_there_with_the_same_parameters_and_result(twin: type) -> None:
    known, twins = methods(async_session.Session), methods(twin)
    assert set(known) == set(twins)
    for name, function in known.items():
        if twin is AnySession and name in OVERLOADED:
            continue
        assert parameters(function) == parameters(twins[name]), name
        assert result(function) == result(twins[name]), name


def test_no_method_says_who_speaks() -> None:
    for twin in (WireSession, AnySession):
        for name, function in methods(twin).items():
            said = set(SAID_BY_THE_TOKEN) & set(inspect.signature(function).parameters)
            assert not said, name


def local(session: async_session.Session[str]) -> AnySession:
    """Checked by mypy."""
    return session


def wire(session: WireSession) -> AnySession:
    return session


def test_every_code_of_the_api_is_an_error_of_its_own() -> None:
    assert set(ERRORS) == set(Code)
    for code, make in ERRORS.items():
        assert str(make(f"words of {code}")) == f"words of {code}"
