"""Spare processes: started ahead of time, each in a fresh enclosure, each to become one command.

`SparePool` keeps one ready, so that a command need not wait for it. `SpareChannel` is the socket
to one of them, from the order for it until it has become the command. What a spare process does at
the other end is in `helper.spare`. All of it runs on the loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final, Generic, Protocol, TypeVar

from bargein.process.enclosure import SpareLost
from bargein.process.exec_request import ExecRequest, spawn_error
from bargein.process.helper import wire
from bargein.process.values import SandboxView
from bargein.process.waiting import DescriptorWatch, Event, Once

# Starting a spare process takes about as much work as a small command. So the next one waits until
# the command just started is under way, but not longer than a part of the pause between commands.
_LEAVE_ALONE_S: Final = 0.01
_PART_OF_PAUSE: Final = 1 / 3
_AT_ONCE_S: Final = 0.0005
_UNTIL_TRIES: Final = 25


class Spare(Protocol):
    """An enclosure that holds a spare process."""

    @property
    def is_dead(self) -> bool: ...

    async def ready(self) -> None:
        """Wait for the spare process. Raises `SpareLost`. If the wait is cancelled, the caller
        discards the enclosure."""

    def discard(self) -> None: ...


S = TypeVar("S", bound=Spare)


class SparePool(Generic[S]):
    """`order_spare` orders one from the helper, closed in as the view says; it raises OSError. The
    one that waits is like the one taken last."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, order_spare: Callable[[SandboxView | None], S]
    ) -> None:
        self._loop = loop
        self._order_spare = order_spare
        self._spare: S | None = None
        self._view: SandboxView | None = None
        self._taken_at = 0.0
        self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def waiting(self) -> S | None:
        """The one that is ready, or soon will be."""
        return self._spare

    async def take(self, view: SandboxView | None = None) -> S:
        """Raises `SpareLost`, or OSError. A cancel discards the one that was waited for."""
        now = self._loop.time()
        self._pause_s = now - self._taken_at
        self._taken_at = now
        spare, self._spare = self._spare, None
        if spare is not None and view != self._view:
            spare.discard()
            spare = None
        self._view = view
        if spare is None or spare.is_dead:
            spare = self._order_spare(view)
        try:
            await spare.ready()
        except BaseException:
            spare.discard()
            raise
        return spare

    def replenish(self) -> None:
        """Order the next one, now or soon."""
        delay_s = min(_LEAVE_ALONE_S, _PART_OF_PAUSE * self._pause_s)
        if delay_s < _AT_ONCE_S:
            self._fill()
        elif self._timer is None:
            # In an empty context: it is not for the call that happens to run now.
            self._timer = Context().run(self._loop.call_later, delay_s, self._fill)

    def _fill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._spare is None and not self._closed:
            try:
                self._spare = Context().run(self._order_spare, self._view)
            except OSError:
                pass  # the next command orders its own, and gets the error

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.discard()


class SpareChannel:
    """Give `theirs` to the helper, then close it here.

    It calls `on_ready` once, on the loop: with the spare process's pid, or with None if there is
    none and will be none.
    """

    def __init__(self, watch: DescriptorWatch, on_ready: Callable[[int | None], object]) -> None:
        self._watch = watch
        self._ours, self.theirs = wire.pair()
        self._ours.setblocking(False)
        self._on_ready: Callable[[int | None], object] | None = on_ready
        self._closed: Once[None] = Once(watch.loop)
        self._failure: tuple[str, int] | None = None
        watch.add(self._ours.fileno(), Event.READABLE, self.hear)

    @property
    def is_over(self) -> bool:
        """One of the two ends closed it."""
        return self._closed.is_set

    @property
    def errno(self) -> int:
        """Why it failed, if that is known; otherwise 0."""
        return self._failure[1] if self._failure is not None else 0

    def send(self, request: ExecRequest, standard: Sequence[int]) -> None:
        """Raises `SpareLost`, or `SpawnError` if no descriptor is free."""
        if self.is_over:
            raise SpareLost
        try:
            wire.send(self._ours, tuple(request), standard)
        except ConnectionError:
            raise SpareLost from None
        except OSError as error:
            # A long request takes a descriptor of its own.
            raise spawn_error(request, "descriptors", error.errno or 0) from error

    async def became(self, request: ExecRequest) -> None:
        """Wait until the command runs, or has run. Raises `SpawnError` if it could not run."""
        await self._closed.wait()
        if self._failure is not None and self._failure[0] == "stale":
            raise SpareLost
        if self._failure is not None:
            raise spawn_error(request, *self._failure)

    def close(self) -> None:
        """A spare process without a request exits when it sees this."""
        if not self._closed.is_set:
            self._watch.remove(self._ours.fileno())
            self._ours.close()
            self._closed.set(None)
            self._call_ready(None)

    def abort(self) -> None:
        """Close it without calling back: the spare process could not be ordered."""
        self._on_ready = None
        self.close()

    def hear(self) -> None:
        """Receive what has come, if anything has."""
        try:
            received = wire.receive(self._ours)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = None
        if received is None:
            self.close()
            return
        what, *rest = received[0]
        if what == "ready":
            self._call_ready(rest[0])
        else:
            stage, code = rest
            self._failure = (stage, code)

    def _call_ready(self, pid: int | None) -> None:
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready(pid)


async def until(done: Callable[[], bool]) -> None:
    """Wait a bounded time for something that is ending, while a backend closes."""
    pause_s = 0.001
    for _ in range(_UNTIL_TRIES):
        if done():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
