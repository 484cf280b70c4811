"""Checks JSON values against a JSON Schema (draft 2020-12). Pure, bounded, and closed.

`check_schema` refuses a schema that uses a keyword this module does not check, so that no promise
is made that is not kept. Two keywords are allowed and not checked: `format`, which is an annotation
by default, and `pattern`, because a regular expression of a stranger can hold the interpreter for
minutes. Both still reach the model.

Both the schema and the value may be a stranger's: a check takes a bounded number of steps, each of
them about 10 us, whatever they contain. References stay inside the schema.
"""

import reprlib
from collections.abc import Callable, Iterator
from decimal import Decimal, DecimalException
from typing import Any

from bargein.errors import UserError

STEPS_MAX = 50_000
DEPTH_MAX = 64
SHOWN_CHARACTERS_MAX = 60

_ONE = ("not", "if", "then", "else", "propertyNames", "additionalProperties", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_UNCHECKED = (
    "$anchor",
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "patternProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and _is_whole(value),
}

_COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: value >= limit, "less than"),
    "maximum": (lambda value, limit: value <= limit, "more than"),
    "exclusiveMinimum": (lambda value, limit: value > limit, "not more than"),
    "exclusiveMaximum": (lambda value, limit: value < limit, "not less than"),
}


class SchemaUnfit(UserError):
    """The schema is not one, or uses what is not checked here."""


class StepsExceeded(Exception):
    """The check took more steps than it may."""


def check_schema(schema: object) -> None:
    """Raises `SchemaUnfit` unless every keyword of the schema is understood."""
    try:
        _check(schema, schema, "$", 0)
    except RecursionError:
        raise SchemaUnfit("the schema is nested too deeply") from None


def root_inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the same schema without a reference at its root, where providers take none."""
    seen = set()
    while "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        target = _target(schema["$ref"], schema)
        if not isinstance(target, dict):
            break
        rest = {name: each for name, each in schema.items() if name != "$ref"}
        if target.keys() & rest.keys():
            break
        schema = {**target, **rest}
    return _without_unused(schema)


def _without_unused(schema: dict[str, Any]) -> dict[str, Any]:
    """Leaves out definitions that nothing refers to, such as that of the root itself."""
    defs = schema.get("$defs")
    if not isinstance(defs, dict):
        return schema
    rest = {name: each for name, each in schema.items() if name != "$defs"}
    used: set[str] = set()
    open_nodes: list[object] = [rest]
    while open_nodes:
        names = definitions_used(open_nodes.pop()) & defs.keys() - used
        used |= names
        open_nodes += [defs[name] for name in names]
    if not used:
        return rest
    return {**rest, "$defs": {name: each for name, each in defs.items() if name in used}}


def definitions_used(node: object) -> set[str]:
    """Names the definitions that a schema refers to itself, as in #/$defs/NAME."""
    return set(_names_referred_to(node))


