"""The tree of tokens: what is cancelled, why and when, and what belongs to what.

These rules hold for calls from any thread, and from a signal handler that interrupted the same
thread inside the same token:

- One cell per token decides, once and for ever, between cancelled and ended. `cancel` and `seal`
  return True only for the call that decided it.
- A cancel flags the whole subtree before it delivers anything, and delivers to ancestors first.
  When any call of `cancel` has returned, everything below is flagged.
- A child made under a cancelled token is born cancelled. Making a child of an ended token raises
  `TokenEnded`, because nothing could cancel the child any more.
- Every registration fires at most once, and `remove` returns whether it was in time.

`tree` explains how this works without a lock.
"""

from collections.abc import Callable
from inspect import iscoroutinefunction
from math import inf
from threading import TIMEOUT_MAX, Lock
from types import TracebackType
from typing import NoReturn, final

import anyio

from bargein.cancel import tree
from bargein.cancel._loops import call_if_open, loop_caller, runs_in_loop
from bargein.cancel.callbacks import CALLBACKS
from bargein.cancel.clock import SYSTEM_CLOCK, Clock, Timer, check_seconds
from bargein.cancel.reason import Cancelled, Cause, Reason, as_reason
from bargein.cancel.scope import TokenScope
from bargein.cancel.tree import CellVerdict, Link, Registration, assign


class TokenEnded(RuntimeError):
    """A child cannot be made, because the work of the parent token has ended."""


@final
class Token:
    """A tool's view of its place in the tree: it can read, wait and make children.

    `cancelled`, `ended` and `reason` are plain attributes, cheap enough for an inner loop. They
    are read-only: only the holder of the `CancelSource` can cancel.
    """

    __slots__ = (
        "_above",
        "_below",
        "_cell",
        "_deadline",
        "_hooks",
        "_timer",
        "cancelled",
        "clock",
        "ended",
        "name",
        "reason",
    )

    name: str
    cancelled: bool
    ended: bool
    reason: Reason | None
    clock: Clock
    _cell: dict[int, CellVerdict]
    _below: dict[int, Link]
    _above: dict[int, Link]
    _hooks: dict[int, Registration]
    _deadline: float
    _timer: Timer | None

    def __init__(self) -> None:
        raise TypeError("a Token is made by its CancelSource: CancelSource(name).token")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a token is read-only; cancel it through its CancelSource")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: a token is read-only; its attributes cannot be deleted")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.name}: a token cannot be copied; no cancel would reach the copy")

    def __repr__(self) -> str:
        state = f"cancelled, {self.reason}" if self.cancelled else "ended" if self.ended else "live"
        return f"<Token {self.name}: {state}>"

    @property
    def cancelled_at(self) -> float | None:
        """When the token was cancelled, on the clock of its deadlines; None if it was not.

        The instant is decided together with the cell: all tokens that one cancel reaches have the
        same instant, and a child born cancelled has that of its parent.
        """
        return tree.decided_at(self) if self.cancelled else None

    @property
    def in_use(self) -> bool:
        """Whether a token is below this one, or anything waits for its cancel."""
        return bool(self._below or self._hooks)

    @property
    def deadline(self) -> float:
        """When a deadline, its own or that of a token above it, will cancel it; `inf` for never."""
        return min(
            (each._deadline for each in tree.self_and_above(self) if not each.ended), default=inf
        )

    def check(self) -> None:
        """Raise `Cancelled` if cancelled. The cheapest way to make a loop stoppable."""
        if self.cancelled:
            raise Cancelled(self)

    def child(self, name: str, *, timeout_s: float | None = None) -> "CancelSource":
        return CancelSource(name, self, timeout_s=timeout_s)

    def on_cancel(self, callback: Callable[[], object]) -> "Registration":
        """Call `callback` once, on a kernel thread, soon after the cancel.

        If the token is already cancelled, that is now. If the token ends, the callback is dropped.
        """
        if not callable(callback) or iscoroutinefunction(callback):
            raise TypeError(f"on_cancel() needs a plain function, not {callback!r}")
        CALLBACKS.prepare()
        return self._hook(lambda: CALLBACKS.submit(callback))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until cancelled (True), ended or timed out (False)."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if runs_in_loop():
            raise RuntimeError(
                "token.wait() would block the event loop that runs here; "
                "use `await token.wait_async()`"
            )
        gate = Lock()
        gate.acquire()
        registration = self._hook(gate.release, at_end=True)
        try:
            gate.acquire(timeout=-1 if timeout_s is None else min(timeout_s, TIMEOUT_MAX))
        finally:
            registration.remove()
        return self.cancelled

    def sleep(self, seconds: float) -> None:
        """Like `time.sleep`, but raises `Cancelled` as soon as the token is cancelled."""
        check_seconds("seconds", seconds)
        if self.wait(seconds):
            raise Cancelled(self)

    async def wait_async(self) -> bool:
        """Wait until cancelled (True) or ended (False)."""
        event = anyio.Event()
        caller = loop_caller()
        registration = self._hook(lambda: call_if_open(caller, event.set), at_end=True)
        try:
            await event.wait()
        finally:
            registration.remove()
        return self.cancelled

    def scope(self) -> TokenScope:
        """An anyio cancel scope for one block: `with token.scope() as scope:`."""
        return TokenScope(self)

    def _hook(self, fire: Callable[[], object], *, at_end: bool = False) -> "Registration":
        registration = Registration(self, fire, at_end)
        registration.enter()
        return registration


