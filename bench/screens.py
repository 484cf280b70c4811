"""Many screens on one session: how long a stop takes from any of them, against one screen alone.

A real server with a scripted model. Each screen is a connection of its own that watches the
session, as a terminal or a tab does. A stop is from the call until its receipt is here, while an
answer streams; with seven screens a random one of them stops, and all of them must see the end.
"""

import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bargein.client import Client, Session
from bargein.contracts.event import Recorded, TurnSettled
from bargein.contracts.live import TextDelta
from bench.measure import Report, Samples, interleave_async
from tests.server.program import Program

SCREENS = 7
ROUNDS = 200

STREAMING = """
repeat = true
[[answers]]
steps = [{ do = "say", text = "one two three" }, { do = "pause", seconds = 60 }]
"""


class WatchingScreen:
    """One connection that watches the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.speaks = anyio.Event()
        self.settled = anyio.Event()

    def begin(self) -> None:
        self.speaks, self.settled = anyio.Event(), anyio.Event()

    async def watch(self) -> None:
        async with aclosing(self.session.watch()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    self.speaks.set()
                elif isinstance(event, Recorded) and isinstance(event.event, TurnSettled):
                    self.settled.set()


class Together:
    """A session, and the screens that show it."""

    def __init__(self, screens: list[WatchingScreen]) -> None:
        self._screens = screens
        self._random = random.Random(1)

    async def stop(self) -> float:
        for screen in self._screens:
            screen.begin()
        chosen = self._random.choice(self._screens)
        await chosen.session.send("go")
        for screen in self._screens:
            await screen.speaks.wait()
        began_at = time.perf_counter()
        await chosen.session.interrupt()
        taken = time.perf_counter() - began_at
        for screen in self._screens:
            await screen.settled.wait()
        return taken


async def measure(program: Program) -> Samples:
    token = program.headers["authorization"].removeprefix("Bearer ")
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:

        async def connect() -> Client:
            return await stack.enter_async_context(Client(program.url, token=token))

        async def together(count: int) -> Together:
            first = await (await connect()).new_session()
            screens = [WatchingScreen(first)]
            while len(screens) < count:
                screens.append(WatchingScreen(await (await connect()).session(first.id)))
            for screen in screens:
                group.start_soon(screen.watch)
            return Together(screens)

        candidates: dict[str, Callable[[], Awaitable[float]]] = {
            "one screen": (await together(1)).stop,
            "seven screens": (await together(SCREENS)).stop,
        }
        samples = await interleave_async(candidates, rounds=ROUNDS)
        group.cancel_scope.cancel()
    return samples


def main() -> int:
    report = Report("screens")
    with TemporaryDirectory(prefix="bargein-bench-") as top:
        home = Path(top, "data")
        home.mkdir()
        with Program(home, STREAMING) as program:
            samples = anyio.run(partial(measure, program), backend_options={"use_uvloop": True})
    report.compare(
        "a stop until its receipt",
        samples,
        baseline="one screen",
        ours="seven screens",
        bar=1.5,
        percents=(50, 99),
    )
    report.note(f"{ROUNDS} stops each, interleaved.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
