"""Sends the program's log to a file, because a drawn screen has no place for it."""

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

FILE = "bargein.log"
BYTES_MAX = 1024 * 1024


def log_to_file(home: Path) -> None:
    # Otherwise logging would complain on the screen about a file that cannot be written.
    logging.raiseExceptions = False
    handler: logging.Handler
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = RotatingFileHandler(
            home / FILE, maxBytes=BYTES_MAX, backupCount=1, encoding="utf-8", delay=True
        )
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
