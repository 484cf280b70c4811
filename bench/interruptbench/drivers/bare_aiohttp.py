"""The floor with aiohttp."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import aiohttp

from bench.interruptbench.drivers.bare import BareSystem
from bench.interruptbench.drivers.base import serve


class AiohttpSystem(BareSystem):
    package = "aiohttp"

    async def open(self) -> None:
        self._url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)
        )

    async def events(self, body: dict[str, object]) -> AsyncIterator[str]:
        async with self._client.post(self._url, json=body, raise_for_status=True) as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    yield line[6:].decode().rstrip()

    async def close(self) -> None:
        await self._client.close()


if __name__ == "__main__":
    serve(AiohttpSystem())
