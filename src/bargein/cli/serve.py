"""`bargein serve`: the HTTP API and the web page."""

import argparse
import sys
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import anyio

from bargein.cancel import arm_quit_watchdog, disarm_quit_watchdog
from bargein.cli.config import Config
from bargein.cli.run import Notices
from bargein.cli.wiring import Agent, Engine, default_agent
from bargein.errors import UserError


def main(given: argparse.Namespace, config: Config) -> int:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise UserError("the server is not installed; run  pip install 'bargein[server]'")
    options = {"use_uvloop": find_spec("uvloop") is not None}
    return anyio.run(_serve, given, config, backend_options=options)


async def _serve(given: argparse.Namespace, config: Config) -> int:
    from bargein.server.access import Access, new_start_token
    from bargein.server.book import FILE, Book
    from bargein.server.gateway import Gateway, Settings
    from bargein.server.running import listen, serve

    agent = _agent(given, config)
    async with AsyncExitStack() as stack:
        engine = Engine(agent, config=config, on_notice=Notices())
        await stack.enter_async_context(engine)
        book = Book.open(config.home / FILE)
        stack.callback(book.close)
        start_token = new_start_token()
        access = Access(book, start_token=start_token)
        listening = listen(given.host, given.port)
        stack.callback(listening.close)
        port = listening.getsockname()[1]
        settings = Settings(
            names=tuple(given.name), model=engine.model_name, cookie=f"bargein_{port}"
        )
        gateway = Gateway(engine.core, book, access, settings=settings)
        print(f"http://{given.host}:{port}/?token={start_token}", file=sys.stderr, flush=True)
        await serve(gateway, [listening])
        arm_quit_watchdog(gateway.limits.quit_s)
    disarm_quit_watchdog()
    return 0


def _agent(given: argparse.Namespace, config: Config) -> Agent:
    if given.scripted is None:
        return default_agent(config)
    from bargein.models.scripted import ScriptedModel

    return Agent(model=ScriptedModel.from_file(Path(given.scripted)))
