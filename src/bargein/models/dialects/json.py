"""Decoding one event, strictly about JSON and leniently about broken characters."""

from typing import TypeVar

import msgspec

from bargein.models.dialects.faults import FaultKind, StreamFault

T = TypeVar("T")


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
