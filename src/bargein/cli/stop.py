"""`bargein stop --all`: stops everything of this user, in all sessions, from any terminal."""

import argparse
import sys

from bargein.cli.event_loop import run_in_loop
from bargein.cli.receipts import all_in_words
from bargein.errors import UserError
from bargein.runtime.config import Config
from bargein.runtime.data_directory import DOOR_FILE, owner_listens
from bargein.runtime.directory_lock import owner_of


def main(given: argparse.Namespace, config: Config) -> int:
    if not given.all:
        raise UserError("say  bargein stop --all  to stop everything in all sessions")
    if not owner_listens(config.home):
        owner = owner_of(config.home)
        if owner is not None:
            raise UserError(
                f"{owner} runs the agent itself and takes no stops from here; press Esc in it, or "
                f"kill {owner.pid}"
            )
        _say("nothing is running")
        return 0
    return run_in_loop(_stop, config)


async def _stop(config: Config) -> int:
    from bargein.client import Client

    async with Client(f"unix:{config.home / DOOR_FILE}") as client:
        _say(all_in_words(await client.stop_all()))
    return 0


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
