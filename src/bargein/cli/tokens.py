"""`bargein token`: adds, lists and revokes tokens of the server, at once and also while it runs."""

import argparse
import sys
import time
from datetime import datetime
from pathlib import Path

import anyio

from bargein.cli.backups import DATABASES
from bargein.cli.event_loop import run_in_loop
from bargein.errors import BargeinError, UserError
from bargein.runtime.backup import keep_copy_before_upgrade
from bargein.runtime.config import Config
from bargein.runtime.data_directory import make_data_directory, running_server
from bargein.server.access import add_token, revoke_token
from bargein.server.gateway_tables import GatewayTables, TokenRow, open_tables

DAY_S = 24 * 3600.0


def main(given: argparse.Namespace, config: Config) -> int:
    make_data_directory(config.home)
    keep_copy_before_upgrade(config.home, None, DATABASES)
    return run_in_loop(_open_and_act, given, config)


async def _open_and_act(given: argparse.Namespace, config: Config) -> int:
    db = await open_tables(config.home, config.store_address)
    try:
        return await _act(given, db, config)
    finally:
        await db.aclose()


async def _act(given: argparse.Namespace, db: GatewayTables, config: Config) -> int:
    if given.action == "add":
        row, text = await add_token(
            db,
            given.principal,
            expires_at=time.time() + given.days * DAY_S,
            read_only=given.read_only,
            admin=given.admin,
            sessions=tuple(given.session) if given.session else None,
            note=given.note,
        )
        print(text, flush=True)
        print(
            f"for {row.principal}, until {_day(row.expires_at)}. It is shown this once; revoke it "
            f"with  bargein token revoke {row.id}",
            file=sys.stderr,
        )
        server = running_server(config.home)
        if server is not None and server.sole not in (None, row.principal):
            print(
                f"the server that is running was started for {server.sole} alone; restart it to "
                f"let {row.principal} in",
                file=sys.stderr,
            )
        for session in await _missing(given.session or [], config.store_address):
            print(
                f"there is no session {session!r} yet: until there is, the token opens nothing "
                "there; `bargein sessions` lists the sessions",
                file=sys.stderr,
            )
    elif given.action == "revoke":
        for token in given.token:
            if not await revoke_token(db, token):
                raise UserError(f"there is no valid token {token!r}; `bargein token list` has them")
            print(f"revoked {token}", file=sys.stderr)
    else:
        rows = db.tokens()
        for row in rows:
            print(_line(row))
        if not rows:
            print("no tokens: the server is for its operator alone", file=sys.stderr)
    return 0


async def _missing(sessions: list[str], address: str | Path) -> list[str]:
    """Returns the sessions that do not exist, for a hint only: a running server may create them at
    any time. Returns none if the store cannot be read."""
    if not sessions or (isinstance(address, Path) and not await anyio.Path(address).exists()):
        return sessions
    from bargein import stores

    try:
        store = await stores.look(address)
    except BargeinError:
        return []
    try:
        return [each for each in sessions if await store.head(each) is None]
    except BargeinError:
        return []
    finally:
        await store.aclose()


def _line(row: TokenRow) -> str:
    words = [row.id, row.principal]
    if row.revoked_at is not None:
        words.append(f"revoked {_day(row.revoked_at)}")
    elif not row.is_valid(time.time()):
        words.append(f"expired {_day(row.expires_at)}")
    else:
        words.append(f"until {_day(row.expires_at)}")
    words += [word for word, is_so in (("admin", row.admin), ("read-only", row.read_only)) if is_so]
    if row.sessions is not None:
        words.append(f"sessions {', '.join(row.sessions)}")
    if row.note:
        words.append(row.note)
    return "  ".join(words)


def _day(at: float | None) -> str:
    if at is None:
        return "revoked"
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M}"
