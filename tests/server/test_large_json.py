"""A large JSON body is decoded in slices, to exactly what the decoder makes of it."""

from __future__ import annotations

import asyncio
import json
import random

import msgspec
import pytest

from bargein.server.large_json import REST_BYTES_MAX, SLICE_BYTES, decode_large
from bargein.server.shapes import NewMessage

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SIZE = 3 * SLICE_BYTES


class Inner(msgspec.Struct):
    name: str = ""
    data: bytes = b""


class Outer(msgspec.Struct):
    text: str = ""
    count: int = 0
    parts: tuple[Inner, ...] = ()
    more: dict[str, str] = {}


DECODER = msgspec.json.Decoder(Outer)

TEXTS = {
    "ascii": "w1 w2 ",
    "two bytes": "é",
    "four bytes": "a😀",
    "quotes": 'say "no" ',
    "backslashes": "\\",
    "backslash and u": "\\u12",
    "lines": "\n\t",
    "zeros": "\0",
}


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_any_text_comes_out_as_it_was(text: str, ascii_only: bool) -> None:
    for shift in range(14):
        # With every shift the slices are cut at other places of the text.
        wanted = Outer("x" * shift + text * (SIZE // len(text)), 3, more={"a": "b"})
        whole = {"count": 3, "text": wanted.text, "more": {"a": "b"}}
        body = json.dumps(whole, ensure_ascii=ascii_only).encode()
        assert await decode_large(DECODER, body) == wanted


async def test_any_kind_of_buffer() -> None:
    body = json.dumps({"text": "é" * SIZE}).encode()
    for given in (body, bytearray(body), memoryview(body)):
        assert await decode_large(DECODER, given) == Outer("é" * SIZE)


async def test_random_texts_come_out_as_they_were() -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    for _ in range(10):
        kinds = ["a", '"', "\\", "u", "d8", "é", "😀", "\n", "\u2028", "\x1f"]
        text = "".join(dice.choices(kinds, k=SLICE_BYTES + dice.randrange(100)))
        body = json.dumps({"text": text}, ensure_ascii=dice.random() < 0.5).encode()
        assert await decode_large(DECODER, body) == Outer(text=text), f"seed {seed}"


async def test_several_long_strings_and_files() -> None:
    whole = Outer("a" * SIZE, 1, (Inner("é" * SIZE, b"\x00\xff" * SIZE), Inner("b", b"c")))
    assert await decode_large(DECODER, msgspec.json.encode(whole)) == whole


async def test_a_message_of_the_api() -> None:
    body = msgspec.json.encode({"text": "word " * SIZE, "mode": "queue"})
    decoder = msgspec.json.Decoder(NewMessage)
    assert await decode_large(decoder, body) == decoder.decode(body)


async def test_the_loop_runs_between_slices() -> None:
    passes = 0
    over = False

    async def count() -> None:
        nonlocal passes
        while not over:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await decode_large(DECODER, json.dumps({"text": "x" * 4 * SIZE}).encode()) is not None
    over = True
    await counting
    assert passes >= 4


INVALID = {
    "no end": b'{"text": "' + b"x" * SIZE,
    "a raw line end": b'{"text": "' + b"x" * SIZE + b'\n"}',
    "half a pair": b'{"text": "' + b"x" * SIZE + b'\\ud83d"}',
    "half a pair in every slice": b'{"text": "' + b"\\ud83dx" * SIZE + b'"}',
    "an unknown escape": b'{"text": "' + b"x" * SIZE + b'\\q"}',
    "half a character": b'{"text": "' + b"x" * SIZE + b'\xc3"}',
    "more behind it": b'{"text": "' + b"x" * SIZE + b'"} {}',
    "another type": b'{"count": "' + b"x" * SIZE + b'"}',
    "a long string where none may be": b'{"text": "a" "' + b"x" * SIZE + b'"}',
    "no long string": b'{"text": "a"}',
    "many short ones": json.dumps({"more": {str(n): "y" for n in range(REST_BYTES_MAX)}}).encode(),
    "spaces": b'{"text": "a",' + b" " * SIZE + b'"count": 1}',
    "long strings after much else": b"[" + b"1," * SIZE + b'"' + b"x" * SIZE + b'"]',
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
async def test_it_gives_up_on_anything_else(body: bytes) -> None:
    """The caller then decodes it in one step, with its errors."""
    assert await decode_large(DECODER, body) is None


async def test_text_that_looks_like_a_name_of_ours_stays() -> None:
    body = json.dumps({"text": "x" * SIZE, "more": {"0": "0", "a0": "b0"}}).encode()
    assert await decode_large(DECODER, body) == DECODER.decode(body)
