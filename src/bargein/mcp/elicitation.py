"""Asks the user what an MCP server wants to know.

A form becomes one question for each field, with the choices that its schema allows. An answer that
does not fit is asked for again, a few times. The user can decline every question. If the server
wants a page to be opened, the question shows the whole address; Bargein opens nothing.

A stranger wrote the texts, so each question names the server and shows hidden characters.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from bargein.calls.text import one_line
from bargein.calls.words import NOBODY_ANSWERS
from bargein.contracts.tool import Question
from bargein.contracts.visible import visible
from bargein.mcp.wire import parse_number

Ask = Callable[[Question], Awaitable[str]]

DECLINE: Final = "decline"
FIELDS_MAX: Final = 20
CHOICES_MAX: Final = 50
TRIES_MAX: Final = 3
TEXT_CHARS_MAX: Final = 4000

_CANCEL: Final[Mapping[str, Any]] = {"action": "cancel"}
_DECLINED: Final[Mapping[str, Any]] = {"action": "decline"}


class Declined(Exception):
    """The user declined, or nobody answers; `result` is what the server gets."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(str(result))
        self.result = result


async def elicit(server: str, params: Mapping[str, Any], ask: Ask) -> Mapping[str, Any]:
    """The answer to `elicitation/create`."""
    message = visible(str(params.get("message", "")))[:TEXT_CHARS_MAX]
    try:
        if params.get("mode") == "url":
            return await _ask_for_visit(server, message, str(params.get("url", "")), ask)
        return await _ask_for_form(server, message, params.get("requestedSchema"), ask)
    except Declined as unanswered:
        return unanswered.result


async def _ask_for_visit(server: str, message: str, url: str, ask: Ask) -> Mapping[str, Any]:
    question = Question(
        f"The MCP server {server} asks you to open a page: {message}",
        choices=("done", DECLINE),
        detail=visible(url)[:TEXT_CHARS_MAX],
    )
    if await _answer(question, ask) != "done":
        return _DECLINED
    return {"action": "accept"}


async def _ask_for_form(server: str, message: str, schema: object, ask: Ask) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    fields = properties if isinstance(properties, dict) else {}
    heading = f"The MCP server {server} asks: {message}"
    if not fields:
        answer = await _answer(Question(heading, choices=("accept", DECLINE)), ask)
        return {"action": "accept", "content": {}} if answer == "accept" else _DECLINED
    if len(fields) > FIELDS_MAX:
        return _CANCEL
    required = schema.get("required") if isinstance(schema, dict) else None
    needed = required if isinstance(required, list) else []
    content: dict[str, Any] = {}
    for name, field in fields.items():
        if not isinstance(field, dict):
            return _CANCEL
        value = await _ask_for_field(heading, name, field, name in needed, ask)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


async def _ask_for_field(
    heading: str, name: str, field: Mapping[str, Any], needed: bool, ask: Ask
) -> Any:
    label = one_line(str(field.get("title") or name))
    choices = _choices(field)
    default = field.get("default")
    detail = _detail(field, needed, bool(choices))
    problem = ""
    for _ in range(TRIES_MAX):
        shown = (*choices, DECLINE)
        question = Question(
            f"{heading}\n{label}{problem}",
            choices=shown if choices else (),
            detail=detail,
        )
        answer = await _answer(question, ask)
        if not answer.strip():
            if default is not None:
                return default
            if not needed:
                return None
        try:
            return _read(field, choices, answer)
        except ValueError as error:
            problem = f" ({error})"
    raise Declined(_CANCEL)


async def _answer(question: Question, ask: Ask) -> str:
    answer = await ask(question)
    if answer == NOBODY_ANSWERS:
        raise Declined(_CANCEL)
    if answer.strip().lower() == DECLINE:
        raise Declined(_DECLINED)
    return answer


def _detail(field: Mapping[str, Any], needed: bool, has_choices: bool) -> str:
    lines = [visible(str(field.get("description") or ""))[:TEXT_CHARS_MAX]]
    if field.get("default") is not None:
        told = visible(msgspec.json.encode(field["default"], enc_hook=repr).decode())[:200]
        lines.append(f"An empty answer means {told}.")
    elif not needed:
        lines.append("It may be left empty.")
    if field.get("type") == "array":
        lines.append("Several can be given, with commas between them.")
    if not has_choices:
        lines.append(f"Answer {DECLINE!r} to decline.")
    return "\n".join(filter(None, lines))


def _choices(field: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown, and the value that it stands for."""
    if field.get("type") == "boolean":
        return {"yes": True, "no": False}
    listed = field.get("items") if field.get("type") == "array" else field
    if not isinstance(listed, dict):
        return {}
    names = listed.get("enumNames")
    if isinstance(listed.get("enum"), list):
        values = listed["enum"][:CHOICES_MAX]
        titles = names if isinstance(names, list) and len(names) == len(values) else values
        return {one_line(str(title)): value for title, value in zip(titles, values, strict=True)}
    options = listed.get("oneOf") or listed.get("anyOf")
    if isinstance(options, list):
        return {
            one_line(str(each.get("title", each.get("const")))): each.get("const")
            for each in options[:CHOICES_MAX]
            if isinstance(each, dict)
        }
    return {}


def _read(field: Mapping[str, Any], choices: Mapping[str, Any], answer: str) -> Any:
    """The answer as a value of the field. Raises ValueError with what would fit."""
    text = answer.strip()
    if field.get("type") == "array":
        return [_chosen(choices, each.strip()) for each in text.split(",") if each.strip()]
    if choices:
        return _chosen(choices, text)
    if field.get("type") in ("number", "integer"):
        return _number(field, text)
    if len(text) < _bound(field, "minLength", 0):
        raise ValueError(f"at least {field['minLength']} characters")
    if len(text) > _bound(field, "maxLength", len(text)):
        raise ValueError(f"at most {field['maxLength']} characters")
    return text


def _chosen(choices: Mapping[str, Any], text: str) -> Any:
    if text in choices:
        return choices[text]
    for shown, value in choices.items():
        if text.lower() == shown.lower() or text == str(value):
            return value
    raise ValueError(f"one of {', '.join(choices)}")


def _number(field: Mapping[str, Any], text: str) -> float | int:
    whole = field.get("type") == "integer"
    try:
        value = int(text) if whole or text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise ValueError("a whole number" if whole else "a number") from None
    if value < _bound(field, "minimum", value):
        raise ValueError(f"at least {field['minimum']}")
    if value > _bound(field, "maximum", value):
        raise ValueError(f"at most {field['maximum']}")
    return value


def _bound(field: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = parse_number(field.get(name))
    return value if value is not None else otherwise
