"""Reads a function's signature: what the model learns about it, and how its arguments are parsed.

Every parameter is an argument of the tool, except those annotated `Token` or `ToolContext`: the
engine fills these in when the call runs, and the model does not see them. The JSON Schema and the
validation come from one generated `msgspec.Struct`, so they cannot differ.

The descriptions come from the docstring. Three layouts are understood: `Args:` with indented names,
`Parameters` underlined, and `:param name: text`. The text before the parameters describes the tool.
Everything after them (`Returns:` and so on) is for people who read the code and is ignored.
"""

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from bargein.cancel import Token
from bargein.tools.context import ToolContext

Filled = Literal["token", "context"]

_PLAIN = (str, int, float, bool, NoneType)


@dataclass(frozen=True, slots=True)
class Signature:
    """`arguments` has a field for each parameter that the model gives; `filled` names the others.
    `schema` is the JSON Schema of `arguments`, an object. `deps` is the class in
    `ToolContext[...]`, if there is one."""

    description: str
    arguments: type[msgspec.Struct]
    filled: dict[str, Filled]
    schema: dict[str, Any]
    deps: type | None = None


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """Raises TypeError if the function cannot be a tool, in words that say what to change."""
    documented = read_docstring(function.__doc__)
    hints = _hints(function, name)
    filled: dict[str, Filled] = {}
    fields: list[tuple[str, Any, Any]] = []
    deps: type | None = None
    for parameter in inspect.signature(function).parameters.values():
        _check(parameter, name)
        hint = hints.get(parameter.name)
        bare = _bare(hint)
        kind = _filled_in(bare)
        if kind is not None:
            filled[parameter.name] = kind
            deps = _deps_of(bare) or deps
        elif hint is None:
            raise TypeError(
                f"tool {name}: parameter {parameter.name} needs a type, so that the model can be "
                f"told what it takes; for example `{parameter.name}: str`"
            )
        else:
            fields.append(_field(parameter, hint, documented.parameters.get(parameter.name, "")))
    arguments = msgspec.defstruct(
        name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    return Signature(documented.description, arguments, filled, _schema(arguments, name), deps)


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name}: a type in its signature is not known ({error}); define or import it at "
            "the top level of the module"
        ) from error


def _check(parameter: inspect.Parameter, name: str) -> None:
    kind = parameter.kind
    if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise TypeError(
            f"tool {name}: {parameter} cannot be described to a model; name each parameter"
        )
    if kind is inspect.Parameter.POSITIONAL_ONLY:
        raise TypeError(
            f"tool {name}: parameter {parameter.name} is positional-only, but arguments are given "
            "by name; remove the `/`"
        )


def _bare(hint: Any) -> Any:
    """Returns the type without `Annotated`, and without `None` if there is only one other."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        kinds = {each for each in get_args(hint) if each is not NoneType}
        hint = kinds.pop() if len(kinds) == 1 else hint
    return hint


def _filled_in(bare: Any) -> Filled | None:
    if bare is Token:
        return "token"
    return "context" if bare is ToolContext or get_origin(bare) is ToolContext else None


def _deps_of(bare: Any) -> type | None:
    """Returns the class in `ToolContext[...]`; None for types that `isinstance` cannot check."""
    wanted = get_args(bare)[0] if get_origin(bare) is ToolContext else None
    is_class = isinstance(wanted, type) and get_origin(wanted) is None
    return wanted if is_class and not getattr(wanted, "_is_protocol", False) else None


def _field(parameter: inspect.Parameter, hint: Any, description: str) -> tuple[str, Any, Any]:
    if description:
        hint = Annotated[hint, msgspec.Meta(description=description)]
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, hint, msgspec.field()
    default = parameter.default
    if isinstance(default, _PLAIN):
        return parameter.name, hint, msgspec.field(default=default)
    return parameter.name, hint, msgspec.field(default_factory=lambda: copy.copy(default))


def _schema(arguments: type[msgspec.Struct], name: str) -> dict[str, Any]:
    try:
        schema = msgspec.json.schema(arguments)
        # A type that JSON cannot carry is found here and not at the first call.
        msgspec.json.Decoder(arguments)
    except TypeError as error:
        raise TypeError(
            f"tool {name}: a type in its signature has no JSON form ({error}); use plain types, "
            "msgspec.Struct or dataclasses"
        ) from error
    others: dict[str, Any] = schema.pop("$defs")
    top: dict[str, Any] = others.pop(schema["$ref"].rpartition("/")[2])
    top.pop("title", None)
    if others:
        top["$defs"] = others
    return top


_GOOGLE_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?):\s*$"
)
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_UNDERLINE = re.compile(r"^-{3,}\s*$")
_FIELD = re.compile(r"^:(\w+)\s*([^:]*):\s*(.*)$")
_ABOUT_PARAMETERS = {"Args", "Arguments", "Parameters", "Params"}


@dataclass(slots=True)
class Documented:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Documented:
    lines = inspect.cleandoc(text or "").splitlines()
    for number, line in enumerate(lines):
        above = lines[:number]
        google = _GOOGLE_SECTION.match(line)
        if google:
            return _with_entries(above, _google_entries(lines[number:]))
        if _UNDERLINE.match(line) and above:
            return _with_entries(above[:-1], _numpy_entries(lines[number - 1 :]))
        if _FIELD.match(line):
            return _with_entries(above, _field_entries(lines[number:]))
    return _with_entries(lines, {})


def _with_entries(above: list[str], entries: dict[str, list[str]]) -> Documented:
    parameters = {name: " ".join(" ".join(words).split()) for name, words in entries.items()}
    return Documented("\n".join(above).strip(), parameters)


def _google_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    inside = False
    indent = 0
    words: list[str] = []
    for line in lines:
        section = _GOOGLE_SECTION.match(line)
        if section:
            inside = section[1] in _ABOUT_PARAMETERS
            indent = 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _GOOGLE_ENTRY.match(line.strip())
        if depth <= indent and entry:
            words = entries.setdefault(entry[1], [])
            words.append(entry[2])
        else:
            words.append(line.strip())
    return entries


def _numpy_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    inside = False
    words: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if _UNDERLINE.match(line):
            continue
        if _UNDERLINE.match(below):
            inside = line.strip() in _ABOUT_PARAMETERS
            continue
        if not inside or not line.strip():
            continue
        entry = _NUMPY_ENTRY.match(line)
        if entry:
            words = []
            entries.update(dict.fromkeys(re.split(r"\s*,\s*", entry[1]), words))
        else:
            words.append(line.strip())
    return entries


def _field_entries(lines: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    for line in lines:
        entry = _FIELD.match(line)
        if entry is None:
            words.append(line.strip())
            continue
        words = []
        if entry[1] in ("param", "parameter", "arg", "argument") and entry[2].strip():
            # `:param int count:` names the type first.
            entries[entry[2].split()[-1]] = words
            words.append(entry[3])
    return entries
