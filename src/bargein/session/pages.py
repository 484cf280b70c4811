"""A log, page by page: each of a bounded number of events and of bytes."""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from bargein.contracts.event import Recorded

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
    """The same for whoever may be abandoned in the middle: there is no generator to be closed."""
    seen = 0
    while page := await read(session, after=seen, limit=LOG_PAGE, bytes_max=LOG_PAGE_BYTES):
        for recorded in page:
            tell(recorded)
        seen = page[-1].seq
