"""`run_thread` runs a sync function in its own thread, which can be stopped or abandoned.

Each job has a fresh daemon thread, so nothing meant for one job can reach another, and process exit
waits for none. The thread inherits the context, and with it the current token. The ladder, once the
token is cancelled:

1. The function looks at the token and returns or raises `Cancelled`.
2. Only with `stop="raise"`, after a tenth of the grace: `Cancelled` is raised inside the function,
   while it runs its own code and at a place where nothing leaks (see `raising`).
3. The thread is abandoned: the outcome is decided, and a late result is dropped and counted.
   `abandoned()` lists the thread as long as it lives. The number of such threads is bounded.
"""

from collections.abc import Callable
from threading import Thread
from typing import Generic, Literal, TypeVar, TypeVarTuple

import anyio

from bargein.cancel import accounts
from bargein.cancel._loops import copy_context_outside_loop
from bargein.cancel.clock import check_seconds
from bargein.cancel.context import as_current
from bargein.cancel.outcome import Outcome, OutcomeSlot, Status, name_of
from bargein.cancel.raising import Raiser
from bargein.cancel.reason import Cancelled
from bargein.cancel.token import Token

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RAISE_EVERY_S = 0.002


async def run_thread(
    function: Callable[[*Ts], T],
    *args: *Ts,
    token: Token,
    grace_s: float,
    stop: Literal["token", "raise"] = "token",
    name: str | None = None,
) -> Outcome[T]:
    """Run `function(*args)` in a thread under a child of `token`. After a cancel it returns within
    the grace.

    If the caller itself is cancelled, the job is stopped in the same way, with `client_gone`; then
    the caller's own cancel continues.
    """
    check_seconds("grace_s", grace_s)
    if stop not in ("token", "raise"):
        raise ValueError(f"stop must be 'token' or 'raise', not {stop!r}")
    raiser = Raiser(function) if stop == "raise" else None
    accounts.refuse_if_too_many()
    name = name or name_of(function)
    with token.child(name) as source:
        slot = OutcomeSlot[T](
            source, "thread", grace_s, grace_s / 10 if raiser is not None else grace_s
        )
        if source.token.cancelled:
            return slot.outcome_now("cancelled")
        job = _Job(slot, lambda: function(*args), raiser)
        job.thread.start()
        return await slot.settle(job.insist)


class _Job(Generic[T]):
    """One function call in one thread."""

    def __init__(
        self, slot: OutcomeSlot[T], function: Callable[[], T], raiser: Raiser | None
    ) -> None:
        self._slot = slot
        self._function = function
        self._raiser = raiser
        name = slot.source.token.name
        self.thread = Thread(
            target=copy_context_outside_loop().run,
            args=(self._main,),
            name=f"bargein-{name}",
            daemon=True,
        )

    def _main(self) -> None:
        slot = self._slot
        status: Status = "finished"
        value: T | None = None
        failure: BaseException | None = None
        with as_current(slot.source.token):
            try:
                value = self._function()
            except BaseException as error:  # boundary: the outcome of this job carries the error
                own = isinstance(error, Cancelled) and slot.source.token.cancelled
                status, failure = ("cancelled", None) if own else ("failed", error)
        slot.work_ended()
        slot.put_soon(status, value, failure)

    async def insist(self, left_s: float) -> None:
        """Raise inside the function, if it was started with `stop="raise"`."""
        if self._raiser is None:
            return
        token = self._slot.source.token
        with anyio.move_on_after(left_s), self._raiser.aimed_at(self.thread, token):
            while not self._raiser.try_once():
                if await self._slot.filled.wait(RAISE_EVERY_S):
                    return
            await self._slot.filled.wait()
