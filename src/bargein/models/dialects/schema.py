"""The schema of an answer as a provider takes it. Pure.

Providers enforce a part of JSON Schema and refuse a request that uses more. So a schema is changed
on its way, in two directions. It is narrowed where every answer still fits: objects are closed, and
members that may be null are required. It is widened where a provider knows no such limit: the words
of the request name the limit, and the agent checks the answer. Where neither helps, the provider is
asked without enforcement, or in words alone.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from bargein.contracts.json_schema import definitions_used, is_object_schema, root_inlined

Json = dict[str, object]

DEPTH_MAX = 10
ENUM_MAX = 1000

_MAPS = ("properties", "$defs", "definitions")
# What neither can be sent nor left out: the answer would be another.
_REFUSED = {"allOf", "not", "if", "then", "else", "prefixItems"}
# What says nothing about an answer.
_NOTES = {"default", "discriminator", "examples", "$schema", "$id", "$comment", "deprecated"}
_SIZES = {"minLength", "maxLength", "minProperties", "maxProperties", "propertyNames"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


@dataclass(frozen=True, slots=True)
class Provider:
    """What a provider enforces. `unknown` are the limits that it refuses; they are left out if it
    `drops` them, else the schema is not enforced."""

    unknown: frozenset[str]
    drops: bool = True
    needs_all_required: bool = True
    takes_recursion: bool = True


OPENAI = Provider(frozenset({*_SIZES, "uniqueItems"}))
LIKE_OPENAI = Provider(OPENAI.unknown, drops=False)
"""Other hosts of its protocol: some enforce limits that OpenAI refuses."""
ANTHROPIC = Provider(
    frozenset({*OPENAI.unknown, *_NUMBERS, "minItems", "maxItems", "pattern"}),
    needs_all_required=False,
    takes_recursion=False,
)


class _NotEnforced(Exception):
    """The provider would refuse the schema."""


def object_schema(schema: msgspec.Raw) -> Json | None:
    """Returns the schema without a reference at its root; None if it is not one of an object, which
    alone providers take."""
    node = msgspec.json.decode(schema)
    root = root_inlined(node) if isinstance(node, dict) else None
    return root if is_object_schema(root) else None


def enforced_schema(root: Json, provider: Provider) -> Json | None:
    """Returns the schema as the provider enforces it; None if it would refuse it."""
    try:
        if not provider.takes_recursion and _is_recursive(root):
            return None
        return _enforced(root, provider, 0)
    except _NotEnforced:
        return None


def _enforced(node: Any, provider: Provider, depth: int) -> Json:
    if not isinstance(node, dict) or _REFUSED & node.keys() or depth > DEPTH_MAX:
        raise _NotEnforced
    if "$ref" in node:
        # Nothing may stand beside it.
        return {"$ref": node["$ref"]}
    if not provider.drops and provider.unknown & node.keys():
        raise _NotEnforced
    if len(node.get("enum", ())) > ENUM_MAX:
        raise _NotEnforced
    kept: Json = {}
    for keyword, value in node.items():
        if keyword not in _NOTES and keyword not in provider.unknown:
            kept.update(_keyword(keyword, value, provider, depth + 1))
    if not kept.keys() & {"type", "anyOf", "enum", "const"}:
        raise _NotEnforced
    types = kept.get("type")
    if types == "object" or (isinstance(types, list) and "object" in types):
        _close(kept, node, provider)
    return kept


def _keyword(keyword: str, value: Any, provider: Provider, depth: int) -> Json:
    if keyword in _MAPS:
        return {keyword: {name: _enforced(each, provider, depth) for name, each in value.items()}}
    if keyword in ("anyOf", "oneOf"):
        # Whatever fits exactly one of them fits any of them.
        return {"anyOf": [_enforced(each, provider, depth) for each in value]}
    if keyword == "items":
        return {keyword: _enforced(value, provider, depth)}
    if keyword == "format" and value not in _FORMATS:
        return {}
    return {keyword: value}


def _close(kept: Json, node: Json, provider: Provider) -> None:
    members: Any = node.get("properties") or {}
    required: Any = node.get("required") or []
    is_open = node.get("additionalProperties") is not False
    if is_open and ("additionalProperties" in node or not members or "anyOf" in kept):
        raise _NotEnforced
    if not set(required) <= members.keys():
        raise _NotEnforced
    optional = [name for name in members if name not in required]
    if provider.needs_all_required and optional:
        if not all(_may_be_null(members[name]) for name in optional):
            # The model would have to make up a value.
            raise _NotEnforced
        required = list(members)
    kept.update(properties=kept.get("properties", {}), required=list(required))
    kept["additionalProperties"] = False


def _may_be_null(node: Any) -> bool:
    types = node.get("type", ())
    return (
        types == "null"
        or (isinstance(types, list) and "null" in types)
        or None in node.get("enum", ())
        or any(isinstance(each, dict) and _may_be_null(each) for each in node.get("anyOf", ()))
    )


def _is_recursive(root: Json) -> bool:
    defs: Any = root.get("$defs") or {}
    leads_to = {name: definitions_used(each) for name, each in defs.items()}
    for _ in leads_to:
        # Definitions that lead nowhere are taken away until none is left, or only a circle.
        leads_to = {name: used & leads_to.keys() for name, used in leads_to.items() if used}
    # Older schemas keep theirs elsewhere; whether they are recursive is not found out here.
    return bool(leads_to) or "definitions" in root or _refers_to_root(root)


def _refers_to_root(node: Any) -> bool:
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    is_reference = isinstance(node, dict) and node.get("$ref") == "#"
    return is_reference or any(_refers_to_root(each) for each in below)
