"""Sessions behind routes of your own: an answer that streams as text, a stop, and nothing else.

Leaving the page stops nothing: the turn goes on, and the next request finds its answer in the
session. A stop is a request of its own.

python examples/own_routes.py, then
curl -N -d "Count to a million" http://127.0.0.1:8000/chat/alice
curl -X POST http://127.0.0.1:8000/chat/alice/stop
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from bargein import Agent, Engine, Session
from bargein.events import TextDelta, TurnSettled


async def chat(request: Request) -> StreamingResponse:
    session = await session_of(request)
    text = (await request.body()).decode()
    return StreamingResponse(answer(session, text), media_type="text/plain")


async def answer(session: Session, text: str) -> AsyncIterator[str]:
    async with aclosing(session.stream(text)) as events:
        async for event in events:
            match event:
                case TextDelta(text=more):
                    yield more
                case TurnSettled(outcome=outcome):
                    yield f"\n[{outcome}]\n"


async def stop(request: Request) -> JSONResponse:
    session = await session_of(request)
    receipt = await session.interrupt(by="the app")
    return JSONResponse({"status": receipt.status, "elapsed_ms": round(receipt.elapsed_ms)})


async def session_of(request: Request) -> Session:
    # Your app decides who may use which session: check that here.
    engine: Engine = request.app.state.engine
    return await engine.session(request.path_params["user"])


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with Engine(Agent(), store="memory") as engine:
        app.state.engine = engine
        yield


app = Starlette(
    routes=[
        Route("/chat/{user}", chat, methods=["POST"]),
        Route("/chat/{user}/stop", stop, methods=["POST"]),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
