"""Decodes a large JSON body without holding the event loop.

msgspec decodes at gigabytes a second, but in one step. The memory for a text of 4 MiB alone takes
milliseconds to come by, a page fault at a time, and a stop would wait for it. Almost all of a large
body is one long text or file. So long strings are cut out and decoded a slice at a time; the loop
runs in between, and the memory grows with the slices. What is left is small and decoded as usual.

`decode_large` returns exactly what the decoder would. It gives up, and the caller decodes the body
in one step, if the body is not valid, if it has no long string, or if it is large without them.
"""

import re
import secrets
from collections.abc import Mapping
from typing import TypeVar

import anyio.lowlevel
import msgspec

T = TypeVar("T")

SLICE_BYTES = 64 * 1024
REST_BYTES_MAX = 4 * 1024
"""How much of a body may remain without its long strings. It bounds the strings that are looked
at."""

_QUOTE = re.compile(rb'"')
# The inside of a string, as far as it goes, to the end of an escape or of a surrogate pair. It is
# slow: 20 ns a byte. The repeated group is not possessive: Python before 3.11.4 then matches half
# of a surrogate pair.
_INSIDE = re.compile(
    rb'[^"\\]*+(?:\\(?:[^u]|u[dD][89abAB]..\\u....|u(?![dD][89abAB])....)[^"\\]*+)*', re.DOTALL
)
# Longer than half of an escaped surrogate pair, so that it ends outside of an escape.
_WITHOUT_ESCAPES = re.compile(rb"[^\\]{6}")
_TAIL_BYTES = 256
# The last character of a slice in UTF-8, if it has several bytes: perhaps not all of them.
_LAST_CHARACTER = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")

Body = bytes | bytearray | memoryview


async def decode_large(decoder: msgspec.json.Decoder[T], body: Body) -> T | None:
    """Return the decoded body, or None if the caller should decode it in one step."""
    mark = secrets.token_hex(8)
    rest = bytearray()
    long: dict[str, str] = {}
    done = 0
    try:
        while quote := _QUOTE.search(body, done, done + REST_BYTES_MAX):
            begin = quote.start()
            rest += body[done:begin]
            some = bytes(body[begin + 1 : begin + 1 + REST_BYTES_MAX])
            done = begin + 1 + _surely_inside(some)
            if body[done : done + 1] == b'"':
                rest += body[begin : done + 1]
            else:
                name = f"{mark}{len(long)}"
                rest += f'"{name}"'.encode()
                long[name], done = await _long_string(body, begin + 1)
            done += 1
            if len(rest) > REST_BYTES_MAX:
                return None
        if not long or len(body) - done + len(rest) > REST_BYTES_MAX:
            return None
        rest += body[done:]
        plain = _put_back(msgspec.json.decode(rest), long)
        return msgspec.convert(plain, decoder.type)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def _long_string(body: Body, begin: int) -> tuple[str, int]:
    """Return the text of the string that begins here, and where it ends. Raises `MsgspecError` or
    ValueError if it is not valid."""
    text = ""
    while True:
        some = bytes(body[begin : begin + SLICE_BYTES])
        try:
            piece, end = _slice_of(some, _end_inside(some))
        except msgspec.MsgspecError:
            piece, end = _slice_of(some, _surely_inside(some))
        text += piece
        begin += end
        if some[end : end + 1] == b'"':
            return text, begin
        if not end:
            raise ValueError("the string has no end")
        await anyio.lowlevel.checkpoint()


def _slice_of(some: bytes, end: int) -> tuple[str, int]:
    """Return the text of the bytes up to `end`, or a little less, and where it ends."""
    if some[end : end + 1] != b'"' and (last := _LAST_CHARACTER.search(some, max(0, end - 4), end)):
        end = last.start()
    return msgspec.json.decode(b'"%b"' % some[:end], type=str), end


def _end_inside(some: bytes) -> int:
    """Return where the inside of the string ends in these bytes. It is quick, and wrong if the
    string ends in a backslash: then what is before the end is not valid."""
    if b"\\" not in some:
        quote = some.find(b'"')
        return quote if quote >= 0 else len(some)
    plain = None
    if some.count(b'"') == some.count(b'\\"'):
        plain = _WITHOUT_ESCAPES.search(some, max(0, len(some) - _TAIL_BYTES))
    return _surely_inside(some, plain.end() if plain is not None else 0)


def _surely_inside(some: bytes, begin: int = 0) -> int:
    inside = _INSIDE.match(some, begin)
    return inside.end() if inside is not None else begin


def _put_back(value: object, long: Mapping[str, str]) -> object:
    """Replace the names of long strings with their text."""
    if isinstance(value, dict):
        return {long.get(key, key): _put_back(each, long) for key, each in value.items()}
    if isinstance(value, list):
        return [_put_back(each, long) for each in value]
    return long.get(value, value) if isinstance(value, str) else value
