"""The slot for the outcome of stoppable work, and the fence in front of it.

It is filled once: by the work, or, when its grace is over, by giving the work up. What the work
says after that goes nowhere and is counted. All of it happens in the loop of whoever waits.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from bargein.cancel import abandonment, accounts
from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cancel.outcome import Outcome, Status
from bargein.cancel.reason import Cause, Reason
from bargein.cancel.token import CancelSource

T = TypeVar("T")


class Slot(Generic[T]):
    def __init__(self, source: CancelSource, kind: str) -> None:
        self.source = source
        self.caller = loop_caller()
        self.filled = anyio.Event()
        self._kind = kind
        self._began_at = anyio.current_time()
        self._outcome: Outcome[T] | None = None
        self._wake = anyio.Event()
        self._listed_as = 0
        self._work_ended = False

    def outcome_now(
        self, status: Status, value: T | None = None, error: BaseException | None = None
    ) -> Outcome[T]:
        elapsed_s = anyio.current_time() - self._began_at
        return Outcome(status, self.source.token, elapsed_s, value, error)

    def put(
        self, status: Status, value: T | None = None, error: BaseException | None = None
    ) -> None:
        if self._outcome is not None:
            if status in ("finished", "failed"):
                accounts.add("late_results")
            return
        self._outcome = self.outcome_now(status, value, error)
        self._wake.set()
        self.filled.set()

    def work_ended(self) -> None:
        """The work itself is over, abandoned or not. Any thread."""
        self._work_ended = True
        abandonment.leave(self._listed_as)

    async def settle(self, insist: Callable[[], Awaitable[object]]) -> Outcome[T]:
        """Wait for the outcome; after a cancel, for as long as `insist` takes and no longer."""
        token = self.source.token
        registration = token._hook(lambda: call_if_open(self.caller, self._wake.set))
        try:
            await self._wake.wait()
            if self._outcome is None:
                await insist()
        except anyio.get_cancelled_exc_class():
            self.source.cancel(Reason(Cause.CLIENT_GONE, "its caller was cancelled"))
            if self._outcome is None:
                with anyio.CancelScope(shield=True):
                    await insist()
            raise
        finally:
            registration.remove()
            if self._outcome is None:
                self._abandon()
        assert self._outcome is not None
        return self._outcome

    @property
    def given_up(self) -> bool:
        return self._listed_as != 0

    def _abandon(self) -> None:
        self.source.cancel(Reason(Cause.CLIENT_GONE, "its caller left"))
        self._outcome = self.outcome_now("abandoned")
        accounts.add(f"{self._kind}s_abandoned")
        self._listed_as = abandonment.enter(self._kind, self.source.token.name)
        # Listed first, looked second: the work either sees the number or is seen to have ended.
        if self._work_ended:
            abandonment.leave(self._listed_as)


def name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
