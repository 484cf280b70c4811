"""A model server that streams words to a request for as long as the client stays, and prints the
moment at which the client went away.

Prints its port first. The user's message of a request must contain `hold NUMBER`: the first request
with a new number is streamed, and `NUMBER NANOSECONDS` of the monotonic clock, which all processes
share, is printed when its connection ends. Any other request, such as one for a title, is answered
at once.
"""

import asyncio
import re
import time
from typing import cast

from bench._terminal_flood_server import HEAD, chunk, event

EVERY_S = 0.02
HOLD = re.compile(rb"hold (\d+)")

seen: set[bytes] = set()


class Client(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._request = b""
        self._held: bytes | None = None
        self._beat: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._request += data
        if not _is_whole(self._request):
            return
        self._transport.write(HEAD)
        found = HOLD.findall(self._request)
        self._request = b""
        if found and found[-1] not in seen:
            self._held = found[-1]
            seen.add(self._held)
            self._stream()
        else:
            words = event({"content": "fine"}) + event({}, "stop") + chunk(b"data: [DONE]\n\n")
            self._transport.write(words + b"0\r\n\r\n")
            self._transport.close()

    def _stream(self) -> None:
        self._transport.write(event({"content": "word "}))
        self._beat = asyncio.get_running_loop().call_later(EVERY_S, self._stream)

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._held is not None:
            print(self._held.decode(), time.monotonic_ns(), flush=True)
            self._held = None


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and (length is None or len(body) >= int(length[1]))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Client, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
