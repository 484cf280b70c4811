"""Runs in an environment of its own: the official SDK's stream, fed from memory, on command.

Each line on standard input is the size of the pieces in which the bytes arrive, 0 for one event a
piece; the answer is how many seconds the whole stream took and how many chunks came out.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Neither is there where this file is checked; the SDK has changed its HTTP client's name.
openai: Any = import_module("openai")
httpx: Any = import_module("httpx2" if find_spec("httpx2") else "httpx")


def cut(data: bytes, size: int) -> list[bytes]:
    if size:
        return [data[start : start + size] for start in range(0, len(data), size)]
    return [event + b"\n\n" for event in data.split(b"\n\n") if event]


async def run(pieces: list[bytes]) -> tuple[float, int]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def answer(_: object) -> object:
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=body())

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="none", http_client=http)
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        count = 0
        start = time.perf_counter()
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                count += 1
        return time.perf_counter() - start, count


def main() -> None:
    data = Path(sys.argv[1]).read_bytes()
    print(openai.__version__, flush=True)
    for line in sys.stdin:
        seconds, count = asyncio.run(run(cut(data, int(line))))
        print(seconds, count, flush=True)


if __name__ == "__main__":
    main()
