"""`bargein chat`: the terminal program. The input line stays alive while the agent works."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from bargein.runtime.config import Config

if TYPE_CHECKING:
    from bargein.cli.chat.talk import OpenEngine


def main(given: argparse.Namespace, config: Config) -> int:
    return converse(
        config, resume=getattr(given, "resume", None), go_on=getattr(given, "go_on", False)
    )


def converse(
    config: Config,
    *,
    resume: str | None = None,
    go_on: bool = False,
    open_engine: "OpenEngine | None" = None,
) -> int:
    """Talks in this terminal until the user leaves: with the engine that is opened, or else with
    the owner of the data directory or one of our own."""
    more: dict[str, Any] = {} if open_engine is None else {"open_engine": open_engine}
    if is_plain(config):
        from bargein.cli import plain

        return plain.main(config, resume=resume, go_on=go_on, **more)
    from bargein.cli.chat.app import Chat
    from bargein.cli.event_loop import run_in_loop
    from bargein.cli.logs import log_to_file

    log_to_file(config.home)

    async def run() -> int:
        return await Chat(config, resume=resume, go_on=go_on, **more).run()

    return run_in_loop(run)


def is_plain(config: Config) -> bool:
    """Whether this terminal can only be written to line by line, or shall be."""
    if config["chat.plain"]:
        return True
    dumb = config.environment.get("TERM", "") in ("", "dumb")
    return dumb or not (os.isatty(0) and os.isatty(1))
