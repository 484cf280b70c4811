"""A small file that keeps stops which the store cannot write because the disk is full.

All its blocks are written when it is made, and later only overwritten in place. That needs no new
space on common file systems, so it works on a full disk and over quota. A file system that writes
every block to a new place (btrfs, ZFS) may refuse; then the stop exists in memory only, as its
receipt says.

A record is a length, a checksum and a body, each in its own slot. A half-written slot counts as
empty.
"""

import os
import zlib
from pathlib import Path
from threading import Lock

import msgspec

from bargein.contracts.store import UnstoredStop

FILE = "stops.reserve"
SLOTS = 64
SLOT_BYTES = 1024
HEAD_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(UnstoredStop)


class FileReserve:
    """Made by `open`. Any thread of the process that owns the data directory may use it."""

    def __init__(self, path: Path, descriptor: int, slots: dict[int, UnstoredStop]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._slots = slots
        self._guard = Lock()

    @classmethod
    def open(cls, path: Path) -> "FileReserve | None":
        """Open the file, or make it. Returns None if neither is possible: the store reports what is
        wrong with the disk, and only stops on a full disk need this file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None
        try:
            content = os.pread(descriptor, SLOTS * SLOT_BYTES, 0)
            if len(content) < SLOTS * SLOT_BYTES:
                os.pwrite(descriptor, bytes(SLOTS * SLOT_BYTES), 0)
                os.fsync(descriptor)
                content = b""
        except OSError:
            os.close(descriptor)
            return None
        return cls(path, descriptor, dict(_read(content)))

    def keep(self, stop: UnstoredStop) -> bool:
        body = _fitting(stop)
        if body is None:
            return False
        with self._guard:
            slot = self._slot_for(stop)
            if slot is None or not self._write(slot, body):
                return False
            self._slots[slot] = stop
        return True

    def find(self, session: str, created_at: float, turn: str) -> UnstoredStop | None:
        wanted = (session, created_at, turn)
        with self._guard:
            for stop in self._slots.values():
                if (stop.session, stop.created_at, stop.turn) == wanted:
                    return stop
        return None

    def forget(self, session: str) -> None:
        with self._guard:
            for slot in [each for each, stop in self._slots.items() if stop.session == session]:
                if self._write(slot, b""):
                    del self._slots[slot]

    def close(self) -> None:
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _slot_for(self, stop: UnstoredStop) -> int | None:
        """Return the slot of the same session, which has one turn at a time, or a free slot."""
        for slot, kept in self._slots.items():
            if kept.session == stop.session:
                return slot
        return next((slot for slot in range(SLOTS) if slot not in self._slots), None)

    def _write(self, slot: int, body: bytes) -> bool:
        head = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big")
        if self._descriptor < 0:
            return False
        try:
            os.pwrite(self._descriptor, head + body, slot * SLOT_BYTES)
            os.fsync(self._descriptor)
        except OSError:
            return False
        return True


def _fitting(stop: UnstoredStop) -> bytes | None:
    """Encode a stop. Leaves out the steps of its receipt if they do not fit."""
    bare = msgspec.structs.replace(stop.receipt, steps=(), held=(), queued=())
    for receipt in (stop.receipt, bare):
        body = _encode(msgspec.structs.replace(stop, receipt=receipt))
        if len(body) <= SLOT_BYTES - HEAD_BYTES:
            return body
    return None


def _read(content: bytes) -> list[tuple[int, UnstoredStop]]:
    found = []
    for slot in range(len(content) // SLOT_BYTES):
        record = content[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
        size, checksum = int.from_bytes(record[:4], "big"), int.from_bytes(record[4:8], "big")
        body = record[HEAD_BYTES : HEAD_BYTES + size]
        if not size or len(body) != size or zlib.crc32(body) != checksum:
            continue
        try:
            found.append((slot, _decoder.decode(body)))
        except (msgspec.MsgspecError, ValueError):
            continue
    return found
