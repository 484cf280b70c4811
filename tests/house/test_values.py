"""Plain data is hidden from the collector, so it must be plain: what cannot refer back to it."""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

import bargein
from bargein.cancel import Reason
from bargein.contracts.value import Value

LEAVES = (str, bytes, int, float, bool, type(None), msgspec.Raw, Reason)


def values(above: type[Value] = Value) -> Iterator[type[Value]]:
    for value in above.__subclasses__():
        yield value
        yield from values(value)


def not_plain(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, types.UnionType, tuple, list):
        return [each for part in get_args(kind) if part is not ... for each in not_plain(part)]
    if isinstance(kind, type) and (kind in LEAVES or issubclass(kind, Value | Enum)):
        return []
    return [kind]


def test_no_value_holds_what_could_refer_back_to_it() -> None:
    for part in ("contracts", "session"):
        package = importlib.import_module(f"bargein.{part}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = {
        f"{value.__name__}.{field.name}": not_plain(field.type)
        for value in values()
        if value.__module__.startswith(bargein.__name__)
        for field in msgspec.structs.fields(value)
    }
    assert len(found) > 200
    assert {name: kinds for name, kinds in found.items() if kinds} == {}


@pytest.mark.parametrize("kind", [object, dict[str, str], tuple[Exception, ...]])
def test_what_is_not_plain_is_found(kind: Any) -> None:
    assert not_plain(kind)
