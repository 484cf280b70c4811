"""Many sessions with a turn in flight in one process, for the engine's bench to ask.

    python -m bench._engine_crowd SESSIONS DIRECTORY

Reads one order a line and answers each with a line of JSON: `memory` (bytes a session), `stop N`
(stop N turns one by one, each started again: the seconds of each), `all` (stop all at once).
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import psutil

from bargein.contracts.event import TurnOutcome, TurnSettled
from bargein.session.engine import SessionEngine
from bargein.session.session import Session
from bargein.stores.sqlite import SqliteStore
from bench._engine_parts import NO_LIMITS, OtherThread, is_settled, stop_from, talking_agent

SILENT_S = 3600.0
AT_ONCE = 500


class Crowd:
    def __init__(self) -> None:
        self._thread = OtherThread()
        self._random = random.Random(1)
        self._sessions: list[Session] = []
        self._asked = 0
        self._one_more = anyio.Event()

    def note_word(self, number: int) -> None:
        self._asked += 1
        self._one_more.set()
        self._one_more = anyio.Event()

    async def gather(self, engine: SessionEngine, sessions: int) -> float:
        """Starts a turn in each session. Returns the bytes that each takes."""
        self._engine = engine
        process = psutil.Process()
        # The first one loads what all share.
        await self._start(await engine.session("first"), self._asked + 1)
        gc.collect()
        before = process.memory_info().rss
        for begin in range(0, sessions, AT_ONCE):
            async with anyio.create_task_group() as group:
                for number in range(begin, min(begin + AT_ONCE, sessions)):
                    group.start_soon(self._join, f"session-{number}")
        while self._asked < sessions + 1:
            await self._one_more.wait()
        gc.collect()
        return (process.memory_info().rss - before) / sessions

    async def _join(self, name: str) -> None:
        session = await self._engine.session(name)
        await session.send("Talk to me")
        self._sessions.append(session)

    async def _start(self, session: Session, asked: int) -> None:
        await session.send("Talk to me")
        while self._asked < asked:
            await self._one_more.wait()

    async def stop_some(self, number: int) -> dict[str, object]:
        seconds, wrong = [], 0
        for _ in range(number):
            session = self._random.choice(self._sessions)
            taken_s, receipt = await stop_from(self._thread, session)
            seconds.append(taken_s)
            wrong += not is_settled(receipt)
            await self._start(session, self._asked + 1)
            await anyio.sleep(0.005)
        return {"seconds": seconds, "wrong": wrong}

    async def stop_all(self) -> dict[str, object]:
        """Stops every turn at once. `settled`: how many are stored as stopped afterwards;
        `in_time`: how many receipts said so themselves, and did not come before the disk did."""
        in_time = 0

        async def stop(session: Session) -> None:
            nonlocal in_time
            receipt = await session.interrupt(by="bench")
            in_time += is_settled(receipt)

        began_at = time.perf_counter()
        async with anyio.create_task_group() as group:
            for session in self._sessions:
                group.start_soon(stop, session)
        elapsed_s = time.perf_counter() - began_at
        settled = 0
        for session in self._sessions:
            last = (await session.events())[-1].event
            stopped = isinstance(last, TurnSettled) and last.outcome is TurnOutcome.STOPPED
            settled += stopped and not (await session.state()).busy
        return {"settled": settled, "in_time": in_time, "elapsed_s": elapsed_s}


async def run(sessions: int, directory: Path) -> None:
    store = await SqliteStore.open(directory / f"crowd-{sessions}.db")
    crowd = Crowd()
    agent = talking_agent(SILENT_S, crowd.note_word)
    async with SessionEngine(agent, store, limits=NO_LIMITS) as engine:
        each_bytes = await crowd.gather(engine, sessions)
        answer({"ready": sessions})
        while order := (await anyio.to_thread.run_sync(sys.stdin.readline)).split():
            if order[0] == "memory":
                answer({"bytes": each_bytes})
            elif order[0] == "stop":
                answer(await crowd.stop_some(int(order[1])))
            elif order[0] == "all":
                answer(await crowd.stop_all())
    await store.aclose()


def answer(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    anyio.run(run, int(sys.argv[1]), Path(sys.argv[2]), backend_options={"use_uvloop": True})
