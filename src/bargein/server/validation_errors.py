"""Describes where a request body is invalid and what would be valid.

The decoder's error names the place and the value. What is allowed there is looked up in the type
that the body should have.
"""

import difflib
import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import inspect

VALUE_CHARACTERS_MAX = 60
WORDS_CHARACTERS_MAX = 300

_WRONG_VALUE = re.compile(
    r"Invalid (?:enum )?value '(?P<value>.*)' - at `\$\.?(?P<place>.*)`", re.DOTALL
)
_NO_FIELD = re.compile(
    r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL
)
_STEP = re.compile(r"[^.\[]+|\[[^\]]*\]")


def describe_validation_error(error: msgspec.ValidationError, shape: object) -> str:
    """Returns the error in words for the client; bounded, because it quotes the body."""
    words = str(error)
    if found := _WRONG_VALUE.fullmatch(words):
        allowed = list(dict.fromkeys(_values(shape, found["place"])))
        if allowed:
            value = _short(found["value"], VALUE_CHARACTERS_MAX)
            return f"{found['place']} is '{value}': say {_listed(allowed, 'or')}"
    if found := _NO_FIELD.fullmatch(words):
        return _no_field(found["name"], found["place"] or "", shape)
    return _short(words, WORDS_CHARACTERS_MAX)


def _no_field(name: str, place: str, shape: object) -> str:
    known = list(dict.fromkeys(_fields(shape, place)))
    where = f" in {place}" if place else ""
    return f"there is no field '{_short(name, VALUE_CHARACTERS_MAX)}'{where}; {_hint(name, known)}"


def no_parameter(name: str, known: Sequence[str]) -> str:
    """Returns the error for an unknown parameter in the query."""
    hint = _hint(name, known, "?{}=")
    return f"there is no ?{_short(name, VALUE_CHARACTERS_MAX)}= here; {hint}"


def _hint(name: str, known: Sequence[str], form: str = "{}") -> str:
    near = difflib.get_close_matches(name[:VALUE_CHARACTERS_MAX], known, n=1)
    if near:
        return f"did you mean {form.format(near[0])}?"
    if not known:
        return "it takes none"
    return f"there {'are' if len(known) > 1 else 'is'} {_listed(known, 'and')}"


def _values(shape: object, place: str) -> Iterator[str]:
    """Yields the words allowed at this place, if only certain words are."""
    steps = _STEP.findall(place)
    for each in _types_at(shape, steps[:-1]):
        if isinstance(each, inspect.StructType) and steps[-1:] == [each.tag_field]:
            yield str(each.tag)
    for each in _types_at(shape, steps):
        if isinstance(each, inspect.EnumType):
            yield from (str(value.value) for value in each.cls)
        elif isinstance(each, inspect.LiteralType):
            yield from map(str, each.values)


def _fields(shape: object, place: str) -> Iterator[str]:
    for each in _types_at(shape, _STEP.findall(place)):
        if isinstance(each, inspect.StructType):
            yield from (field.encode_name for field in each.fields)


def _types_at(shape: object, steps: Sequence[str]) -> list[inspect.Type]:
    found = list(_alternatives(inspect.type_info(shape)))
    for step in steps:
        found = [below for each in found for below in _below(each, step)]
    return found


def _alternatives(each: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(each, inspect.UnionType):
        yield from each.types
    else:
        yield each


def _below(each: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(each, inspect.StructType):
        for field in each.fields:
            if field.encode_name == step:
                yield from _alternatives(field.type)
    elif isinstance(each, inspect.DictType):
        yield from _alternatives(each.value_type)
    elif isinstance(each, inspect.ListType | inspect.VarTupleType):
        yield from _alternatives(each.item_type)


def _listed(words: Sequence[str], last: str) -> str:
    *before, end = words
    return f"{', '.join(before)} {last} {end}" if before else end


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
