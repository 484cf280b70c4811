"""The floor with httpx."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx  # type: ignore[import-not-found,unused-ignore]

from bench.interruptbench.drivers.bare import BareSystem
from bench.interruptbench.drivers.base import serve


class HttpxSystem(BareSystem):
    package = "httpx"

    async def open(self) -> None:
        self._client = httpx.AsyncClient(
            base_url=os.environ["OPENAI_BASE_URL"],
            timeout=600,
            limits=httpx.Limits(max_connections=1000),
        )

    async def events(self, body: dict[str, object]) -> AsyncIterator[str]:
        async with self._client.stream("POST", "/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield line[6:]

    async def close(self) -> None:
        await self._client.aclose()


if __name__ == "__main__":
    serve(HttpxSystem())
