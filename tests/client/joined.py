"""A client of a server of the test, and what both sides must agree about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

import anyio

from bargein.client import Client, Session
from bargein.contracts.event import Recorded, TextCheckpoint
from bargein.session import session as async_session
from bargein.session.broadcast import Watched
from bargein.view import Picture
from tests.server.stage import START_TOKEN, WITHIN_S, Stage
from tests.session.laws import check_log


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def joined(
    stage: Stage, *, url: str | None = None, token: str = START_TOKEN, patience_s: float = WITHIN_S
) -> AsyncIterator[Client]:
    async with Client(url or stage.url, token=token, patience_s=patience_s) as client:
        yield client


def local(stage: Stage, session: Session) -> async_session.Session:
    """The same session, in process."""
    return async_session.Session(stage.engine, session.id)


def shown(events: Iterable[Watched], session: str) -> object:
    """The picture that these events make, as far as it stays when all has settled."""
    picture = Picture(session)
    for event in events:
        picture.apply(event)
    return (
        picture.seq,
        picture.title,
        picture.inbox,
        picture.held,
        [(each.id, each.text, each.outcome, each.messages) for each in picture.turns.values()],
        [(each.id, each.state) for each in picture.calls.values()],
        [(each.id, each.text, each.fate) for each in picture.messages.values()],
    )


class Watcher:
    """Watches a session to the event of a given number, in a task of its own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: list[Watched] = []
        self._seq = 0
        self._came = anyio.Event()

    async def run(self) -> None:
        async with aclosing(self.session.watch(after=0)) as events:
            async for event in events:
                self.events.append(event)
                if isinstance(event, Recorded):
                    self._seq = event.seq
                    self._came.set()
                    self._came = anyio.Event()

    async def until(self, seq: int) -> None:
        with anyio.fail_after(WITHIN_S):
            while self._seq < seq:
                await self._came.wait()

    @property
    def recorded(self) -> list[Recorded]:
        return [each for each in self.events if isinstance(each, Recorded)]


async def check_same(stage: Stage, watcher: Watcher) -> None:
    """The watcher of the wire has seen what the log has: every event once, in order, and the same
    picture as one who reads in process."""
    session = local(stage, watcher.session)
    await session.settled()
    log = await session.events()
    await watcher.until(log[-1].seq)
    assert [each.seq for each in watcher.recorded] == list(range(1, log[-1].seq + 1))
    kept = [each for each in log if not isinstance(each.event, TextCheckpoint)]
    came = [each for each in watcher.recorded if not isinstance(each.event, TextCheckpoint)]
    assert came == kept
    assert shown(watcher.events, session.id) == shown(log, session.id)
    check_log(log, waiting=[item.message.id for item in await session.inbox()])
