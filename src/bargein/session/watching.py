"""Reading a session from outside: its log page by page, and `follow` for what happens next.

`follow` yields the log, the work in progress and the events that follow, in order. It misses
nothing and repeats nothing, even if the session leaves memory and comes back meanwhile.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bargein.contracts.event import Recorded
from bargein.session.broadcast import Watched, Watcher
from bargein.session.reply import SessionGone

if TYPE_CHECKING:
    from bargein.session.actor import Actor
    from bargein.session.engine import SessionEngine


LOG_PAGE = 500
LOG_PAGE_BYTES = 1024 * 1024


class Read(Protocol):
    """Reads a part of a session's log: `events` of a store or of an engine."""

    async def __call__(
        self, session: str, /, *, after: int, limit: int | None, bytes_max: int | None
    ) -> list[Recorded]: ...


async def read_pages(read: Read, session: str) -> AsyncGenerator[Recorded, None]:
    """Yield all events of a session one by one, with one page of them in memory."""
    seen = 0
    while page := await read(session, after=seen, limit=LOG_PAGE, bytes_max=LOG_PAGE_BYTES):
        for recorded in page:
            yield recorded
        seen = page[-1].seq


async def tell_pages(read: Read, session: str, tell: Callable[[Recorded], None]) -> None:
    """Call `tell` with all events, for work that may be abandoned: no generator must be closed."""
    seen = 0
    while page := await read(session, after=seen, limit=LOG_PAGE, bytes_max=LOG_PAGE_BYTES):
        for recorded in page:
            tell(recorded)
        seen = page[-1].seq


class OpenWatcher(NamedTuple):
    """A watcher that was opened when the durable log ended at `seen`."""

    actor: "Actor"
    watcher: Watcher
    seen: int

    @classmethod
    def of(cls, actor: "Actor") -> "OpenWatcher":
        return cls(actor, actor.broadcast.watch(), actor.durable_seq)


async def follow(
    engine: "SessionEngine",
    session_id: str,
    after: int | None,
    opened: OpenWatcher | None = None,
) -> AsyncGenerator[list[Watched], None]:
    """Yield lists of waiting events. With `after`, first the log since then. With `opened`, begin
    at the moment when that was opened, not at the first `anext`."""
    watcher: Watcher | None = None
    if opened is not None:
        actor, watcher, seen = opened
        read_log = False
    else:
        actor = await engine.actor(session_id)
        read_log = after is not None
        seen = actor.durable_seq if after is None else after
    while True:
        so_far: Sequence[Watched] = ()
        durable_seq, may_be_over = actor.durable_seq, watcher is None
        if watcher is None:
            # Both without an await in between: events that are durable now come from the log, all
            # others come later and in order. So no delta follows the event that completes it.
            watcher = actor.broadcast.watch()
            so_far = actor.so_far()
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
            if may_be_over and actor.is_over:
                return
            while (fresh := await _fresh(watcher, seen)) is not None:
                seen = max((e.seq for e in fresh if isinstance(e, Recorded)), default=seen)
                yield fresh
        finally:
            watcher.close()
        if not actor.comes_back:
            return
        try:
            await engine.recovery.returned(session_id)
            actor, read_log = await engine.actor(session_id, unasked=True), True
        except SessionGone:
            # Another owner has the session now. A reader does not claim it back.
            return
        watcher = None


async def _fresh(watcher: Watcher, seen: int) -> list[Watched] | None:
    """Return the watcher's next events, without those up to `seen`; None at its end."""
    while True:
        try:
            events = await watcher.take()
        except StopAsyncIteration:
            return None
        if any(isinstance(each, Recorded) and each.seq <= seen for each in events):
            events = [e for e in events if not isinstance(e, Recorded) or e.seq > seen]
        if events:
            return events
