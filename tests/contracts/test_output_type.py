"""Python types become the schema of an answer, and answers become values of the type."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bargein.contracts.json_schema import StepsExceeded, schema_violation
from bargein.contracts.output import TEXT, make_output
from bargein.contracts.output_type import COMPLAINTS_MAX, output_type


class Kind(enum.Enum):
    CITY = "city"
    TOWN = "town"


class Place(msgspec.Struct):
    """Where something is."""

    name: str
    people: Annotated[int, msgspec.Meta(ge=0)] = 0
    kind: Kind | None = None
    parts: list[Place] = []


@dataclass
class Trip:
    places: list[Place]
    begins: datetime.date
    notes: dict[str, str] = field(default_factory=dict)


class Price(TypedDict):
    article: str
    amount: float


class Bird(msgspec.Struct, tag=True):
    wings: int


class Fish(msgspec.Struct, tag=True):
    fins: int


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    size: int = pydantic.Field(default=1, gt=0)
    below: Model | None = None

    @pydantic.field_validator("name")
    @classmethod
    def is_lower(cls, value: str) -> str:
        if value != value.lower():
            raise ValueError("use small letters")
        return value


PLACES = st.recursive(
    st.builds(Place, st.text(), st.integers(0, 10**9), st.sampled_from([None, *Kind])),
    lambda below: st.builds(Place, st.text(), st.just(0), st.none(), st.lists(below, max_size=2)),
    max_leaves=5,
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    Place: PLACES,
    Trip: st.builds(
        Trip, st.lists(PLACES, max_size=2), st.dates(), st.dictionaries(st.text(), st.text())
    ),
    Price: st.fixed_dictionaries({"article": st.text(), "amount": NUMBERS}),
    list[int]: st.lists(st.integers(-(2**53), 2**53)),
    int: st.integers(-(2**53), 2**53),
    bool: st.booleans(),
    float: NUMBERS,
    bytes: st.binary(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    datetime.date: st.dates(),
    tuple[int, str]: st.tuples(st.integers(0, 9), st.text()),
    dict[str, list[bool]]: st.dictionaries(st.text(), st.lists(st.booleans())),
    Literal["yes", "no"]: st.sampled_from(["yes", "no"]),
    int | None: st.none() | st.integers(0, 9),
    Bird | Fish: st.builds(Bird, st.just(2)) | st.builds(Fish, st.integers(0, 9)),
    list[Place]: st.lists(PLACES, max_size=2),
    Model: st.builds(
        Model, name=st.text("abc", min_size=1), size=st.integers(1, 9), below=st.none()
    ),
}


def answer_of(kind: Any, value: Any) -> str:
    """What a model says that means this value."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump_json()
    text = msgspec.json.encode(value).decode()
    wanted = msgspec.json.decode(output_type(kind).output.schema)
    is_wrapped = list(wanted["properties"]) == ["value"] if "properties" in wanted else False
    return f'{{"value":{text}}}' if is_wrapped else text


