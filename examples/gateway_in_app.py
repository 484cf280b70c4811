"""The gateway inside a Starlette app: its page at /, its API under /v1, your routes beside them.

A FastAPI app does the same with `FastAPI(lifespan=lifespan)`.

python examples/gateway_in_app.py, then open the address that it prints
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bargein import Agent, Engine
from bargein.server.embedding import open_gateway

DATA = Path("bargein-data")
TOKEN = secrets.token_urlsafe()


async def about(request: Request) -> PlainTextResponse:
    return PlainTextResponse("a route of your own")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with (
        Engine(Agent(instructions="You help the users of this app."), home=DATA) as engine,
        open_gateway(engine, DATA, operator_token=TOKEN) as gateway,
    ):
        # Routes of the app come first; the gateway gets everything else.
        app.mount("/", gateway)
        yield


app = Starlette(routes=[Route("/about", about)], lifespan=lifespan)

if __name__ == "__main__":
    print(f"http://127.0.0.1:8000/#token={TOKEN}")
    uvicorn.run(app, port=8000)
