"""`bargein chat`: the terminal program. The input line stays alive while the agent works."""

import argparse
import os
from importlib.util import find_spec
from secrets import token_hex

from bargein.cli.config import Config


def main(given: argparse.Namespace, config: Config) -> int:
    session_id = getattr(given, "resume", None) or f"chat-{token_hex(4)}"
    if is_plain(config):
        from bargein.cli import plain

        return plain.main(session_id, config)
    import anyio

    from bargein.cli.chat.app import Chat

    async def run() -> int:
        return await Chat(session_id, config).run()

    options = {"use_uvloop": find_spec("uvloop") is not None}
    return anyio.run(run, backend_options=options)


def is_plain(config: Config) -> bool:
    """Whether this terminal can only be written to line by line."""
    if config["chat.plain"]:
        return True
    dumb = config.environment.get("TERM", "") in ("", "dumb")
    return dumb or not (os.isatty(0) and os.isatty(1))
