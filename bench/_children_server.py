"""A provider in a process of its own that streams words, and tells when it saw each client go.

It is the instrument, so it must not wait for a core while the measured process settles its
sessions: where that is allowed it runs before others. A provider has a machine of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import uvloop

from bargein.contracts.model import EndPart, StopReason, TextPart
from bargein.testing.fault_answers import events_of
from bargein.testing.fault_server import FaultServer
from bargein.testing.fault_steps import Body, Head, Pause, Request, Step

WORDS = 120
PACE_S = 0.02
TEXT = "".join(f"word{number} " for number in range(WORDS))


class Seen(msgspec.Struct):
    """One connection; 0 means not yet. Times are the machine's monotonic nanoseconds."""

    requested_ns: int
    gone_ns: int


def _answer(request: Request) -> Sequence[Step]:
    parts = [TextPart(f"word{number} ") for number in range(WORDS)]
    steps: list[Step] = [Head()]
    for event in events_of("openai", [*parts, EndPart(StopReason.END)]):
        steps += [Body(event), Pause(PACE_S)]
    return steps


async def serve() -> None:
    """Prints its address, then, for each line of input, what it has seen."""
    async with FaultServer(_answer) as server:
        print(server.url, flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            seen = [Seen(visit.requested.at_ns, visit.gone.at_ns) for visit in server.visits]
            print(msgspec.json.encode(seen).decode(), flush=True)


if __name__ == "__main__":
    with suppress(PermissionError):
        os.nice(-10)
    uvloop.run(serve())
