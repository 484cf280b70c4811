"""The schema of an answer on its way to a provider, and typed turns through each dialect."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bargein import Agent, Engine
from bargein.contracts.json_schema import check_schema, schema_violation
from bargein.contracts.model import (
    EndPart,
    ModelRequest,
    Part,
    StopReason,
    TextPart,
    Usage,
    UsagePart,
)
from bargein.contracts.output_type import output_type
from bargein.models.dialects.anthropic import AnthropicDialect
from bargein.models.dialects.schema import (
    ANTHROPIC,
    DEPTH_MAX,
    ENUM_MAX,
    LIKE_OPENAI,
    OPENAI,
    Json,
    Provider,
    enforced_schema,
    object_schema,
)
from bargein.session.agent import REPAIRS_MAX
from bargein.session.session import TurnFailed
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_zoo import whole
from tests.models.harness import DIALECTS, endpoint, one_try
from tests.session.world import CONFIG

PROVIDERS = {"openai": OPENAI, "like openai": LIKE_OPENAI, "anthropic": ANTHROPIC}


class City(msgspec.Struct):
    name: str
    twin: str | None = None


class Node(msgspec.Struct):
    name: str
    below: list[Node]


@dataclass
class Open:
    name: str
    people: int = 0


class Limited(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    people: Annotated[int, msgspec.Meta(ge=0)]
    site: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})]
    begins: datetime.date


def asked(kind: Any) -> Json:
    schema = object_schema(msgspec.Raw(output_type(kind).output.schema.encode()))
    assert schema is not None
    return schema


def sent(kind: Any, provider: Provider) -> Any:
    return enforced_schema(asked(kind), provider)


def test_objects_are_closed_and_members_that_may_be_null_are_required() -> None:
    schema = sent(City, OPENAI)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "twin"]
    assert "default" not in schema["properties"]["twin"]
    # Where members may be left out, they are.
    assert sent(City, ANTHROPIC)["required"] == ["name"]


def test_a_member_that_would_have_to_be_made_up_is_not_enforced_by_openai() -> None:
    assert sent(Open, OPENAI) is None
    assert sent(Open, ANTHROPIC)["required"] == ["name"]


def test_limits_that_a_provider_refuses_are_left_out_or_to_the_host() -> None:
    openai, anthropic = sent(Limited, OPENAI)["properties"], sent(Limited, ANTHROPIC)["properties"]
    assert openai["name"] == anthropic["name"] == {"type": "string"}
    assert openai["people"] == {"type": "integer", "minimum": 0}
    assert anthropic["people"] == {"type": "integer"}
    assert openai["site"] == {"type": "string"}
    assert openai["begins"] == {"type": "string", "format": "date"}
    assert sent(Limited, LIKE_OPENAI) is None


def test_a_recursive_type_is_sent_where_it_is_taken() -> None:
    assert sent(Node, OPENAI)["properties"]["below"]["items"] == {"$ref": "#/$defs/Node"}
    assert sent(Node, ANTHROPIC) is None
    assert sent(list[City], ANTHROPIC) is not None


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
@pytest.mark.parametrize(
    "member",
    [
        {},
        True,
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        {"allOf": [{"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {"enum": list(range(ENUM_MAX + 1))},
    ],
    ids=str,
)
def test_what_a_provider_would_refuse_is_not_sent_to_be_enforced(
    member: Any, provider: Provider
) -> None:
    schema: Json = {"type": "object", "properties": {"m": member}, "required": ["m"]}
    assert enforced_schema(schema, provider) is None


def test_a_schema_of_many_levels_is_not_enforced() -> None:
    schema: Json = {"type": "string"}
    for _ in range(DEPTH_MAX + 1):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert enforced_schema(schema, OPENAI) is None


LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 0},
        {"type": ["boolean", "null"]},
        {"enum": ["a", None, 3]},
        {"const": "c"},
        {"$ref": "#/$defs/short"},
        {"type": "string", "default": "x", "format": "uri"},
    ]
)


def _larger(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from("abc"), below, max_size=3)
    return st.one_of(
        st.builds(lambda each: {"type": "array", "items": each, "maxItems": 2}, below),
        st.builds(lambda each: {"anyOf": [each, {"type": "null"}]}, below),
        members.flatmap(
            lambda each: st.fixed_dictionaries(
                {
                    "type": st.just("object"),
                    "properties": st.just(each),
                    "required": st.lists(st.sampled_from("abc"), unique=True, max_size=3),
                },
                optional={"additionalProperties": st.booleans()},
            )
        ),
    )


SCHEMAS = st.recursive(LEAVES, _larger, max_leaves=6)
DEFS = {"short": {"type": "string"}}


def _fitting(draw: st.DrawFn, schema: Any) -> Any:
    """A value that fits a schema as a provider enforces it."""
    if "$ref" in schema:
        return "a"
    if "anyOf" in schema:
        return _fitting(draw, draw(st.sampled_from(schema["anyOf"])))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    match schema["type"]:
        case "object":
            optional = [name for name in schema["properties"] if name not in schema["required"]]
            names = [*schema["required"], *draw(st.lists(st.sampled_from(optional or ["-"])))]
            members = {name: schema["properties"].get(name) for name in names}
            return {name: _fitting(draw, each) for name, each in members.items() if each}
        case "array":
            return [_fitting(draw, schema["items"]) for _ in range(draw(st.integers(0, 2)))]
        case "integer":
            return draw(st.integers(0, 5))
        case "null":
            return None
        case ["boolean", "null"]:
            return draw(st.sampled_from([True, False, None]))
    return draw(st.text(max_size=3))


@settings(max_examples=60)
@given(schema=SCHEMAS, data=st.data())
def test_whatever_fits_the_schema_that_is_sent_fits_the_one_that_was_asked_for(
    schema: Any, data: st.DataObject
) -> None:
    root: Json = {
        "type": "object",
        "properties": {"m": schema},
        "required": ["m"],
        "$defs": DEFS,
    }
    check_schema(root)
    for provider in PROVIDERS.values():
        enforced = enforced_schema(root, provider)
        if enforced is None:
            continue
        check_schema(enforced)
        value = data.draw(st.composite(_fitting)(enforced))
        assert schema_violation(value, enforced) is None
        assert schema_violation(value, root) is None


# Typed turns through real dialects


def saying(text: str) -> Sequence[Part]:
    return (
        TextPart(text),
        UsagePart(Usage(input_tokens=5, output_tokens=3)),
        EndPart(StopReason.END),
    )


def schema_in(dialect: str, body: Any) -> Any:
    if dialect == "openai":
        assert body["response_format"]["json_schema"]["strict"] is True
        return body["response_format"]["json_schema"]["schema"]
    if dialect == "openai-responses":
        assert body["text"]["format"]["strict"] is True
        return body["text"]["format"]["schema"]
    return body["output_config"]["format"]["schema"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_typed_turn_through_each_dialect(dialect: str) -> None:
    replies = [
        whole(dialect, *saying("Paris, I think.")),
        whole(dialect, *saying('{"name": "Paris", "twin": null}')),
    ]
    async with FaultServer(replies) as server:
        agent = Agent(one_try(endpoint(server.url, dialect)), output=City)
        async with Engine(agent, store="memory", config=CONFIG) as engine:
            session = await engine.session("s")
            stream = session.stream("Which city?")
            assert [event async for event in stream]
            assert (await stream.result()).output == City("Paris")
        bodies = [msgspec.json.decode(request.body) for request in server.requests]
    assert len(bodies) == 2
    for body in bodies:
        assert schema_in(dialect, body)["additionalProperties"] is False
    assert "it is not JSON alone" in str(bodies[1])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_bound_of_repairs_holds_through_each_dialect(dialect: str) -> None:
    async with FaultServer([whole(dialect, *saying("Paris!"))]) as server:
        agent = Agent(one_try(endpoint(server.url, dialect)))
        async with Engine(agent, store="memory", config=CONFIG) as engine:
            sent_message = await (await engine.session("s")).send("Which?", output=list[City])
            with pytest.raises(TurnFailed, match="does not fit"):
                await sent_message.result()
        assert len(server.requests) == REPAIRS_MAX + 1


def test_anthropics_older_models_are_asked_in_words() -> None:

    request = ModelRequest(
        (), response_schema=msgspec.Raw(output_type(City).output.schema.encode())
    )
    body = msgspec.json.decode(AnthropicDialect().encode("claude-3-5-haiku-latest", request))
    assert "output_config" not in body
