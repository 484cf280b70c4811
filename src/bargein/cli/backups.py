"""`bargein backup` and `bargein restore`: copy all data elsewhere, and back."""

import argparse
import os
import sys
import time
from pathlib import Path

from bargein.cancel import CancelSource, run_thread
from bargein.channels import rows_sqlite
from bargein.cli.event_loop import run_in_loop
from bargein.cli.hosting import make_room
from bargein.runtime.backup import SESSIONS, Database, restore, write_backup
from bargein.runtime.config import Config
from bargein.server import gateway_db
from bargein.stores.sqlite.small_file import version_of

DATABASES = (
    SESSIONS,
    Database(gateway_db.FILE, gateway_db.VERSION, version_of),
    Database(rows_sqlite.FILE, rows_sqlite.VERSION, version_of),
)
"""Every database that this program keeps in a data directory."""

TIDY_S = 10.0
FIRST_S = 1.0
EVERY_S = 1.0
EVERY_LOGGED_S = 10.0


class Progress:
    """Shows progress once a copy takes longer than a second: in place in a terminal, else a line
    now and then."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._next = time.monotonic() + FIRST_S
        self._open_line = False
        self._shown = 0

    def __call__(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (EVERY_S if self._tty else EVERY_LOGGED_S)
        percent = 100 * done // total if total else 100
        end = "" if self._tty else "\n"
        start = "\r" if self._tty else ""
        words = f"{name}: {percent} %"
        blanks = " " * (self._shown - len(words))
        print(f"{start}{words}{blanks}", end=end, file=sys.stderr, flush=True)
        self._shown = len(words) if self._tty else 0
        self._open_line = self._tty

    def close(self) -> None:
        if self._open_line:
            print(file=sys.stderr)


def main(given: argparse.Namespace, config: Config) -> int:
    # Resolved now, because the current folder may be moved meanwhile.
    if given.command == "backup":
        given.destination = os.path.abspath(given.destination)
    return run_in_loop(_back_up if given.command == "backup" else _restore, given, config)


async def _back_up(given: argparse.Namespace, config: Config) -> int:
    progress = Progress()
    destination = Path(given.destination)
    with CancelSource("backup") as source:
        outcome = await run_thread(
            write_backup,
            config.home,
            destination,
            progress,
            DATABASES,
            token=source.token,
            grace_s=TIDY_S,
        )
    progress.close()
    manifest = outcome.unwrap()
    size = sum(item.bytes for item in manifest.items) + manifest.folder_bytes
    files = ", ".join([*(item.name for item in manifest.items), *manifest.folders])
    print(f"{destination}: {size:,} bytes ({files}), checked", file=sys.stderr)
    if manifest.left_out:
        print(
            f"NOT in it, because they cannot be read: {manifest.left_out} of people's files, such "
            f"as {manifest.left_out_first}",
            file=sys.stderr,
        )
    _tell_of_another_store(config)
    return 0


def _tell_of_another_store(config: Config) -> None:
    """Warns that the sessions are not in the backup, if they are not in the data directory."""
    from bargein import stores

    address = config.text("store")
    if address:
        print(
            f"The sessions are NOT in it: they are in {stores.shown(address)}. Back that up with "
            "pg_dump, or with  bargein store copy  while nothing uses it",
            file=sys.stderr,
        )


async def _restore(given: argparse.Namespace, config: Config) -> int:
    progress = Progress()

    def work() -> Path | None:
        make_room(config.home)
        return restore(Path(given.source), config.home, progress, DATABASES, replace=given.replace)

    with CancelSource("restore") as source:
        outcome = await run_thread(work, token=source.token, grace_s=TIDY_S)
    progress.close()
    aside = outcome.unwrap()
    print(f"restored into {config.home}", file=sys.stderr)
    if aside is not None:
        print(
            f"the previous data is in {aside}; delete it when you no longer need it",
            file=sys.stderr,
        )
    return 0
