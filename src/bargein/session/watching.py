"""Reading a session from outside: its log page by page, and `follow` for what happens next.

`follow` gives what the log has, what is going on and what happens next, in order, with nothing
missed and nothing twice, also while the session leaves memory and comes back.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from bargein.contracts.event import Recorded
from bargein.session.actor import Actor
from bargein.session.broadcast import Watched, Watcher
from bargein.session.reply import SessionGone

if TYPE_CHECKING:
    from bargein.session.engine import SessionEngine


LOG_PAGE = 500
LOG_PAGE_BYTES = 1024 * 1024


class Read(Protocol):
    """Reads a part of a session's log: `events` of a store or of an engine."""

    async def __call__(
        self, session: str, /, *, after: int, limit: int | None, bytes_max: int | None
    ) -> list[Recorded]: ...


async def read_pages(read: Read, session: str) -> AsyncGenerator[Recorded, None]:
    """All events of a session, one by one; one page of them is in memory."""
    seen = 0
    while page := await read(session, after=seen, limit=LOG_PAGE, bytes_max=LOG_PAGE_BYTES):
        for recorded in page:
            yield recorded
        seen = page[-1].seq


async def tell_pages(read: Read, session: str, tell: Callable[[Recorded], None]) -> None:
    """The same by a callback, for work that may be abandoned: no generator has to be closed."""
    seen = 0
    while page := await read(session, after=seen, limit=LOG_PAGE, bytes_max=LOG_PAGE_BYTES):
        for recorded in page:
            tell(recorded)
        seen = page[-1].seq


async def follow(
    engine: "SessionEngine", session_id: str, after: int | None
) -> AsyncGenerator[list[Watched], None]:
    """Yields lists of the events that wait. With `after`, first the log since then."""
    actor = await engine.actor(session_id)
    read_log, seen = after is not None, after or 0
    if after is None:
        seen = actor.durable_seq
    while True:
        # Read in one moment: events that are durable now come from the log, all others come later
        # and in order, so that no delta follows the event that says what came of it.
        watcher = actor.broadcast.watch()
        durable_seq, so_far = actor.durable_seq, actor.so_far()
        try:
            while read_log and seen < durable_seq:
                page = await engine.events(
                    session_id,
                    after=seen,
                    limit=min(LOG_PAGE, durable_seq - seen),
                    bytes_max=LOG_PAGE_BYTES,
                )
                if not page:
                    break
                seen = page[-1].seq
                yield list(page)
            if so_far:
                yield list(so_far)
            if actor.is_over:
                return
            while (fresh := await _fresh(watcher, seen)) is not None:
                seen = _last_seq(fresh, seen)
                yield fresh
        finally:
            watcher.close()
        if not actor.comes_back:
            return
        try:
            await engine.recovery.returned(session_id)
            actor, read_log = await engine.actor(session_id, unasked=True), True
        except SessionGone:
            # Another owner has the session now. A reader does not take it back.
            return


async def follow_with(
    engine: "SessionEngine", actor: Actor, watcher: Watcher, seen: int
) -> AsyncGenerator[list[Watched], None]:
    """Like `follow`, with a watcher that was opened earlier, when the log ended at `seen`. The
    caller closes the watcher."""
    while (fresh := await _fresh(watcher, seen)) is not None:
        seen = _last_seq(fresh, seen)
        yield fresh
    if actor.comes_back:
        async with aclosing(follow(engine, actor.session_id, seen)) as batches:
            async for batch in batches:
                yield batch


def _last_seq(events: list[Watched], seen: int) -> int:
    return max((each.seq for each in events if isinstance(each, Recorded)), default=seen)


async def _fresh(watcher: Watcher, seen: int) -> list[Watched] | None:
    """Returns the watcher's next events, without those up to `seen`; None at its end."""
    while True:
        try:
            events = await watcher.take()
        except StopAsyncIteration:
            return None
        if any(isinstance(each, Recorded) and each.seq <= seen for each in events):
            events = [e for e in events if not isinstance(e, Recorded) or e.seq > seen]
        if events:
            return events
