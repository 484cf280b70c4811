"""Starts animals and a service, then waits to be killed: `owner.py MEANS MARK HOME KIND...`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bargein.cancel import CancelSource
from bargein.process import MeansChoice, open_containment
from tests.process import zoo
from tests.process.keeper import keep


async def main(means: MeansChoice, mark: str, home: str, *kinds: str) -> None:
    zoo.new_mark = lambda: mark
    async with await open_containment(means, home=Path(home)) as containment:
        source = CancelSource("owner")
        for kind in kinds:
            await keep(containment, zoo.ZOO[kind], source.token)
        await containment.start_service(
            ["cat"], cwd="/", env=zoo.environment(mark), token=source.token
        )
        print(containment._backend.helper.pid, flush=True)  # type: ignore[attr-defined]  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    choice: MeansChoice = "cgroup" if sys.argv[1] == "cgroup" else "supervisor"
    asyncio.run(main(choice, *sys.argv[2:]))
