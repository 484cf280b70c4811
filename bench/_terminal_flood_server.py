"""A model server that answers everybody with the same long text, 2,000 parts a second.

Prints its port. The first half is paragraphs as people write them, the rest one that does not end.
"""

import asyncio
import json

PARTS_PER_S = 2000
WORDS = 12_000
BATCH = 10
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


def word(number: int) -> str:
    ends = number % 60 == 59 and number < WORDS // 2
    return f"word{number}" + ("\n\n" if ends else " ")


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        due = loop.time()
        for first in range(0, WORDS, BATCH):
            numbers = range(first, min(first + BATCH, WORDS))
            writer.write(b"".join(event({"content": word(number)}) for number in numbers))
            await writer.drain()
            due += BATCH / PARTS_PER_S
            await asyncio.sleep(max(0.0, due - loop.time()))
        writer.write(event({}, "stop") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
