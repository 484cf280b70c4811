"""The form that the answer to a message must have: JSON that fits a schema. Pure.

Everything that needs a typed answer uses this. A message carries an `Output`; the agent asks its
model for it, natively if possible, checks the final answer with `unfit`, and asks again if it does
not fit.
"""

import msgspec

from bargein.contracts.json_schema import (
    STEPS_MAX,
    SchemaUnfit,
    StepsExceeded,
    check_schema,
    schema_violation,
)
from bargein.contracts.value import Value

SCHEMA_BYTES_MAX = 64 * 1024

ANY_OBJECT = '{"type":"object"}'
"""The schema of any JSON object, which is all that OpenAI's `json_object` promises."""


class Output(Value, frozen=True):
    """`schema` is the JSON text of a JSON Schema; `name` is for the model and for errors."""

    schema: str = ANY_OBJECT
    name: str = "answer"


TEXT = Output(schema="", name="text")
"""Free text: for a message to an agent that otherwise answers in JSON."""


def make_output(schema: object, *, name: str = "answer") -> Output:
    """Raises `SchemaUnfit` if the schema is too large or has keywords that are not checked."""
    text = msgspec.json.encode(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise SchemaUnfit(f"the schema has {len(text)} bytes; at most {SCHEMA_BYTES_MAX} are taken")
    check_schema(schema)
    return Output(text.decode(), name)


def unfit(output: Output, text: str) -> str | None:
    """Returns why a text is not the answer asked for, as the end of a sentence, or None if it is.
    May take half a second."""
    try:
        return unfit_within(STEPS_MAX, output, text)
    except StepsExceeded:
        return f"it takes more than {STEPS_MAX} steps to check it against the schema"


def unfit_within(steps_max: int, output: Output, text: str) -> str | None:
    """The same as `unfit`. Raises `StepsExceeded` if it takes more than `steps_max` steps."""
    if output == TEXT:
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is not JSON alone: {error}"
    return schema_violation(value, msgspec.json.decode(output.schema), steps_max)
