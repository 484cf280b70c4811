"""A chat service in a process of its own, for the bench of channels.

    python -m bench._channels_service

Prints its address. `/control/say` makes a person say something, `/control/shown` returns what a
chat was shown, `/control/calls` how many calls were taken since it was asked last. Ends when its
input does.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio
import anyio.to_thread
from aiohttp import web

from bargein.channels.contract import ChatAddress, Person
from bargein.channels.telegram import RATE
from bargein.testing.chat_services.telegram import FakeTelegram


class ControlledService(FakeTelegram):
    async def _say(self, request: web.Request) -> web.Response:
        given: Any = await request.json()
        for chat in given["chats"]:
            await self.say(ChatAddress(chat), Person(chat, "Somebody"), given["text"])
        return web.json_response({})

    async def _shown(self, request: web.Request) -> web.Response:
        shown = self.shown(ChatAddress(request.query["chat"]))
        return web.json_response([each.text for each in shown])

    async def _counted(self, request: web.Request) -> web.Response:
        chats = {place for _, _, place in self.calls}
        counted = {"calls": len(self.calls), "chats": len(chats), "at": time.monotonic()}
        self.calls.clear()
        return web.json_response(counted)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/control/say", self._say),
            web.get("/control/shown", self._shown),
            web.get("/control/calls", self._counted),
            *super().routes(),
        ]


async def serve() -> None:
    async with ControlledService(RATE) as service:
        print(service.address, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(serve)
