"""The outcome of work that may be stopped, and the slot in which its caller waits for it.

The slot is filled once: by the work, or, when the grace is over, by abandoning the work. A result
that comes after that is dropped and counted. Everything happens in the loop of the waiting caller.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, Literal, TypeVar, cast

import anyio
import msgspec

from bargein.cancel import accounts
from bargein.cancel._loops import call_if_open, loop_caller, loop_time
from bargein.cancel.latch import Latch
from bargein.cancel.reason import Cancelled, Cause, Reason
from bargein.cancel.token import CancelSource, Token

T = TypeVar("T")

Status = Literal["finished", "failed", "cancelled", "abandoned"]


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """How work ended: finished with a value (perhaps because a cancel came too late), failed with
    an error, cancelled (it stopped in time), or abandoned (it did not stop within its grace, and
    anything it still returns is dropped)."""

    status: Status
    token: Token
    elapsed_s: float
    value: T | None = None
    error: BaseException | None = None

    def unwrap(self) -> T:
        """Return the value, or raise the error, or raise `Cancelled` if the work was stopped or
        abandoned."""
        if self.status == "finished":
            return cast(T, self.value)
        if self.error is not None:
            raise self.error
        raise Cancelled(self.token)


class OutcomeSlot(Generic[T]):
    """Filled with one outcome. `patience_s` is how long after a cancel the caller only waits before
    it insists; without a way to insist it is the whole grace."""

    def __init__(
        self, source: CancelSource, kind: str, grace_s: float, patience_s: float | None = None
    ) -> None:
        self.source = source
        self.caller = loop_caller()
        self.filled = Latch()
        self._kind = kind
        self._grace_s = grace_s
        self._patience_s = grace_s if patience_s is None else patience_s
        self._began_at = loop_time()
        self._gives_up_at: float | None = None
        self._insisting = False
        self._status: Status | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._listed_as = 0
        self._work_ended = False

    def outcome_now(self, status: Status) -> Outcome[T]:
        elapsed_s = loop_time() - self._began_at
        return Outcome(status, self.source.token, elapsed_s, self._value, self._error)

    def put(
        self, status: Status, value: T | None = None, error: BaseException | None = None
    ) -> None:
        """Fill the slot with the outcome of the work. Only in the loop; elsewhere use
        `put_soon`."""
        if self._status is None:
            self._status, self._value, self._error = status, value, error
            self.filled.set()
        else:
            self._count_late(status)

    def put_soon(self, status: Status, value: T | None, error: BaseException | None) -> None:
        """`put` from any thread."""
        if self.given_up:
            self._count_late(status)
        else:
            call_if_open(self.caller, lambda: self.put(status, value, error))

    def work_ended(self) -> None:
        """Note that the work itself is over, abandoned or not. Any thread may call it."""
        self._work_ended = True
        accounts.unlist_abandoned(self._listed_as)

    async def settle(self, insist: Callable[[float], Awaitable[object]]) -> Outcome[T]:
        """Wait for the outcome; after a cancel, no longer than the grace.

        When the patience is over, `insist` is called with the rest of the grace. It does what it
        can to end the work.
        """
        token = self.source.token
        registration = token._hook(lambda: call_if_open(self.caller, self._count_from_now))
        try:
            await self._wait(insist)
        except anyio.get_cancelled_exc_class():
            self.source.cancel(Reason(Cause.CLIENT_GONE, "its caller was cancelled"))
            self._count_from_now()
            with anyio.CancelScope(shield=True):
                await self._wait(insist)
            raise
        finally:
            registration.remove()
            if self._status is None:
                self._abandon()
        assert self._status is not None
        return self.outcome_now(self._status)

    def _count_from_now(self) -> None:
        """Begin the grace now that the loop knows of the cancel. It does not count from
        `cancelled_at`: a loop that was blocked meanwhile would abandon work that had no time to
        stop."""
        if self._gives_up_at is None:
            self._gives_up_at = loop_time() + self._grace_s
        if not self._insisting:
            self.filled.wait_no_longer(self._patience_left_s)

    @property
    def _grace_left_s(self) -> float:
        assert self._gives_up_at is not None
        return max(0.0, self._gives_up_at - loop_time())

    @property
    def _patience_left_s(self) -> float:
        return max(0.0, self._grace_left_s - self._grace_s + self._patience_s)

    async def _wait(self, insist: Callable[[float], Awaitable[object]]) -> None:
        if self._status is not None:
            return
        patience_s = None if self._gives_up_at is None else self._patience_left_s
        if not await self.filled.wait(patience_s):
            self._insisting = True
            await insist(self._grace_left_s)

    @property
    def given_up(self) -> bool:
        return self._listed_as != 0

    def _count_late(self, status: Status) -> None:
        if status in ("finished", "failed"):
            accounts.add("late_results")

    def _abandon(self) -> None:
        self.source.cancel(Reason(Cause.CLIENT_GONE, "its caller left"))
        self._status = "abandoned"
        accounts.add(f"{self._kind}s_abandoned")
        self._listed_as = accounts.list_abandoned(self._kind, self.source.token.name)
        # List first, check second: the work either sees the number, or we see that it has ended.
        if self._work_ended:
            accounts.unlist_abandoned(self._listed_as)


def name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
