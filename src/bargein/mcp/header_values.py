"""Headers that repeat parts of a request, for routers of streamable HTTP that read no bodies. Pure.

A server may want arguments of a call in headers too (`x-mcp-header` in the schema of a tool). A
wrong annotation makes the tool invalid: `param_headers` raises `BadAnnotation`.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TOKEN: Final = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_PLAIN: Final = re.compile(r"^[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?$")
_PRIMITIVE: Final = frozenset({"string", "integer", "boolean"})
_KEY: Final = "x-mcp-header"
_SAFE_INTEGER: Final = 2**53 - 1
_DEPTH_MAX: Final = 32


class BadAnnotation(ValueError):
    """An `x-mcp-header` that the specification does not allow."""


def encoded(value: str) -> str:
    """Encode a text for a header: unchanged if possible, otherwise marked and in base64."""
    looks_encoded = value.startswith("=?base64?") and value.endswith("?=")
    if not looks_encoded and (not value or _PLAIN.match(value)):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def param_headers(schema: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """The path of each annotated argument, and its header. Raises `BadAnnotation`."""
    found: dict[tuple[str, ...], str] = {}
    seen: set[str] = set()
    for path, name, kind in _annotations(schema):
        if not isinstance(name, str) or not _TOKEN.match(name):
            raise BadAnnotation(f"{_KEY} {name!r} is not the name of a header")
        if name.lower() in seen:
            raise BadAnnotation(f"{_KEY} {name!r} is used twice")
        if kind not in _PRIMITIVE:
            raise BadAnnotation(f"{_KEY} {name!r} is on an argument of type {kind!r}")
        seen.add(name.lower())
        found[path] = f"Mcp-Param-{name}"
    if _count(schema, 0) != len(found):
        raise BadAnnotation(f"an {_KEY} stands where no argument can be found by its path")
    return found


def values_for(headers: Mapping[tuple[str, ...], str], arguments: object) -> dict[str, str]:
    """The headers of one call. Arguments that are not given, or null, have none."""
    values: dict[str, str] = {}
    for path, header in headers.items():
        value = arguments
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, bool):
            values[header] = "true" if value else "false"
        elif isinstance(value, int) and abs(value) <= _SAFE_INTEGER:
            values[header] = str(value)
        elif isinstance(value, float) and value.is_integer() and abs(value) <= _SAFE_INTEGER:
            values[header] = str(int(value))
        elif isinstance(value, str):
            values[header] = encoded(value)
    return values


def _annotations(
    schema: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(above) > _DEPTH_MAX:
        return
    for name, each in properties.items():
        if isinstance(each, dict):
            if _KEY in each:
                yield (*above, name), each[_KEY], each.get("type")
            yield from _annotations(each, (*above, name))


def _count(value: object, depth: int) -> int:
    """Count the annotations anywhere in a schema."""
    if depth > 4 * _DEPTH_MAX:
        return 0
    if isinstance(value, dict):
        here = int(_KEY in value and not isinstance(value[_KEY], dict))
        return here + sum(_count(each, depth + 1) for each in value.values())
    if isinstance(value, list):
        return sum(_count(each, depth + 1) for each in value)
    return 0
