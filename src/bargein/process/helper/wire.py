"""Messages between Bargein, its helper and the processes that the helper starts.

A message is one packet of a SOCK_SEQPACKET socket: a few plain values, with descriptors beside
them. Packets are limited to about 200 KB, which an environment can exceed, so a larger message is
in a memory file whose descriptor comes last.
"""

import array
import marshal
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

INLINE_BYTES_MAX: Final = 64 * 1024
_FDS_MAX: Final = 8
_INLINE: Final = b"I"
_IN_MEMORY_FILE: Final = b"M"

Message = tuple[Any, ...]


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Raises BlockingIOError if the channel does not block and is full, OSError if it is closed."""
    body = marshal.dumps(message)
    if len(body) <= INLINE_BYTES_MAX:
        _send_packet(channel, _INLINE + body, fds)
        return
    file = os.memfd_create("bargein-message")
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(file, view) :]
        _send_packet(channel, _IN_MEMORY_FILE, [*fds, file])
    finally:
        os.close(file)


def _send_packet(channel: socket.socket, packet: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([packet], rights, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """Returns the next message and its descriptors, which close on exec; None at the end.

    If our descriptor table is full, the last descriptors are missing.
    """
    try:
        packet, ancillary = _receive_packet(channel)
    except ConnectionResetError:
        # The other end was closed with something of ours unread. The kernel reports that once, and
        # first; the messages that were sent before are still there.
        packet, ancillary = _receive_packet(channel)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    received = list(fds)
    if not packet:
        return None
    if packet[:1] == _INLINE:
        return marshal.loads(memoryview(packet)[1:]), received
    if not received:
        return (), []
    file = received.pop()
    try:
        return marshal.loads(_contents(file)), received
    finally:
        os.close(file)


def _receive_packet(channel: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    packet, ancillary, _flags, _address = channel.recvmsg(
        INLINE_BYTES_MAX + 1, socket.CMSG_SPACE(_FDS_MAX * 4), socket.MSG_CMSG_CLOEXEC
    )
    return packet, ancillary


def _contents(file: int) -> bytes:
    parts = []
    offset = 0
    while part := os.pread(file, 1 << 20, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
