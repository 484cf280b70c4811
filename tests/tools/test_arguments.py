"""Schemas come from signatures, and errors about wrong arguments help the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

from bargein.cancel import Token
from bargein.contracts.tool import Effect
from bargein.tools import Tool, ToolContext, tool
from bargein.tools.arguments import BadArguments, read_arguments


class Step(msgspec.Struct):
    name: str
    seconds: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass
class Place:
    city: str


@tool(effect=Effect.NONE)
def cook(
    dish: str,
    context: ToolContext,
    steps: list[Step],
    token: Token | None,
    mode: Literal["fast", "slow"] = "fast",
    servings: int | None = None,
    warm: bool = True,
    place: Place = Place("Rome"),  # noqa: B008
    notes: list[str] = ["one"],  # noqa: B006
) -> str:
    """Cook a dish.

    Args:
        dish: Its name.
        steps: What to do, in order.
    """
    return dish


def complaint(text: str, of: Tool[..., Any] = cook) -> str:
    with pytest.raises(BadArguments) as raised:
        read_arguments(of.name, of.signature, text)
    return str(raised.value)


def test_the_schema_has_what_the_model_gives_and_nothing_that_is_filled_in() -> None:
    schema = json.loads(bytes(cook.schema.parameters))
    assert cook.schema.name == "cook"
    assert cook.schema.description == "Cook a dish."
    assert list(schema["properties"]) == [
        "dish",
        "steps",
        "mode",
        "servings",
        "warm",
        "place",
        "notes",
    ]
    assert schema["type"] == "object"
    assert schema["required"] == ["dish", "steps"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["dish"] == {"type": "string", "description": "Its name."}
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "default": "fast"}
    assert set(schema["$defs"]) == {"Step", "Place"}
    assert cook.signature.filled == {"context": "context", "token": "token"}


def test_arguments_are_read_with_their_types_and_fresh_defaults() -> None:
    text = '{"dish": "soup", "steps": [{"name": "boil", "seconds": "60"}], "servings": "4"}'
    first = cook.values(read_arguments("cook", cook.signature, text))
    second = cook.values(read_arguments("cook", cook.signature, text))
    assert first["steps"] == [Step("boil", 60)]
    assert first["servings"] == 4
    assert first["place"] == Place("Rome")
    assert first["notes"] == ["one"]
    assert first["notes"] is not second["notes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"steps": []}', "`dish` is missing; it must be a text (Its name.)"),
        ('{"dish": 3, "steps": []}', "`dish` must be a text, but 3 was given"),
        ('{"dish": null, "steps": []}', "`dish` must be a text, but null was given"),
        (
            '{"dish": "a", "steps": [{"name": "b", "seconds": -1}]}',
            "`steps[0].seconds` must be a whole number at least 0, but -1 was given",
        ),
        (
            '{"dish": "a", "steps": [{"seconds": 1}]}',
            "`steps[0]` is not usable: Object missing required field `name`",
        ),
        ('{"dish": "a", "steps": "b"}', "`steps` must be a list whose items are each an object"),
        (
            '{"dish": "a", "steps": [], "mode": "medium"}',
            '`mode` must be one of "fast", "slow", but "medium" was given',
        ),
        (
            '{"dish": "a", "steps": [], "servings": "many"}',
            '`servings` must be a whole number or null, but "many" was given',
        ),
        ('{"dihs": "a", "steps": []}', "there is no parameter `dihs`; did you mean `dish`?"),
        ('{"zzz": "a"}', "there is no parameter `zzz`; The parameters are: dish, steps, mode"),
        ('["soup"]', 'must be one JSON object, not ["soup"]'),
        ('"soup"', 'must be one JSON object, not "soup"'),
        ('{"dish": "a", "steps": [', "not valid JSON (Input data was truncated; 24 characters"),
        ("dish=soup", "not valid JSON"),
        ('{"dish": 1e999}', "not valid JSON (Number out of range"),
        ('{"dish": "\ud800"}', "is missing"),
    ],
)
def test_a_wrong_argument_is_told_with_what_was_given_and_what_is_expected(
    text: str, words: str
) -> None:
    told = complaint(text)
    assert words in told
    assert told.startswith("cook: ")
    example = told.rpartition("For example: ")[2]
    read_arguments("cook", cook.signature, example)


def test_no_text_at_all_is_no_arguments() -> None:
    @tool
    def now() -> str:
        return "now"

    assert now.values(read_arguments("now", now.signature, "")) == {}
    assert "it takes none" in complaint('{"zone": 1}', now)


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    @tool
    def store(value: dict[str, Any]) -> str:
        return ""

    assert "store: " in complaint('{"value": ' + "[" * 100_000, store)


def test_functions_that_cannot_be_described_are_refused_with_the_remedy() -> None:
    def untyped(text) -> str:  # type: ignore[no-untyped-def]
        return ""

    def many(*texts: str) -> str:
        return ""

    def positional(text: str, /) -> str:
        return ""

    def complex_number(value: complex) -> str:
        return ""

    def unknown(value: NoSuchType) -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    def generator(count: int):  # type: ignore[no-untyped-def]
        yield count

    with pytest.raises(TypeError, match="parameter text needs a type"):
        tool(untyped)
    with pytest.raises(TypeError, match="name each parameter"):
        tool(many)
    with pytest.raises(TypeError, match="positional-only"):
        tool(positional)
    with pytest.raises(TypeError, match="no JSON form"):
        tool(complex_number)
    with pytest.raises(TypeError, match="not known"):
        tool(unknown)
    with pytest.raises(TypeError, match="is a generator"):
        tool(generator)


def test_a_tool_is_still_the_function() -> None:
    @tool(name="add-up")
    def add(first: int, second: int = 2) -> int:
        """Add."""
        return first + second

    assert add(1) == 3
    assert add.name == "add-up"
    assert add.__doc__ == "Add."


@pytest.mark.parametrize("name", ["", "two words", "a" * 65, "-x", "ä"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    def function() -> str:
        return ""

    function.__name__ = "<lambda>"
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        tool(name=name)(function)


def test_options_are_checked_when_they_are_given() -> None:
    def function() -> str:
        return ""

    async def coroutine() -> str:
        return ""

    def with_context(context: ToolContext) -> str:
        return ""

    with pytest.raises(ValueError, match="'thread' or 'process'"):
        tool(isolation="fiber")(function)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="grace_s"):
        tool(grace_s=-1)(function)
    with pytest.raises(TypeError, match=r"Effect\.NONE"):
        tool(effect="none")(function)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="sync functions in a thread"):
        tool(stop="raise")(coroutine)
    with pytest.raises(ValueError, match="for sync functions"):
        tool(isolation="process")(coroutine)
    with pytest.raises(TypeError, match="take a Token"):
        tool(isolation="process")(with_context)
    with pytest.raises(TypeError, match="move it to the top level"):
        tool(isolation="process")(function)