@pytest.mark.parametrize("kind", VALUES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_every_value_of_a_type_fits_its_schema_and_comes_back(
    kind: Any, data: st.DataObject
) -> None:
    value = data.draw(VALUES[kind])
    described = output_type(kind)
    text = answer_of(kind, value)
    assert described.unfit(text) is None
    assert described.decode(text) == value


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_the_schema_is_one_of_an_object_without_a_reference_at_its_root(kind: Any) -> None:
    schema = msgspec.json.decode(output_type(kind).output.schema)
    assert schema["type"] == "object"
    assert "$ref" not in schema


def test_definitions_that_nothing_refers_to_are_left_out() -> None:
    assert "$defs" not in msgspec.json.decode(output_type(Price).output.schema)
    trip = msgspec.json.decode(output_type(Trip).output.schema)
    assert sorted(trip["$defs"]) == ["Kind", "Place"]
    assert sorted(msgspec.json.decode(output_type(list[Bird | Fish]).output.schema)["$defs"]) == [
        "Bird",
        "Fish",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (Place, "Paris", "it is not JSON alone"),
        (Place, "{}", "$ lacks 'name'"),
        (Place, '{"name": "a", "people": -1}', "less than 0"),
        (Place, '{"name": "a", "kind": "river"}', "none of its alternatives"),
        (list[int], "[1]", "$ is [1], not of type object"),
        (list[int], '{"value": ["a"]}', "$.value[0] is 'a'"),
        (datetime.date, '{"value": "tomorrow"}', "Invalid RFC3339"),
        (Model, '{"name": "ANN"}', "$.name: Value error, use small letters"),
        (Model, '{"name": "a", "size": 0}', "not more than 0"),
        (Bird | Fish, '{"value": {"type": "Bird", "fins": 1}}', "none of its alternatives"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(kind: Any, text: str, why: str) -> None:
    found = output_type(kind).unfit(text)
    assert found is not None
    assert why in found
    assert "\n" not in found
    assert "http" not in found


def test_a_validator_of_the_users_own_is_heard() -> None:
    class Even(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"{self.number} is odd")

    assert output_type(Even).unfit('{"number": 3}') == "3 is odd"
    assert output_type(Even).unfit('{"number": 4}') is None


def test_the_complaints_of_a_validator_are_bounded() -> None:
    class Rows(pydantic.BaseModel):
        rows: list[Annotated[str, pydantic.AfterValidator(_refuse)]]

    found = output_type(Rows).unfit(msgspec.json.encode({"rows": ["a"] * 50}).decode())
    assert found is not None
    assert found.count("never good enough") == COMPLAINTS_MAX


def _refuse(value: str) -> str:
    raise ValueError("never good enough")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (complex, "output is complex, which no JSON Schema describes"),
        (list[Model], "<class 'tests.contracts.test_output_type.Model'> is not supported"),
        (Place | Trip, "more than one dict-like type"),
        ("Place", "output is 'Place'"),
        (5, "output is 5"),
        ([int], "such as list[int]"),
        (
            Annotated[dict[str, int], msgspec.Meta(extra_json_schema={"patternProperties": {}})],
            "'patternProperties', which is not checked here",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_with_what_would_do(kind: Any, words: str) -> None:
    with pytest.raises(TypeError) as raised:
        output_type(kind)
    assert words in str(raised.value)
    assert "give a msgspec Struct, a dataclass, a TypedDict, a pydantic model" in str(raised.value)


def test_str_is_any_words_and_an_output_is_plain_json() -> None:
    words = output_type(str)
    assert words.output == TEXT
    assert words.unfit("anything {") is None
    assert words.decode("anything {") == "anything {"
    rows = output_type(make_output({"type": "array"}, name="rows"))
    assert rows.decode("[1, null]") == [1, None]
    assert rows.unfit("{}") == "$ is {}, not of type array"
    assert output_type(rows) is rows


def test_a_check_that_takes_long_says_so_before_it_is_done() -> None:
    described = output_type(list[int])
    text = msgspec.json.encode({"value": list(range(2000))}).decode()
    with pytest.raises(StepsExceeded):
        described.unfit(text, 1000)
    assert described.unfit(text) is None
    found = described.unfit(msgspec.json.encode({"value": [0] * 60_000}).decode())
    assert found is not None
    assert "steps to check it" in found


DEEP = 100_000
"""Deeper than any interpreter decodes: since 3.12 C code has a limit of its own."""


def test_an_answer_that_is_nested_too_deeply_is_no_value() -> None:
    deep = '{"name":"a","parts":[' * DEEP + "]}" * DEEP
    assert output_type(Place).unfit(deep) is not None
    with pytest.raises(ValueError, match=r"recursion|deep"):
        output_type(Place).decode(deep)


def test_the_described_schema_refuses_what_the_type_refuses() -> None:
    schema = msgspec.json.decode(output_type(Trip).output.schema)
    assert schema_violation({"places": [], "begins": 5}, schema) is not None