@final
class CancelSource:
    """Owns a token: makes it, cancels it, or seals it as ended. The owner of the work holds it.

    As a context manager it seals the token at the end of the block.
    """

    __slots__ = ("token",)

    def __init__(
        self,
        name: str,
        parent: Token | None = None,
        *,
        timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a source must be text that is not empty, not {name!r}")
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if parent is not None:
            _check_parent(parent, name)
        if clock is None:
            clock = parent.clock if parent is not None else SYSTEM_CLOCK
        token = object.__new__(Token)
        assign(token, "name", name)
        assign(token, "cancelled", False)
        assign(token, "ended", False)
        assign(token, "reason", None)
        assign(token, "_deadline", inf)
        assign(token, "clock", clock)
        assign(token, "_cell", {})
        assign(token, "_below", {})
        assign(token, "_above", {})
        assign(token, "_hooks", {})
        assign(token, "_timer", None)
        self.token = token
        if parent is not None:
            self.link(parent)
        if timeout_s is not None:
            self._arm(timeout_s)

    def __repr__(self) -> str:
        return f"<CancelSource of {self.token!r}>"

    def __enter__(self) -> "CancelSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seal()

    def cancel(self, reason: Reason | Cause) -> bool:
        """Cancel the token and all below it. Returns True for the call that decided it.

        Any thread, callback or signal handler may call it. When it returns, everything below is
        flagged, whichever call cancelled the token, and everything that this call caused is
        delivered.
        """
        reason = as_reason(reason)
        if reason.parent is not None:
            raise ValueError("only the tree itself sets Cause.PARENT; give the original cause")
        return tree.cancel(self.token, reason)

    def seal(self) -> bool:
        """Mark the work as ended. Returns False if it was cancelled or sealed before.

        A cancel of an ancestor still reaches children that are alive.
        """
        return tree.seal(self.token)

    def link(self, parent: Token) -> "Link":
        """Put the token under one more parent. A cancel of any of its parents reaches it.

        Work that may get another owner is made without a parent and then linked. To move it, link
        it to the new parent and then unlink it from the old one.
        """
        token = self.token
        _check_parent(parent, token.name)
        if parent is token or (token._below and token in tree.self_and_above(parent)):
            raise ValueError(f"{parent.name} cannot be above {token.name}: it is below it")
        link = Link(parent, token)
        if not (token.cancelled or token.ended) and not tree.attach(link):
            raise TokenEnded(
                f"{token.name} cannot start under {parent.name}, which has already ended"
            )
        return link

    def limit(self, timeout_s: float) -> None:
        """Set a deadline, counted from now. Only once, and only for a source made without one."""
        check_seconds("timeout_s", timeout_s)
        if self.token._timer is not None:
            raise RuntimeError(f"{self.token.name} already has a deadline, which cannot be changed")
        self._arm(timeout_s)

    def _arm(self, timeout_s: float) -> None:
        token = self.token
        deadline = token.clock.now() + timeout_s
        reason = Reason(Cause.DEADLINE, f"{timeout_s:g} s")
        timer = token.clock.call_at(deadline, lambda: tree.cancel(token, reason))
        assign(token, "_deadline", deadline)
        assign(token, "_timer", timer)
        # Write first, check second: a thread that decided the token meanwhile saw no timer to stop.
        if token.cancelled or token.ended:
            timer.cancel()


def _check_parent(parent: Token, name: str) -> None:
    if not isinstance(parent, Token):
        raise TypeError(f"the parent of {name} must be a Token, not {parent!r}")


def bridge(token: Token, fire: Callable[[], object]) -> Registration:
    """Call `fire` in the thread that cancels, at that moment. For Bargein's own parts.

    That may be a signal handler, so `fire` must not block, take a lock or raise. It closes a
    socket, sends a signal or wakes a loop; everything else belongs in `Token.on_cancel`.
    """
    return token._hook(fire)