def _names_referred_to(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _names_referred_to(each)
    elif isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            yield reference.split("/")[2].replace("~1", "/").replace("~0", "~")
        yield from _names_referred_to(list(node.values()))


def is_object_schema(schema: object) -> bool:
    """Whether it describes an object and nothing else."""
    return isinstance(schema, dict) and schema.get("type") == "object"


def schema_violation(value: object, schema: object, steps_max: int = STEPS_MAX) -> str | None:
    """Why the value does not fit the schema, with its place; None if it fits. Raises
    `StepsExceeded` if that cannot be said within `steps_max` steps."""
    try:
        return _Checker(schema, steps_max).schema_violation(value, schema, "$", 0)
    except RecursionError:
        raise StepsExceeded from None


def _check(node: object, root: object, place: str, depth: int) -> None:
    if isinstance(node, bool):
        return
    if not isinstance(node, dict):
        raise SchemaUnfit(f"{place} of the schema is {_shown(node)}; give an object")
    if depth > DEPTH_MAX:
        raise SchemaUnfit(f"the schema is nested more than {DEPTH_MAX} deep at {place[:80]}")
    for keyword in _UNCHECKED:
        if keyword in node:
            raise SchemaUnfit(
                f"{place} of the schema has {keyword!r}, which is not checked here; leave it out"
            )
    _check_values(node, root, place)
    for name, below in _below(node):
        _check(below, root, f"{place}.{name}", depth + 1)


def _check_values(node: dict[str, Any], root: object, place: str) -> None:
    for keyword, value in node.items():
        wanted = _WANTED.get(keyword)
        if wanted is not None and not wanted[0](value):
            raise SchemaUnfit(
                f"{place} of the schema has {keyword} {_shown(value)}; give {wanted[1]}"
            )
    if "$ref" in node:
        _target(node["$ref"], root)


def _are_types(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and _is_whole(value) and value >= 0


_Wanted = tuple[Callable[[Any], bool], str]
_WANTED: dict[str, _Wanted] = {
    "type": (_are_types, f"one or some of {', '.join(_TYPES)}"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "required": (_are_names, "a list of names"),
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number from 0")),
    **dict.fromkeys(_COMPARISONS, (_is_number, "a number")),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(_LISTS, (lambda it: isinstance(it, list) and bool(it), "a list of schemas")),
    **dict.fromkeys(_MAPS, (lambda value: isinstance(value, dict), "an object of schemas")),
}


def _below(node: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for keyword in _ONE:
        if keyword in node:
            yield keyword, node[keyword]
    for keyword in _LISTS:
        for place, below in enumerate(node.get(keyword, ())):
            yield f"{keyword}[{place}]", below
    for keyword in _MAPS:
        for name, below in node.get(keyword, {}).items():
            yield f"{keyword}.{name}", below


def _target(reference: object, root: object) -> object:
    found = root
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaUnfit(
            f"the schema refers to {_shown(reference)}; only what is inside it can be referred to, "
            "as in #/$defs/NAME"
        )
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise SchemaUnfit(f"the schema refers to {_shown(reference)}, which is not in it")
    if not isinstance(found, dict | bool):
        raise SchemaUnfit(f"the schema refers to {_shown(reference)}, which is no schema")
    return found


class _Checker:
    def __init__(self, root: object, steps_max: int) -> None:
        self._root = root
        self._steps_left = steps_max
        self._targets: dict[str, object] = {}
        self._enums: dict[int, frozenset[object]] = {}

    def schema_violation(self, value: object, schema: object, place: str, depth: int) -> str | None:
        # Each level of a value or of a schema is one deeper; a reference to itself never ends.
        if depth > DEPTH_MAX * 2:
            raise StepsExceeded
        self._take(1)
        if isinstance(schema, bool):
            return None if schema else f"{place} is not allowed"
        assert isinstance(schema, dict)
        for wrong in self._wrongs(value, schema, place, depth + 1):
            return wrong
        return None

    def _take(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise StepsExceeded

    def _wrongs(
        self, value: object, schema: dict[str, Any], place: str, depth: int
    ) -> Iterator[str]:
        if "$ref" in schema:
            yield from self._wrong(value, self._target(schema["$ref"]), place, depth)
        yield from self._wrong_value(value, schema, place)
        if _is_number(value):
            yield from _wrong_number(value, schema, place)
        elif isinstance(value, str):
            yield from _wrong_size(len(value), schema, "Length", "characters", place)
        elif isinstance(value, list):
            yield from self._wrong_items(value, schema, place, depth)
        elif isinstance(value, dict):
            yield from self._wrong_members(value, schema, place, depth)
        yield from self._wrong_choice(value, schema, place, depth)

    def _target(self, reference: str) -> object:
        if reference not in self._targets:
            self._targets[reference] = _target(reference, self._root)
        return self._targets[reference]

    def _wrong_value(self, value: object, schema: dict[str, Any], place: str) -> Iterator[str]:
        names = schema.get("type", [])
        names = names if isinstance(names, list) else [names]
        if names and not any(_TYPES[name](value) for name in names):
            yield f"{place} is {_shown(value)}, not of type {' or '.join(names)}"
        if "const" in schema and self._key(value) != self._key(schema["const"]):
            yield f"{place} is {_shown(value)}, not {_shown(schema['const'])}"
        if "enum" in schema and self._key(value) not in self._enum(schema):
            yield f"{place} is {_shown(value)}, not one of {_shown(schema['enum'])}"

    def _enum(self, schema: dict[str, Any]) -> frozenset[object]:
        found = self._enums.get(id(schema))
        if found is None:
            found = self._enums[id(schema)] = frozenset(map(self._key, schema["enum"]))
        return found

    def _key(self, value: object) -> object:
        """Equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
        if isinstance(value, list):
            self._take(len(value))
            return ("list", tuple(map(self._key, value)))
        if isinstance(value, dict):
            self._take(len(value))
            return ("dict", frozenset((name, self._key(each)) for name, each in value.items()))
        return (isinstance(value, bool), value)

    def _wrong(self, value: object, schema: object, place: str, depth: int) -> Iterator[str]:
        found = self.schema_violation(value, schema, place, depth)
        if found is not None:
            yield found

    def _wrong_items(
        self, value: list[object], schema: dict[str, Any], place: str, depth: int
    ) -> Iterator[str]:
        yield from _wrong_size(len(value), schema, "Items", "items", place)
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        for number, item in enumerate(value):
            below = first[number] if number < len(first) else rest
            yield from self._wrong(item, below, f"{place}[{number}]", depth)
        if schema.get("uniqueItems") is True and self._has_twice(value):
            yield f"{place} has an item twice"

    def _has_twice(self, value: list[object]) -> bool:
        self._take(len(value))
        return len(set(map(self._key, value))) < len(value)

    def _wrong_members(
        self, value: dict[str, object], schema: dict[str, Any], place: str, depth: int
    ) -> Iterator[str]:
        required = schema.get("required", ())
        self._take(len(required) // 8)
        for name in required:
            if name not in value:
                yield f"{place} lacks {_shown(name)}"
        yield from _wrong_size(len(value), schema, "Properties", "members", place)
        known = schema.get("properties", {})
        more = schema.get("additionalProperties", True)
        for name, member in value.items():
            if "propertyNames" in schema:
                where = f"the name {_shown(name)} in {place}"
                yield from self._wrong(name, schema["propertyNames"], where, depth)
            if name not in known and more is False:
                yield f"{place} has {_shown(name)}, which the schema does not have"
            below = known.get(name, more)
            yield from self._wrong(member, below, f"{place}.{name[:40]}", depth)

    def _wrong_choice(
        self, value: object, schema: dict[str, Any], place: str, depth: int
    ) -> Iterator[str]:
        for below in schema.get("allOf", ()):
            yield from self._wrong(value, below, place, depth)
        if "anyOf" in schema or "oneOf" in schema:
            yield from self._wrong_alternative(value, schema, place, depth)
        if "not" in schema and self.schema_violation(value, schema["not"], place, depth) is None:
            yield f"{place} is what the schema says it must not be"
        if "if" in schema:
            fits = self.schema_violation(value, schema["if"], place, depth) is None
            yield from self._wrong(
                value, schema.get("then" if fits else "else", True), place, depth
            )

    def _wrong_alternative(
        self, value: object, schema: dict[str, Any], place: str, depth: int
    ) -> Iterator[str]:
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            found = [self.schema_violation(value, below, place, depth) for below in schema[keyword]]
            fitting = found.count(None)
            if not fitting:
                yield f"{place} fits none of its alternatives: {found[-1]}"
            elif keyword == "oneOf" and fitting > 1:
                yield f"{place} fits {fitting} of its alternatives, where one is allowed"


def _wrong_number(value: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    for keyword, (fits, words) in _COMPARISONS.items():
        if keyword in schema and not fits(value, schema[keyword]):
            yield f"{place} is {_shown(value)}, {words} {_shown(schema[keyword])}"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield f"{place} is {_shown(value)}, not a multiple of {_shown(schema['multipleOf'])}"


def _wrong_size(
    size: int, schema: dict[str, Any], what: str, words: str, place: str
) -> Iterator[str]:
    if size < schema.get(f"min{what}", 0):
        yield f"{place} has {size} {words}, fewer than {schema[f'min{what}']}"
    if size > schema.get(f"max{what}", size):
        yield f"{place} has {size} {words}, more than {schema[f'max{what}']}"


def _is_whole(value: object) -> bool:
    return value.is_integer() if isinstance(value, float) else True


def _is_multiple(value: Any, of: Any) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    try:
        return Decimal(repr(value)) % Decimal(repr(of)) == 0
    except (DecimalException, ValueError):
        return False


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = SHOWN_CHARACTERS_MAX


def _shown(value: object) -> str:
    """Bounded in what it costs too: a value may be large, and shown for each alternative."""
    text = _repr.repr(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."
