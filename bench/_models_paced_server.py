"""Serves streams at 50 parts a second each, to as many clients as come, as cheaply as it can.

One timer serves all: a tenth of the clients every 2 ms, so that parts do not come in one burst.
Prints its port. A client that goes away is dropped.
"""

import asyncio
from typing import cast

PART = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}'
)
EVENT = b"data: " + PART + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
GROUPS = 10
EVERY_S = 0.02

groups: list[set[asyncio.Transport]] = [set() for _ in range(GROUPS)]


class Client(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begun = False

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._transport.write(HEAD)
            min(groups, key=len).add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        for group in groups:
            group.discard(self._transport)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Client, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    due = loop.time()
    turn = 0
    while True:
        for transport in groups[turn % GROUPS]:
            transport.write(CHUNK)
        turn += 1
        due += EVERY_S / GROUPS
        await asyncio.sleep(max(0.0, due - loop.time()))


if __name__ == "__main__":
    asyncio.run(main())
