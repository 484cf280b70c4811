"""The wire format of links to child processes: four bytes of length, then JSON.

It is spoken over a Unix socket between the program and the processes that its tools start. It uses
only the standard library, because the children import it too.
"""

import json
import socket
import struct
from typing import Any

FRAME_BYTES_MAX = 64 << 20
HEADER = struct.Struct(">I")

Message = dict[str, Any]


class BrokenFrame(ValueError):
    """The received bytes are not a valid message."""


def encode(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(body) > FRAME_BYTES_MAX:
        raise BrokenFrame(f"a message of {len(body)} bytes is too long; {FRAME_BYTES_MAX} at most")
    return HEADER.pack(len(body)) + body


def length_of(header: bytes) -> int:
    (length,) = HEADER.unpack(header)
    if length > FRAME_BYTES_MAX:
        raise BrokenFrame(f"a message of {length} bytes was announced; {FRAME_BYTES_MAX} at most")
    return int(length)


def decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenFrame("a message must be a JSON object")
    return message


def request(path: str, message: Message) -> Message:
    """Sends a request over a new connection and waits for the answer. For the child; blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(encode(message))
        return decode(_receive(connection, length_of(_receive(connection, HEADER.size))))


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the program that started this process has hung up")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
