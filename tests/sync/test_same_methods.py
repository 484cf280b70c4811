"""`bargein.sync` has the methods of `bargein.Session`, with the same parameters and results."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import AsyncGenerator, Callable, Iterator

from bargein import sync
from bargein.session import session as async_session
from bargein.session import streaming
from bargein.session.abort import Interrupt

DIFFERENCES = {
    "watch_many": "takes many events at once for servers; `watch` serves a thread as well",
}
"""Methods and parameters that `bargein.sync.Session` does not have, and why."""

TWINS: dict[object, typing.Any] = {
    async_session.Sent: sync.Sent,
    streaming.TurnStream: sync.TurnStream,
}


def methods(of: type) -> dict[str, Callable[..., object]]:
    found = inspect.getmembers(of, inspect.isfunction)
    return {name: function for name, function in found if not name.startswith("_")}


def parameters(name: str, function: Callable[..., object]) -> list[tuple[object, ...]]:
    return [
        (each.name, each.kind, each.default, hints(function).get(each.name))
        for each in inspect.signature(function).parameters.values()
        if f"{name}.{each.name}" not in DIFFERENCES
    ]


def hints(function: Callable[..., object]) -> dict[str, object]:
    module = inspect.getmodule(function)
    return typing.get_type_hints(function, {**vars(async_session), **vars(module)})


def without_await(result: object) -> object:
    """The result of an async method, as its twin without `await` returns it."""
    if typing.get_origin(result) is AsyncGenerator:
        return Iterator[typing.get_args(result)[0]]  # type: ignore[misc]
    origin = typing.get_origin(result)
    if origin in TWINS:
        return TWINS[origin][typing.get_args(result)]
    if result is Interrupt:
        # Whether a turn is being stopped. Who wants the receipt calls `interrupt`, which waits.
        return bool
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(without_await, typing.get_args(result)))]  # noqa: UP007
    return result


def test_every_method_is_there_or_has_a_reason_not_to_be() -> None:
    missing = set(methods(async_session.Session)) - set(DIFFERENCES)
    assert missing == set(methods(sync.Session))


def test_every_method_takes_the_same_parameters_and_returns_the_same() -> None:
    twins = methods(sync.Session)
    for name, function in methods(async_session.Session).items():
        if name in DIFFERENCES:
            continue
        twin = twins[name]
        assert parameters(name, function) == parameters(name, twin), name
        assert without_await(hints(function)["return"]) == hints(twin)["return"], name


def test_every_difference_is_still_one() -> None:
    for difference in DIFFERENCES:
        name, _, parameter = difference.partition(".")
        function = methods(async_session.Session)[name]
        if parameter:
            assert parameter in inspect.signature(function).parameters
            assert parameter not in inspect.signature(methods(sync.Session)[name]).parameters
        else:
            assert name not in methods(sync.Session)
