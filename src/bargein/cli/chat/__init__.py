"""`bargein chat`: the terminal program. The input line keeps working while the agent works."""

import argparse
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bargein.cli.hosting import begin_host
from bargein.errors import UserError
from bargein.runtime.config import Config

if TYPE_CHECKING:
    from bargein.cli.joining import OpenEngine

LOG_FILE = "bargein.log"
LOG_BYTES_MAX = 1024 * 1024


def main(given: argparse.Namespace, config: Config) -> int:
    any_folder = getattr(given, "all", False)
    go_on = getattr(given, "go_on", False)
    if any_folder and not go_on:
        raise UserError("--all is for -c: it continues the last session of any folder")
    resume = getattr(given, "resume", None)
    share = getattr(given, "share", False)
    return converse(config, resume=resume, go_on=go_on, any_folder=any_folder, share=share)


def converse(
    config: Config,
    *,
    resume: str | None = None,
    go_on: bool = False,
    any_folder: bool = False,
    share: bool = False,
    come_back: str = "bargein",
    open_engine: "OpenEngine | None" = None,
) -> int:
    """Talks in this terminal until the user leaves: with the engine that is opened, or else with
    the owner of the data directory or one of our own. `come_back` is the command that does the same
    again, without what it says of the session."""
    if open_engine is None:
        # It starts while this program loads the rest of itself.
        begun = begin_host(config)
        from bargein.cli.joining import hosted_engine

        open_engine = partial(hosted_engine, begun=begun)
    more: dict[str, Any] = {
        "open_engine": open_engine,
        "any_folder": any_folder,
        "share": share,
        "come_back": come_back,
    }
    if is_plain(config):
        from bargein.cli import plain

        return plain.main(config, resume=resume, go_on=go_on, **more)
    from bargein.cli.chat.app import Chat
    from bargein.cli.event_loop import run_in_loop

    log_to_file(config.home)

    async def run() -> int:
        return await Chat(config, resume=resume, go_on=go_on, **more).run()

    return run_in_loop(run)


def is_plain(config: Config) -> bool:
    """Whether to write line by line: the terminal can do no more, or the user wants it."""
    if config["chat.plain"]:
        return True
    dumb = config.environment.get("TERM", "") in ("", "dumb")
    return dumb or not (os.isatty(0) and os.isatty(1))


def log_to_file(home: Path) -> None:
    """Sends the program's log to a file, because a drawn screen has no place for it."""
    # Imported here, because other commands import this package too.
    from logging.handlers import RotatingFileHandler

    # Otherwise logging would complain on the screen about a file that cannot be written.
    logging.raiseExceptions = False
    handler: logging.Handler
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = RotatingFileHandler(
            home / LOG_FILE, maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8", delay=True
        )
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
