"""Our check of JSON values agrees with a full validator, and is bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import jsonschema_rs
import pytest

from bargein.contracts.json_schema import SchemaUnfit, StepsExceeded, check_schema, schema_violation
from bargein.contracts.output import Output, make_output, unfit

NAMES = ("a", "b", "c")
TYPES = ("null", "boolean", "string", "array", "object", "number", "integer")
DEFINITIONS = {"short": {"maxLength": 1}, "whole": {"type": ["integer", "object", "array"]}}


class Draw:
    """Random schemas and values, small enough that they often meet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def scalar(self) -> Any:
        return self._random.choice([None, True, False, -3, 0, 1, 1.0, 1.5, 2, "", "a", "bb"])

    def value(self, depth: int = 2) -> Any:
        kind = self._random.randrange(4) if depth else 0
        if kind == 2:
            return [self.value(depth - 1) for _ in range(self._random.randrange(4))]
        if kind == 3:
            return {name: self.value(depth - 1) for name in self._some(NAMES)}
        return self.scalar()

    def schema(self, depth: int = 2) -> Any:
        if not depth or self._random.random() < 0.1:
            return self._random.random() < 0.8
        below = partial(self.schema, depth - 1)
        number, count = partial(self._random.randint, -2, 2), partial(self._random.randint, 0, 2)
        makers: dict[str, Callable[[], Any]] = {
            "type": lambda: self._some(TYPES) or "object",
            "enum": lambda: [self.value() for _ in range(3)],
            "const": self.scalar,
            "properties": lambda: {name: below() for name in self._some(NAMES)},
            "required": lambda: self._some(NAMES),
            "prefixItems": lambda: [below()],
            "uniqueItems": lambda: self._random.random() < 0.5,
            "multipleOf": lambda: self._random.choice([1, 2, 0.5]),
            "$ref": lambda: self._random.choice(["#/$defs/short", "#/$defs/whole"]),
        }
        for name in ("allOf", "anyOf", "oneOf"):
            makers[name] = lambda: [below(), below()]
        for name in ("items", "additionalProperties", "propertyNames", "not", "if", "then", "else"):
            makers[name] = below
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            makers[name] = number
        for what in ("Length", "Items", "Properties"):
            makers[f"min{what}"] = makers[f"max{what}"] = count
        chosen = self._random.sample(sorted(makers), self._random.randint(1, 4))
        return {name: makers[name]() for name in chosen}

    def _some(self, names: tuple[str, ...]) -> list[str]:
        return self._random.sample(names, self._random.randint(0, 2))


def test_it_agrees_with_a_full_validator() -> None:
    found = {True: 0, False: 0}
    for seed in range(3000):
        draw = Draw(seed)
        drawn, value = draw.schema(), draw.value()
        schema = {"allOf": [drawn], "$defs": DEFINITIONS}
        check_schema(schema)
        fits = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
        assert (schema_violation(value, schema) is None) == fits, (seed, drawn, value)
        found[fits] += 1
    assert min(found.values()) > 300


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "give an object"),
        ({"type": "text"}, "give one or some of null"),
        ({"properties": {"a": {"patternProperties": {}}}}, "'patternProperties'"),
        ({"$ref": "https://example.org/x.json"}, "only what is inside"),
        ({"$ref": "#/$defs/none"}, "which is not in it"),
        ({"required": [1]}, "a list of names"),
        ({"minLength": -1}, "from 0"),
        ({"multipleOf": 0}, "above 0"),
        ({"anyOf": []}, "a list of schemas"),
        ({"properties": []}, "an object of schemas"),
        ({"items": {"enum": 3}}, "a list of values"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_with_its_place(schema: Any, words: str) -> None:
    with pytest.raises(SchemaUnfit, match="schema") as caught:
        check_schema(schema)
    assert words in str(caught.value)


def test_a_misfit_names_the_place_and_the_value() -> None:
    schema = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"type": "integer"}}},
        "required": ["rows"],
        "additionalProperties": False,
    }
    assert schema_violation({"rows": [1, "x"]}, schema) == "$.rows[1] is 'x', not of type integer"
    assert schema_violation({}, schema) == "$ lacks 'rows'"
    assert schema_violation({"rows": [], "more": 1}, schema) == (
        "$ has 'more', which the schema does not have"
    )


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 9}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_never_ends_is_given_up(schema: dict[str, Any]) -> None:
    output = make_output(schema)
    assert "steps" in (unfit(output, "[[1]]") or "")


LONG = [f"n{number}" for number in range(8000)]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": LONG}}, ["n1"] * 100_000),
        ({"items": {"const": LONG}}, [LONG] * 100),
        ({"items": {"required": LONG}}, [dict.fromkeys(LONG)] * 100),
        ({"items": {"uniqueItems": True}}, [LONG] * 100),
        ({"items": {"anyOf": [{"type": "null"}] * 4000}}, ["x" * 1_000_000] * 100),
        ({"items": {"anyOf": [{"type": "null"}] * 4000}}, [LONG] * 100),
        ({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, [[[1]] * 99_999]),
        ({"multipleOf": 0.1}, 10**300),
        ({"multipleOf": 3}, 10**300),
    ],
)
def test_no_schema_and_no_value_can_hold_the_program_for_long(schema: Any, value: Any) -> None:
    check_schema(schema)
    began = time.process_time()
    with suppress(StepsExceeded):
        schema_violation(value, schema)
    assert time.process_time() - began < 2.0


@pytest.mark.timeout(10)
def test_a_hostile_pattern_is_never_run() -> None:
    output = make_output({"type": "string", "pattern": "^(a+)+$"})
    assert unfit(output, '"' + "a" * 5000 + '!"') is None


def test_a_deep_schema_and_a_large_one_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(SchemaUnfit, match="nested"):
        check_schema(deep)
    with pytest.raises(SchemaUnfit, match="bytes"):
        make_output({"enum": ["x" * 70_000]})


@pytest.mark.parametrize(
    "text", ["", "no", "```json\n{}\n```", "{} and more", "[" * 100_000, "\ud800"]
)
def test_what_is_not_json_alone_is_said_to_be_so(text: str) -> None:
    assert (unfit(Output(), text) or "").startswith("it is not JSON alone")


def test_any_object_is_an_object() -> None:
    assert unfit(Output(), ' {"a": 1} ') is None
    assert unfit(Output(), "[1]") == "$ is [1], not of type object"
