"""Parses the arguments that a model wrote, and explains in one sentence what is wrong with them.

The sentence names the parameter, the given value and the expected type, and shows an example that
would be accepted. Numbers and booleans written as text are accepted: refusing `"timeout": "30"`
would cost a step and teach nothing.
"""

import difflib
import re
from typing import Any

import msgspec

from bargein.calls.text import one_line
from bargein.errors import ModelMisbehaved
from bargein.tools.signature import Signature

RESULT = "result"
"""The parameter of an undoing function that gets the text of the call's result."""

_AT = re.compile(r"^(.*?)(?: - at `(?:key in )?\$(.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[\.\.\.\]")
_FIELD_NAMED = re.compile(r"field `([^`]*)`")
_TYPE_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_TYPE_EXAMPLES: dict[str, Any] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}
_LIMIT_WORDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "of a length of at least",
    "maxLength": "of a length of at most",
    "pattern": "that matches",
}


class BadArguments(ModelMisbehaved):
    """The arguments of a call are invalid. The message is for the model."""


def read_arguments(
    name: str, signature: Signature, text: str, example: dict[str, Any] | None = None
) -> msgspec.Struct:
    """Returns the arguments as a `signature.arguments`, or raises `BadArguments`."""
    # An unpaired surrogate cannot be encoded, not even to quote it in the error.
    raw = text.strip().encode("utf-8", "replace").decode() or "{}"
    shown = example if example is not None else _example(signature.schema)
    try:
        return _converted(_decoded(raw), signature)
    except BadArguments as error:
        sentence = str(error)
    raise BadArguments(f"{name}: {sentence}. For example: {_compact(shown)}")


def arguments_of_undo(
    name: str, signature: Signature, undo: Signature, *, given: str, result: str
) -> str:
    """Returns the arguments for the function that undoes a call: those of the call that it takes,
    and the text of the result if the call has no such argument itself. Raises `BadArguments`."""
    arguments = read_arguments(name, signature, given)
    taken = undo.arguments.__struct_fields__
    values = {
        each: getattr(arguments, each) for each in arguments.__struct_fields__ if each in taken
    }
    if RESULT in taken:
        values.setdefault(RESULT, result)
    return msgspec.json.encode(values).decode()


def read_object(name: str, text: str) -> dict[str, Any]:
    """The arguments of a tool whose own server checks them; raises `BadArguments`."""
    raw = text.strip().encode("utf-8", "replace").decode() or "{}"
    try:
        given = _decoded(raw)
    except BadArguments as error:
        raise BadArguments(f"{name}: {error}") from error
    if not isinstance(given, dict):
        raise BadArguments(f"{name}: the arguments must be one JSON object, not {_quoted(given)}")
    return given


def _converted(given: object, signature: Signature) -> msgspec.Struct:
    try:
        return msgspec.convert(given, type=signature.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArguments(_explain(signature.schema, given, str(error))) from error


def _decoded(raw: str) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadArguments(
            f"the arguments are not valid JSON ({error}; {len(raw)} characters, ending in "
            f"{_quoted(raw[-40:])})"
        ) from error
    except RecursionError as error:
        raise BadArguments("the arguments are nested too deeply") from error


def _explain(schema: dict[str, Any], given: object, complaint: str) -> str:
    if not isinstance(given, dict):
        return f"the arguments must be one JSON object, not {_quoted(given)}"
    found = _AT.match(complaint)
    assert found is not None
    problem, path = found[1], found[2] or ""
    names = list(schema.get("properties", {}))
    field = _FIELD_NAMED.search(problem)
    if field and not path:
        if "unknown" in problem:
            return _unknown(field[1], names)
        expected = _expected(schema["properties"][field[1]], schema)
        description = schema["properties"][field[1]].get("description", "")
        words = f" ({one_line(description, 120)})" if description else ""
        return f"`{field[1]}` is missing; it must be {expected}{words}"
    where = path.lstrip(".")
    target, value = _follow(schema, given, path)
    if target is None or field:
        return f"`{where}` is not usable: {problem}; {_quoted(value)} was given"
    return f"`{where}` must be {_expected(target, schema)}, but {_quoted(value)} was given"


def _unknown(name: str, names: list[str]) -> str:
    if not names:
        return f"there is no parameter `{name}`; it takes none"
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else ";"
    return f"there is no parameter `{name}`{hint} The parameters are: {', '.join(names)}"


def _follow(schema: dict[str, Any], given: Any, path: str) -> tuple[dict[str, Any] | None, object]:
    """Returns the schema and the value at a path such as `.steps[0].name`."""
    target: dict[str, Any] | None = schema
    for step in _STEP.finditer(path):
        target = _resolved(target, schema)
        name, index = step[1], step[2]
        if name is not None:
            given = given.get(name) if isinstance(given, dict) else None
            target = target.get("properties", {}).get(name) if target else None
        elif index is not None:
            number = int(index)
            inside = isinstance(given, list) and number < len(given)
            given = given[number] if inside else None
            items = target.get("items") if target else None
            target = items if isinstance(items, dict) else None
        else:
            extra = target.get("additionalProperties") if target else None
            target = extra if isinstance(extra, dict) else None
    return target, given


def _resolved(target: dict[str, Any] | None, schema: dict[str, Any]) -> dict[str, Any] | None:
    if target is not None and "$ref" in target:
        found: dict[str, Any] | None = schema.get("$defs", {}).get(target["$ref"].split("/")[-1])
        return found
    return target


def _expected(target: dict[str, Any], schema: dict[str, Any]) -> str:
    target = _resolved(target, schema) or {}
    if "enum" in target:
        return "one of " + ", ".join(_compact(each) for each in target["enum"])
    if "anyOf" in target:
        return " or ".join(dict.fromkeys(_expected(each, schema) for each in target["anyOf"]))
    words = _TYPE_WORDS.get(target.get("type", ""), "another kind of value")
    if target.get("type") == "array" and isinstance(target.get("items"), dict):
        words += f" whose items are each {_expected(target['items'], schema)}"
    for key, saying in _LIMIT_WORDS.items():
        if key in target:
            words += f" {saying} {target[key]}"
    return words


def _example(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _example_value(properties[name], schema) for name in schema.get("required", [])}


def _example_value(target: dict[str, Any], schema: dict[str, Any], depth: int = 0) -> Any:
    target = _resolved(target, schema) or {}
    if target.get("examples"):
        return target["examples"][0]
    if "enum" in target:
        return target["enum"][0]
    if "anyOf" in target:
        return _example_value(target["anyOf"][0], schema, depth)
    kind = target.get("type", "")
    if depth < 3 and kind == "array" and isinstance(target.get("items"), dict):
        return [_example_value(target["items"], schema, depth + 1)]
    if depth < 3 and kind == "object" and "properties" in target:
        needed = target.get("required", [])
        return {
            name: _example_value(target["properties"][name], schema, depth + 1) for name in needed
        }
    return target.get("minimum", _TYPE_EXAMPLES.get(kind, "..."))


def _quoted(value: object) -> str:
    return one_line(_compact(value), 60)


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode()
