"""Dependencies of tools: `ToolContext[Deps]` has the type, `context.deps` the object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

import pytest

from bargein.cancel import TaskOwner
from bargein.tools import ToolContext, ToolRegistry, invoke, tool
from tests.tools.desk import Desk, call, text_of

pytestmark = pytest.mark.anyio


@dataclass
class Shop:
    prices: dict[str, float]


class Priced(Protocol):
    prices: dict[str, float]


@tool
def price(article: str, context: ToolContext[Shop]) -> float:
    """Look up a price."""
    return context.deps.prices[article]


@tool
async def price_later(article: str, context: Annotated[ToolContext[Priced], "filled in"]) -> float:
    """Look up a price."""
    return context.deps.prices[article]


@pytest.mark.parametrize("each", [price, price_later], ids=["def", "async def"])
async def test_a_tool_gets_the_deps_of_its_registry(each: Callable[..., object]) -> None:
    async with TaskOwner():
        registry = ToolRegistry([each], deps=Shop({"tea": 4.5}))
        (schema,) = registry.schemas()
        for some in (registry, registry.subset([schema.name])):
            result = await invoke(some, call(schema.name, article="tea"), Desk().context())
            assert text_of(result) == "4.5"


def test_a_tool_that_needs_other_deps_is_refused_where_it_is_added() -> None:
    with pytest.raises(TypeError, match="tool price needs deps of type Shop, but gets NoneType"):
        ToolRegistry([price])
    with pytest.raises(TypeError, match="but gets dict"):
        ToolRegistry([price], deps={"tea": 4.5})
    # A Protocol cannot be checked by `isinstance`.
    ToolRegistry([price_later], deps={"tea": 4.5})


def test_deps_have_their_type() -> None:
    """Read by mypy: a wrong attribute of `context.deps` is an error there."""

    def wrong(context: ToolContext[Shop]) -> object:
        return context.deps.no_such  # type: ignore[attr-defined]

    def plain(context: ToolContext) -> object:
        return context.deps

    def takes_any(context: ToolContext) -> None: ...

    def passes_on(context: ToolContext[Shop]) -> None:
        takes_any(context)

    assert all(map(callable, (wrong, plain, passes_on)))
