"""The attacks of the hostile bench. Each is a program: `python -m bench._hostile_attacks NAME PORT
TOKEN`. It goes on until it is killed, and its sockets are bounded in number."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from urllib.parse import quote

CONNECTIONS = 64
MIB = 1024 * 1024


class Attack:
    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def head(self, request: str, *lines: str, known: bool = True) -> bytes:
        shown = [f"Authorization: Bearer {self.token}"] if known else []
        return "\r\n".join([request, "Host: 127.0.0.1", *shown, *lines, "", ""]).encode()

    def post(self, path: str, body: object) -> tuple[int, dict[str, object]]:
        content = json.dumps(body).encode()
        lines = ("Content-Type: application/json", f"Content-Length: {len(content)}")
        with self.connect() as link:
            link.sendall(self.head(f"POST {path} HTTP/1.1", *lines, "Connection: close") + content)
            said = b""
            while piece := link.recv(65536):
                said += piece
        head, _, rest = said.partition(b"\r\n\r\n")
        return int(head[9:12]), json.loads(rest or b"{}")

    def session(self) -> str:
        _, made = self.post("/v1/sessions", {})
        session = made["session"]
        assert isinstance(session, dict)
        return f"/v1/sessions/{session['id']}"

    def pour(self, begin: bytes, piece: bytes, count: int = 8) -> None:
        """Send without end on so many connections, a new one for each that is closed."""
        links: list[socket.socket | None] = [None] * count
        while True:
            for place in range(count):
                link = links[place]
                try:
                    if link is None:
                        link = links[place] = self.connect()
                        link.sendall(begin)
                        link.setblocking(False)
                    link.send(piece)
                except BlockingIOError:
                    pass
                except OSError:
                    if link is not None:
                        link.close()
                    links[place] = None
            time.sleep(0.001)


def endless_header(attack: Attack) -> None:
    attack.pour(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx: ", b"x" * 65536)


def endless_trailer(attack: Attack) -> None:
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    begin = attack.head("POST /login HTTP/1.1", *lines, known=False)
    attack.pour(begin + b"1\r\n{\r\n0\r\nx: ", b"x" * 65536)


def many_fields(attack: Attack) -> None:
    attack.pour(b"GET / HTTP/1.1\r\n", b"a:\r\n" * 16384)


def pipelined(attack: Attack) -> None:
    """Sends requests behind a stream, and reads none of the answers."""
    begin = attack.head(f"GET {attack.session()}/events HTTP/1.1")
    attack.pour(begin, attack.head("GET /v1/me HTTP/1.1") * 500)


def many_connections(attack: Attack) -> None:
    """Opens connections, hundreds at a time, and leaves each with half a head."""
    while True:
        links = []
        for _ in range(400):
            try:
                link = attack.connect()
                link.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * 30_000)
                links.append(link)
            except OSError:
                pass
        time.sleep(0.2)
        for link in links:
            link.close()


def upgrade(attack: Attack, session: str) -> socket.socket:
    lines = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    link = attack.connect()
    link.sendall(attack.head(f"GET {session}/socket HTTP/1.1", *lines))
    link.recv(65536)
    return link


def frame(payload: bytes, opcode: int = 1) -> bytes:
    return struct.pack("!BBQ4x", 0x80 | opcode, 0x80 | 127, len(payload)) + payload


def socket_bodies(attack: Attack) -> None:
    """Sends commands as large as a socket accepts, on many sockets, and frames that never end."""
    session = attack.session()
    command = {"id": "1", "do": "send_message", "body": {"text": "0 0 " + "x" * (MIB - 65_536)}}
    whole = frame(json.dumps(command).encode())
    links: list[socket.socket | None] = [None] * 16
    sent = [0] * len(links)
    while True:
        for place in range(len(links)):
            link = links[place]
            try:
                if link is None:
                    link = links[place] = upgrade(attack, session)
                    link.setblocking(False)
                    sent[place] = 0
                piece = whole[sent[place] : sent[place] + 65_536]
                # Every second one stops before its end.
                if place % 2 and sent[place] > len(whole) - 65_536:
                    continue
                sent[place] = (sent[place] + link.send(piece)) % len(whole)
            except BlockingIOError:
                pass
            except OSError:
                if link is not None:
                    link.close()
                links[place] = None
        time.sleep(0.001)


def pings(attack: Attack) -> None:
    """Sends pings and reads none of the answers."""
    session = attack.session()
    piece = (struct.pack("!BB4x", 0x89, 0x80 | 125) + b"x" * 125) * 500
    links = [upgrade(attack, session) for _ in range(8)]
    for link in links:
        link.setblocking(False)
    while True:
        for link in links:
            try:
                link.send(piece)
            except BlockingIOError:
                pass
        time.sleep(0.001)


def full_inboxes(attack: Attack) -> None:
    """Fills the inboxes of busy sessions with files, then asks for them and does not read them."""
    sessions = [attack.session() for _ in range(8)]
    data = base64.b64encode(os.urandom(5 * MIB)).decode()
    file = {"name": "a", "media_type": "image/png", "data": data}
    for session in sessions:
        attack.post(f"{session}/messages", {"text": "3600 1"})
    readers: list[socket.socket] = []
    while True:
        for session in sessions:
            body = {"text": "0 0", "mode": "queue", "attachments": [file]}
            attack.post(f"{session}/messages", body)
            if len(readers) < CONNECTIONS:
                link = attack.connect()
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.sendall(attack.head(f"GET {session}/inbox HTTP/1.1"))
                readers.append(link)
        time.sleep(0.02)


def unread_answers(attack: Attack) -> None:
    """Asks for a long transcript on many connections and reads none of them."""
    session = attack.session()
    for _ in range(6):
        attack.post(f"{session}/messages", {"text": "0 0 " + "x" * 4 * MIB, "mode": "queue"})
    links: list[socket.socket] = []
    while True:
        if len(links) >= CONNECTIONS:
            links.pop(0).close()
        link = attack.connect()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.sendall(attack.head(f"GET {session}/transcript HTTP/1.1"))
        links.append(link)
        time.sleep(0.02)


def searches(attack: Attack) -> None:
    """Searches for words in texts of megabytes, while more texts arrive to be indexed."""
    text = " ".join(f"w{number}" for number in range(600_000))[: 4 * MIB]
    session = attack.session()
    while True:
        if attack.post(f"{session}/messages", {"text": "0 0 " + text})[0] != 202:
            session = attack.session()
        for words in ("w", "w1 w2 w3", "w99999 w77777"):
            with attack.connect() as link:
                path = f"/v1/search?words={quote(words)}"
                link.sendall(attack.head(f"GET {path} HTTP/1.1", "Connection: close"))
                while link.recv(65536):
                    pass


ATTACKS: dict[str, Callable[[Attack], None]] = {
    "a header without an end": endless_header,
    "a trailer without an end": endless_trailer,
    "fields without an end": many_fields,
    "pipelined requests, unread": pipelined,
    "connections with half a head": many_connections,
    "bodies on WebSockets": socket_bodies,
    "pings, unread": pings,
    "files into inboxes": full_inboxes,
    "answers, unread": unread_answers,
    "searches and long texts": searches,
}


if __name__ == "__main__":
    name, port, token = sys.argv[1:]
    try:
        ATTACKS[name](Attack(int(port), token))
    except KeyboardInterrupt:
        sys.exit(130)
