"""Encodes and decodes JSON: strict about syntax, lenient about broken characters."""

from typing import TypeVar

import msgspec

from bargein.models.dialects.faults import FaultKind, StreamFault

T = TypeVar("T")


def encode(body: object) -> bytes:
    """Returns a request's body. Unpaired surrogates, which terminals and file names may contain,
    cannot be sent; they are replaced rather than failing the turn."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole_characters(body))


def _whole_characters(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def decode(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Returns the event as the decoder's type, or raises a `StreamFault` that quotes it.

    A character that the provider cut in half between two events is replaced.
    """
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        problem = str(error)
    except UnicodeDecodeError as error:
        problem = str(error)
    repaired = data.decode("utf-8", "replace").encode()
    if repaired != data:
        try:
            return decoder.decode(repaired)
        except msgspec.DecodeError as error:
            problem = str(error)
    start = data[:120].decode("utf-8", "replace")
    raise StreamFault(FaultKind.BROKEN, f"an event cannot be read ({problem}): {start}")
