"""A program with servers that have children of their own, until it is killed."""

from __future__ import annotations

import sys

import anyio

from tests.mcp.harness import house
from tests.mcp.test_survivors import server_of


async def main(mark: str) -> None:
    servers = [
        server_of("leaves_child", "wrapped", wrapped=True),
        server_of("ignores_end", "forks", wrapped=False),
    ]
    async with house(*servers, mark=mark) as home:
        await home.prepare()
        await home.call("mcp__forks__fork")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
