"""Every scenario on every platform, as a table.

    ./dev bench channel_scenarios [PLATFORM ...] [--chats N] [--only SCENARIO]

A cell says how long the scenario took and how many messages bore the mark of a repetition. A
scenario that loses a message, sends one twice without a mark, or runs a chat twice at once fails,
and its sentence stands below. Matrix runs against Synapse, the others against servers of ours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from bargein.channels.words import SENT_AGAIN
from bargein.testing.channel_conformance import CHECKS, BotMessage, ChannelCheck, scene
from bargein.testing.chat_services.discord import FakeDiscord
from bargein.testing.chat_services.service import ChatService
from bargein.testing.chat_services.slack import FakeSlack
from bargein.testing.chat_services.telegram import FakeTelegram
from bench.measure import table
from tests import programs
from tests.channels import matrix_platform
from tests.channels.synapse import homeserver

Opened = Callable[[], AbstractAsyncContextManager[Any]]
CHECK_S = 900.0
SOON_S = 300.0
"""A thousand chats over sockets, with a real homeserver on the same machine, take a while."""


@asynccontextmanager
async def on_synapse(address: str, folder: Path) -> AsyncIterator[Any]:
    place = Path(tempfile.mkdtemp(dir=folder))
    async with matrix_platform.matrix_platform(address, place) as platform:
        yield platform


def messages_of(platform: Any) -> Iterable[BotMessage]:
    if isinstance(platform, ChatService):
        return platform.messages()
    return [each for shown in platform.messages.values() for each in shown]


async def cell(opened: Opened, check: ChannelCheck) -> tuple[str, str]:
    """What stands in the table, and why it failed."""
    began = time.perf_counter()
    try:
        with anyio.fail_after(CHECK_S):
            async with opened() as platform:
                await check(platform)
                marked = sum(SENT_AGAIN in each.text for each in messages_of(platform))
    except Exception as error:  # boundary: a scenario's, shown
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return "FAILED", str(error) or type(error).__name__
    took = f"{time.perf_counter() - began:.1f} s"
    return f"{took}, {marked} marked" if marked else took, ""


async def fill(platforms: dict[str, Opened], only: str) -> int:
    rows: list[list[str]] = []
    failures: list[str] = []
    checks = [each for each in CHECKS if only in each.name]
    for check in checks:
        row = [check.name.replace("_", " ")]
        for name, opened in platforms.items():
            shown, why = await cell(opened, check)
            row.append(shown)
            if why:
                failures.append(f"{name}, {check}: {why}")
        rows.append(row)
        print(f"{len(rows)} of {len(checks)}: {' | '.join(row)}", file=sys.stderr)
    print(table(rows, ["scenario", *platforms]))
    for failure in failures:
        print(f"\nFAILED: {failure}")
    print(f"\n{len(checks) * len(platforms) - len(failures)} kept, {len(failures)} failed")
    return 1 if failures else 0


def main() -> int:
    names = ("matrix", "telegram", "slack", "discord")
    parser = argparse.ArgumentParser()
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=", ".join(names))
    parser.add_argument("--chats", type=int, default=1000, help="how many chats at once")
    parser.add_argument("--only", default="", help="a part of the names of the scenarios to run")
    given = parser.parse_args()
    unknown = set(given.platforms) - set(names)
    if unknown:
        parser.error(f"no platform {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    scene.SOON_S = SOON_S
    ChatService.chats_max = matrix_platform.CHATS_MAX = given.chats
    opened: dict[str, Opened] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chosen = given.platforms or names
        if "matrix" in chosen:
            if programs.find("synapse") is None:
                print("Synapse is not here; the tests install it: Matrix is left out")
            else:
                (folder / "synapse").mkdir()
                address = stack.enter_context(homeserver(folder / "synapse"))
                opened["matrix"] = partial(on_synapse, address, folder)
        services = {"telegram": FakeTelegram, "slack": FakeSlack, "discord": FakeDiscord}
        opened |= {name: services[name] for name in chosen if name in services}
        return anyio.run(fill, opened, given.only)


if __name__ == "__main__":
    sys.exit(main())
