"""`bargein sessions`: lists, shows, searches, exports and removes stored sessions.

Reads the store directly, without an engine: it works while one runs, and on a read-only disk. Only
`rm` takes the data directory for itself.
"""

import argparse
import sys
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread

from bargein.cli.chat.paint import harmless
from bargein.cli.event_loop import run_in_loop
from bargein.cli.export import as_markdown
from bargein.cli.hosting import make_room
from bargein.cli.streams import write_whole
from bargein.contracts.event import Recorded
from bargein.contracts.store import SessionHead, SessionUnreadable, Store
from bargein.errors import UserError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import is_in_data_directory, own_data_directory

if TYPE_CHECKING:
    from bargein.stores import ReadableStore


def main(given: argparse.Namespace, config: Config) -> int:
    return run_in_loop(_main, given, config)


async def _main(given: argparse.Namespace, config: Config) -> int:
    from bargein import stores

    path = config.store_address
    if isinstance(path, Path) and not is_in_data_directory(path):
        print(f"no sessions in {config.home}", file=sys.stderr)
        return 0 if given.action in (None, "list") else 1
    async with AsyncExitStack() as stack:
        if given.action == "rm":
            if isinstance(path, Path):
                await to_thread.run_sync(make_room, config.home)
                stack.enter_context(own_data_directory(config.home))
            store = await stores.open(path)
            stack.push_async_callback(store.aclose)
            return await _remove(given.session, store)
        looking = await stores.look(path)
        stack.push_async_callback(looking.aclose)
        return await _look(given, looking)


async def _remove(sessions: list[str], store: Store) -> int:
    for session in sessions:
        if not await store.delete(session):
            raise UserError(f"there is no session {session!r}; `bargein sessions` lists them")
        print(f"removed {session}", file=sys.stderr)
    return 0


async def _look(given: argparse.Namespace, store: "ReadableStore") -> int:
    if given.action == "search":
        words = " ".join(given.words)
        hits = await store.search(words)
        for found in hits:
            print(harmless(f"{found.session}: {found.excerpt}"))
        if not hits:
            print(f"nothing was said with {words!r} in it", file=sys.stderr)
    elif given.action in ("show", "export"):
        events, unreadable = await _events(store, given.session)
        if given.action == "show":
            print(_shown(as_markdown(events)), end="")
        elif given.format == "json":
            for event in events:
                write_whole(_shown(f"{msgspec.json.encode(event).decode()}\n"))
        else:
            write_whole(_shown(as_markdown(events)))
        if unreadable is not None:
            raise unreadable
    else:
        for head in await store.sessions(limit=getattr(given, "limit", 20)):
            when = datetime.fromtimestamp(head.updated_at).astimezone()
            mark = "" if _is_readable(head) else "  (cannot be read)"
            line = f"{when:%Y-%m-%d %H:%M}  {head.id}  {head.title}{mark}"
            print(harmless(line).rstrip())
    return 0


def _shown(text: str) -> str:
    """Returns the text unchanged for a file or a program; a terminal would obey control characters
    in it."""
    return harmless(text) if sys.stdout.isatty() else text


def _is_readable(head: SessionHead) -> bool:
    from bargein.session.snapshot import stored_in

    try:
        stored_in(head)
    except SessionUnreadable:
        return False
    return True


async def _events(
    store: "ReadableStore", session: str
) -> tuple[list[Recorded], SessionUnreadable | None]:
    """Returns the log of a session; if part of it cannot be read, everything before that, and the
    error."""
    if await store.head(session) is None:
        raise UserError(f"there is no session {session!r}; `bargein sessions` lists them")
    try:
        return await store.events(session), None
    except SessionUnreadable as error:
        return await store.events(session, limit=max(error.seq - 1, 0)), error
