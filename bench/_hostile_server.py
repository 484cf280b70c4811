"""The server of the hostile bench: the gateway with the limits that `bargein serve` has, and a
scripted model, in a process of its own.

Prints its port, its own process id, and a token each for a good client and an attacker. A message
`PACE PARTS` is answered with so many parts, so far apart.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from bargein.cli.event_loop import run_in_loop
from bargein.server.access import Access, add_token
from bargein.server.app import build_app
from bargein.server.gateway import Gateway
from bargein.server.gateway_db import FILE, GatewayDb
from bargein.server.running import (
    GatewayServer,
    allow_many_files,
    collect_seldom,
    give_memory_back,
    listen,
)
from bargein.session.engine import SessionEngine
from bargein.stores.sqlite import SqliteStore
from bench._gateway_server import paced_agent


async def serve(home: Path) -> None:
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(home / "sessions.sqlite3")
        stack.push_async_callback(store.aclose)
        engine = await stack.enter_async_context(SessionEngine(paced_agent, store))
        db = GatewayDb.open(home / FILE)
        stack.callback(db.close)
        _, good = await add_token(db, "good")
        _, bad = await add_token(db, "bad")
        gateway = Gateway(engine, db, Access(db))
        listening = listen("127.0.0.1", 0)
        server = GatewayServer(gateway, build_app(gateway))
        port = listening.getsockname()[1]
        print(json.dumps({"port": port, "pid": os.getpid(), "good": good, "bad": bad}), flush=True)
        await server.run_until_left([listening])


if __name__ == "__main__":
    allow_many_files()
    collect_seldom()
    give_memory_back()
    run_in_loop(serve, Path(sys.argv[1]))
