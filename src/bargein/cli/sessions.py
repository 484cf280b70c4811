"""`bargein sessions`: list, show, search, export and remove what is kept.

Reads the store directly: it needs no engine, and works while one is running. Only `rm` takes the
data directory for itself.
"""

import argparse
import sys
from contextlib import AsyncExitStack
from datetime import datetime

import anyio
import msgspec

from bargein.cli.chat.paint import harmless
from bargein.cli.config import Config
from bargein.cli.event_loop import run_in_loop
from bargein.cli.export import as_markdown
from bargein.cli.home import own_home
from bargein.cli.streams import write_whole
from bargein.cli.wiring import DATABASE
from bargein.contracts.event import Recorded
from bargein.contracts.store import Store
from bargein.errors import UserError


def main(given: argparse.Namespace, config: Config) -> int:
    return run_in_loop(_main, given, config)


async def _main(given: argparse.Namespace, config: Config) -> int:
    from bargein.stores.sqlite import SqliteStore

    path = config.home / DATABASE
    if not await anyio.Path(path).exists():
        print(f"no sessions in {config.home}", file=sys.stderr)
        return 0 if given.action in (None, "list") else 1
    async with AsyncExitStack() as stack:
        if given.action == "rm":
            stack.enter_context(own_home(config.home))
        store = await SqliteStore.open(path)
        stack.push_async_callback(store.aclose)
        return await _act(given, store)


async def _act(given: argparse.Namespace, store: Store) -> int:
    if given.action == "search":
        words = " ".join(given.words)
        hits = await store.search(words)
        for found in hits:
            print(harmless(f"{found.session}: {found.excerpt}"))
        if not hits:
            print(f"nothing was said with {words!r} in it", file=sys.stderr)
    elif given.action == "show":
        print(_shown(as_markdown(await _events(store, given.session))), end="")
    elif given.action == "export":
        events = await _events(store, given.session)
        if given.format == "json":
            for event in events:
                write_whole(_shown(f"{msgspec.json.encode(event).decode()}\n"))
        else:
            write_whole(_shown(as_markdown(events)))
    elif given.action == "rm":
        for session in given.session:
            if not await store.delete(session):
                raise UserError(f"there is no session {session!r}; `bargein sessions` lists them")
            print(f"removed {session}", file=sys.stderr)
    else:
        for head in await store.sessions(limit=getattr(given, "limit", 20)):
            when = datetime.fromtimestamp(head.updated_at).astimezone()
            print(harmless(f"{when:%Y-%m-%d %H:%M}  {head.id}  {head.title}").rstrip())
    return 0


def _shown(text: str) -> str:
    """A file or a program gets it as it is; a terminal would obey some of it."""
    return harmless(text) if sys.stdout.isatty() else text


async def _events(store: Store, session: str) -> list[Recorded]:
    if await store.head(session) is None:
        raise UserError(f"there is no session {session!r}; `bargein sessions` lists them")
    return await store.events(session)
