"""JSON out and in: strictly about its form, leniently about broken characters."""

from typing import TypeVar

import msgspec

from bargein.models.dialects.faults import FaultKind, StreamFault

T = TypeVar("T")


def encode(body: object) -> bytes:
    """A request's body. Half characters, which terminals and file names can hold, are replaced:
    they cannot be sent, and are no reason to fail a turn."""
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
    """The event as the decoder's type, or a `StreamFault` that shows where it broke.

    A character cut in half between two events by the provider is replaced, not fatal.
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
