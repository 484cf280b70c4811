"""`bargein chat`: the terminal program. The input line keeps working while the agent works."""

import argparse
import os

from bargein.runtime.config import Config


def main(given: argparse.Namespace, config: Config) -> int:
    resume = getattr(given, "resume", None)
    go_on = getattr(given, "go_on", False)
    if is_plain(config):
        from bargein.cli import plain

        return plain.main(config, resume=resume, go_on=go_on)
    from bargein.cli.chat.app import Chat
    from bargein.cli.event_loop import run_in_loop
    from bargein.cli.logs import log_to_file

    log_to_file(config.home)

    async def run() -> int:
        return await Chat(config, resume=resume, go_on=go_on).run()

    return run_in_loop(run)


def is_plain(config: Config) -> bool:
    """Whether to write line by line: the terminal can do no more, or the user wants it."""
    if config["chat.plain"]:
        return True
    dumb = config.environment.get("TERM", "") in ("", "dumb")
    return dumb or not (os.isatty(0) and os.isatty(1))
