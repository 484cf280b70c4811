"""Shows the change of an edit as coloured lines, and the whole result of a call. Pure."""

import difflib
from collections.abc import Iterator

import msgspec

from bargein.cli.chat.paint import harmless
from bargein.contracts.model import Text
from bargein.contracts.tool import CallStatus
from bargein.view import ShownCall

LINES_MAX = 12
CONTEXT_LINES = 1
DIFFED_CHARACTERS_MAX = 200_000
RESULT_CHARACTERS_MAX = 100_000

StyledLine = tuple[str, str]
"""A style and a line."""


class _Edit(msgspec.Struct):
    old_text: str
    new_text: str


class _Written(msgspec.Struct):
    content: str


def edit_lines(call: ShownCall) -> list[StyledLine]:
    """Returns what a call of `edit_file` or `write_file` changed, as far as its arguments say;
    nothing for other calls and for calls that did not finish."""
    if call.status is not CallStatus.FINISHED or call.unsuccessful:
        return []
    if len(call.arguments) > DIFFED_CHARACTERS_MAX:
        return []
    try:
        if call.name == "edit_file":
            edit = msgspec.json.decode(call.arguments, type=_Edit)
            return list(_diff(edit.old_text, edit.new_text))
        if call.name == "write_file":
            written = msgspec.json.decode(call.arguments, type=_Written)
            return [("good", f"+ {line}") for line in _lines(written.content)]
    except msgspec.MsgspecError:
        return []
    return []


def _diff(old: str, new: str) -> Iterator[StyledLine]:
    found = difflib.unified_diff(_lines(old), _lines(new), lineterm="", n=CONTEXT_LINES)
    styles = {"+": "good", "-": "bad"}
    for number, line in enumerate(found):
        if number > 1 and not line.startswith("@@"):
            yield styles.get(line[:1], "dim"), f"{line[:1]} {line[1:]}"


def _lines(text: str) -> list[str]:
    return harmless(text).expandtabs(4).rstrip("\n").split("\n")


def whole_result(call: ShownCall) -> str:
    """Returns everything that a call gave back, for the user who wants to see it all."""
    result = call.background_result or call.result
    parts = result.content if result is not None else ()
    text = "\n".join(p.text if isinstance(p, Text) else "[an image]" for p in parts)
    text = text or str(call.output)
    if len(text) > RESULT_CHARACTERS_MAX:
        half = RESULT_CHARACTERS_MAX // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[{left_out} characters are left out]\n{text[-half:]}"
    return harmless(text).rstrip("\n")
