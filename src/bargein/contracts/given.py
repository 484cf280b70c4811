"""Checks the arguments of the public Python API.

A wrong type must be refused at the call: once in a message it would be stored, and the session
could not be read again. Each check raises `TypeError` that names the argument, its value and what
would be right. Text with half a character cannot be stored and raises `ValueError`.
"""

from collections.abc import Sequence
from os import PathLike
from reprlib import repr as shortened

import msgspec

from bargein.contracts.message import HEARD_CHARACTERS_MAX, Attachment, HeardSoFar
from bargein.contracts.model import (
    AssistantMessage,
    Image,
    ModelMessage,
    Text,
    ToolMessage,
    UserMessage,
)

_as_messages = msgspec.json.Decoder(tuple[ModelMessage, ...])


def wrong(argument: str, value: object, right: str) -> TypeError:
    return TypeError(f"{argument} is {shortened(value)}, of type {type(value).__name__}; {right}")


def check_texts(**given: object) -> None:
    for argument, value in given.items():
        if not isinstance(value, str):
            raise wrong(argument, value, "give text")
        _check_characters(argument, value)


def _check_characters(argument: str, text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise ValueError(
            f"{argument} has half a character, {character!r}, at {error.start}; text that was read "
            "from bytes needs decode(errors='replace')"
        ) from None


def check_texts_or_none(**given: object) -> None:
    for argument, value in given.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise wrong(argument, value, "give text or None")
        _check_characters(argument, value)


def check_callable_or_none(**given: object) -> None:
    for argument, value in given.items():
        if value is not None and not callable(value):
            raise wrong(argument, value, "give a function or None")


def check_path_or_none(**given: object) -> None:
    for argument, value in given.items():
        if value is not None and not isinstance(value, str | PathLike):
            raise wrong(argument, value, "give a path or None")


def check_number(argument: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(argument, value, "give a whole number")


def check_heard_or_none(heard: object) -> None:
    if heard is None:
        return
    if not isinstance(heard, HeardSoFar):
        raise wrong("heard", heard, "give HeardSoFar(turn, characters) or None")
    check_texts(**{"heard.turn": heard.turn})
    check_number("heard.characters", heard.characters)
    if not 0 <= heard.characters <= HEARD_CHARACTERS_MAX:
        raise ValueError(
            f"heard.characters is {shortened(heard.characters)}; give 0 to {HEARD_CHARACTERS_MAX}"
        )


def check_parts(argument: str, parts: object) -> Sequence[Text | Image]:
    right = "give text, or a list of Text and Image"
    if not isinstance(parts, list | tuple):
        raise wrong(argument, parts, right)
    for place, part in enumerate(parts):
        at = f"{argument}[{place}]"
        if isinstance(part, Text):
            check_texts(**{f"{at}.text": part.text})
        elif isinstance(part, Image):
            _check_file(at, part)
        else:
            raise wrong(at, part, right)
    return parts


def check_messages(argument: str, given: object) -> tuple[ModelMessage, ...]:
    right = "give a list of UserMessage, AssistantMessage and ToolMessage"
    if not isinstance(given, list | tuple):
        raise wrong(argument, given, right)
    for place, each in enumerate(given):
        if not isinstance(each, UserMessage | AssistantMessage | ToolMessage):
            raise wrong(f"{argument}[{place}]", each, right)
    try:
        # Proves that the messages can be read back after they were stored.
        _as_messages.decode(msgspec.json.encode(given))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise TypeError(f"{argument} cannot be stored: {error}") from None
    return tuple(given)


def check_attachments(argument: str, given: object) -> tuple[Attachment, ...]:
    right = "give a list of Attachment"
    if not isinstance(given, list | tuple):
        raise wrong(argument, given, right)
    for place, each in enumerate(given):
        at = f"{argument}[{place}]"
        if not isinstance(each, Attachment):
            raise wrong(at, each, right)
        check_texts(**{f"{at}.name": each.name})
        _check_file(at, each)
    return tuple(given)


def _check_file(at: str, file: Image | Attachment) -> None:
    check_texts(**{f"{at}.media_type": file.media_type})
    if not isinstance(file.data, bytes):
        raise wrong(f"{at}.data", file.data, "give bytes")
