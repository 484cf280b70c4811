"""Starts an animal and waits until it says that it is ready, not for a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bargein.cancel import Token
from bargein.process import CaptureLimits, Containment, Ladder, Means, Process
from tests.process import zoo
from tests.process.zoo import Kind

# The last rung ends when nobody is left, so its length is for a failure only.
SHORT = Ladder(interrupt_s=0.05, terminate_s=0.05, kill_s=15)
PATIENT = Ladder(interrupt_s=15, terminate_s=15, kill_s=15)
"""Nobody is sent the next signal while the first one is still at work."""


@dataclass
class Kept:
    process: Process
    mark: str
    said: Said


class Said:
    """What a process has written, to be waited for."""

    def __init__(self) -> None:
        self.text = bytearray()
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []

    def hear(self, piece: bytes) -> None:
        # Bounded: a flood is not kept here.
        if len(self.text) < 1 << 16:
            self.text += piece
        for wanted, waiting in self._waiting:
            if wanted in self.text and not waiting.done():
                waiting.set_result(None)

    async def wait_for(self, wanted: bytes) -> None:
        if wanted not in self.text:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, waiting))
            await waiting


async def keep(
    containment: Containment,
    kind: Kind,
    token: Token,
    *,
    ladder: Ladder = SHORT,
    output: CaptureLimits | None = None,
) -> Kept:
    mark = zoo.new_mark()
    said = Said()
    process = await containment.spawn(
        kind.argv,
        cwd="/",
        env=zoo.environment(mark),
        token=token,
        pty=kind.size,
        on_output=said.hear,
        ladder=ladder,
        output=output or CaptureLimits(),
    )
    if kind.typed:
        await process.write(kind.typed)
    if kind.says_ready:
        await _until_ready(process, said)
    return Kept(process, mark, said)


async def _until_ready(process: Process, said: Said) -> None:
    """Or until it is over: what has escaped from a process group is not heard any more."""
    waits = [asyncio.ensure_future(each) for each in (said.wait_for(b"ready"), process.settled())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
    assert process.means is Means.GROUP or b"ready" in said.text
