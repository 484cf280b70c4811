"""Python types as the form of an answer: `output_type(City)` has the schema that a model reads and
the decoder that makes a `City` of its answer.

Described are msgspec Structs, dataclasses, TypedDicts, pydantic models, and built-in types such as
`list[int]`. Providers take schemas of objects only, so every other type becomes an object with one
member, `value`, and `decode` takes it out again.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from bargein.contracts.json_schema import (
    STEPS_MAX,
    SchemaUnfit,
    StepsExceeded,
    is_object_schema,
    root_inlined,
)
from bargein.contracts.output import TEXT, Output, make_output, unfit_within

if TYPE_CHECKING:
    # Only type checkers need the default: it is the type of answers that are plain words.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=str)
    T_co = TypeVar("T_co", covariant=True, default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)

COMPLAINTS_MAX = 5
"""How many of a validator's complaints the model is told at once."""

RIGHT = (
    "give a msgspec Struct, a dataclass, a TypedDict, a pydantic model, or a built-in type such as "
    "list[int]"
)


class OutputType(Generic[T_co]):
    """A type with its schema and its decoder. It holds code, so it is never stored: a message
    carries its `output`."""

    def __init__(self, name: str, output: Output, decode: Callable[[str], T_co]) -> None:
        self.name = name
        self.output = output
        self._decode = decode

    def __repr__(self) -> str:
        return f"<OutputType {self.name}>"

    def decode(self, text: str) -> T_co:
        """Makes the value of an answer. Raises `ValueError` if the answer is not one."""
        try:
            return self._decode(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def unfit(self, text: str, steps_max: int = STEPS_MAX) -> str | None:
        """Says why a text is no such value, as the end of a sentence; None if it is one. Raises
        `StepsExceeded` if the schema alone takes more than `steps_max` steps to check, unless that
        is all that may ever be taken."""
        try:
            wrong = unfit_within(steps_max, self.output, text)
        except StepsExceeded:
            if steps_max < STEPS_MAX:
                raise
            return f"it takes more than {STEPS_MAX} steps to check it against the schema"
        if wrong is not None:
            return wrong
        try:
            self.decode(text)
        except ValueError as error:
            return complaint_of(error)
        return None


class _Wrapped(msgspec.Struct):
    value: msgspec.Raw


def output_type(of: Any) -> OutputType[Any]:
    """Describes a type, or takes an `Output` as it is. Raises `TypeError` if the type cannot be
    described. `str` stands for words as they come."""
    if isinstance(of, OutputType):
        return of
    if isinstance(of, Output):
        return plain_output_type(of)
    if of is str:
        return plain_output_type(TEXT)
    name = getattr(of, "__name__", None) or str(of)
    try:
        schema, decode = _described(of)
        is_wrapped = not is_object_schema(schema)
        output = make_output(_wrapped(schema) if is_wrapped else schema, name=name)
    except (TypeError, ValueError, SchemaUnfit) as error:
        shown = name if isinstance(of, type) else repr(of)
        why = " ".join(str(error).split())
        wrong = f"output is {shown}, which no JSON Schema describes ({why}); {RIGHT}"
        raise TypeError(wrong) from error
    return OutputType(name, output, partial(_decode_value, decode) if is_wrapped else decode)


def plain_output_type(output: Output) -> OutputType[Any]:
    """Decodes an answer into plain JSON values, or leaves it as it is if any words will do."""
    return OutputType(output.name, output, str if output == TEXT else msgspec.json.decode)


def complaint_of(error: ValueError) -> str:
    """Says what a decoder found wrong. Pydantic's own words would bring a link with each line."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return " ".join(str(error).split())
    found = [
        f"{'.'.join(['$', *map(str, each['loc'])])}: {each['msg']}"
        for each in listed()[:COMPLAINTS_MAX]
    ]
    return "; ".join(found)


def _described(of: Any) -> tuple[Any, Callable[[str], Any]]:
    """Returns the schema of a type and its decoder."""
    # Found by its methods: pydantic need not be there.
    schema, decode = (
        getattr(of, name, None) for name in ("model_json_schema", "model_validate_json")
    )
    if isinstance(of, type) and callable(schema) and callable(decode):
        return root_inlined(schema()), decode
    return root_inlined(msgspec.json.schema(of)), msgspec.json.Decoder(of).decode


def _wrapped(schema: Any) -> dict[str, Any]:
    # References lead to definitions at the root, so these move up.
    defs = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    value = {name: each for name, each in schema.items() if name not in defs}
    return {
        "type": "object",
        "properties": {"value": value},
        "required": ["value"],
        "additionalProperties": False,
        **defs,
    }


def _decode_value(decode: Callable[[str], Any], text: str) -> Any:
    wrapped = msgspec.json.decode(text, type=_Wrapped)
    return decode(bytes(wrapped.value).decode())
