"""A driver that answers, and then ends or falls silent in the middle of a run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bench.interruptbench.drivers.base import System, serve


class BadSystem(System):
    async def open(self) -> None:
        self.first = not (Path(os.environ["HOME"]) / "seen").exists()
        (Path(os.environ["HOME"]) / "seen").touch()

    async def run(self, run: str, session: str, text: str) -> str:
        if self.first:
            os._exit(3)
        await asyncio.sleep(600)
        return ""


if __name__ == "__main__":
    serve(BadSystem())
