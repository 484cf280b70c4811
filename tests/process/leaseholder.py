"""Starts animals, keeps moving its deadline, and starts a command for each line that it is given:
`leaseholder.py MEANS MARK HOME KIND...`. It says what came of each."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

from bargein.cancel import CancelSource
from bargein.process import MeansChoice, open_containment
from bargein.process.owner_deadline import OWNER_DEADLINE
from tests.process import zoo
from tests.process.keeper import keep

LASTS_S = 0.6
RENEW_S = 0.1


def renew() -> None:
    OWNER_DEADLINE.set(time.clock_gettime(time.CLOCK_BOOTTIME) + LASTS_S)


def renew_for_ever() -> None:
    while True:
        renew()
        time.sleep(RENEW_S)


async def main(means: MeansChoice, mark: str, home: str, *kinds: str) -> None:
    zoo.new_mark = lambda: mark
    # Before there is a helper: it heeds what it knows of when it starts.
    renew()
    threading.Thread(target=renew_for_ever, daemon=True).start()
    async with await open_containment(means, home=Path(home)) as containment:
        source = CancelSource("owner")
        for kind in kinds:
            await keep(containment, zoo.ZOO[kind], source.token)
        print("here", flush=True)  # noqa: T201
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            process = await containment.spawn(
                ["echo", line.strip()], cwd="/", env=zoo.environment(mark), token=source.token
            )
            print((await process.wait()).code, flush=True)  # noqa: T201


if __name__ == "__main__":
    choice: MeansChoice = "cgroup" if sys.argv[1] == "cgroup" else "supervisor"
    asyncio.run(main(choice, *sys.argv[2:]))
