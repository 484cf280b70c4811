"""Whether a sandbox that holds can be made here, which staged turns need."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from bargein.process import SandboxReport, open_containment


@cache
def sandbox_here() -> SandboxReport:
    """Found out once, in a thread of its own, so that any test may ask."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, _look()).result()


async def _look() -> SandboxReport:
    async with await open_containment(network="none") as containment:
        return containment.report.sandbox
