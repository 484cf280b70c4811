"""Reads a server that sends unwanted messages slowly, so that it does not hold up the loop."""

import time
from typing import Final

import anyio

PAUSE_FACTOR: Final = 4.0
PAUSE_S_MAX: Final = 0.25
MESSAGES_AT_ONCE: Final = 200


class FloodGuard:
    """`count` after each message, `pause` after each piece that was read. After a piece of which
    most was unwanted it waits four times as long as the piece took, so that unwanted messages get a
    fifth of the time at most."""

    def __init__(self) -> None:
        self._wanted = 0
        self._unwanted = 0
        self._began = time.perf_counter()

    async def count(self, wanted: bool) -> None:
        if wanted:
            self._wanted += 1
        else:
            self._unwanted += 1
        if (self._wanted + self._unwanted) % MESSAGES_AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()

    async def pause(self) -> None:
        spent_s = time.perf_counter() - self._began
        if self._unwanted > self._wanted:
            await anyio.sleep(min(spent_s * PAUSE_FACTOR, PAUSE_S_MAX))
        self._wanted = self._unwanted = 0

    def begin(self) -> None:
        """A piece was read; what follows is work on it."""
        self._began = time.perf_counter()
