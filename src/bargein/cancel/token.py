"""The tree of tokens: who is cancelled, why, and what belongs to what.

What holds, for calls from any thread and from a signal handler that interrupted the same thread
inside the same token:

- One cell per token decides, once and for ever, between cancelled and ended. `cancel` and `seal`
  answer True for the one call that decided it.
- A cancel flags the whole subtree before it delivers anything, and delivers to ancestors first.
  When `cancel` has returned, by whichever call, everything below is flagged.
- A child made under a cancelled token is born cancelled. A child of an ended token is refused,
  since nobody could cancel it any more.
- Every registration fires at most once, and `remove` tells whether it was in time.

There is no lock. What must happen once is decided by one atomic operation on a dict:
`setdefault` decides a cell, `pop` takes a registration. What must not be missed is written first
and looked for afterwards: a child enters its parent's list and then looks at the parent's flag,
while a cancel sets the flag and then reads the list. Both rely on operations of built-in dicts
being atomic, which CPython guarantees for keys that are ints.
"""

from collections.abc import Callable, Iterator
from itertools import count
from math import inf, isfinite
from threading import TIMEOUT_MAX, Lock
from types import TracebackType
from typing import Final, NoReturn, final

import anyio

from bargein.cancel import accounts
from bargein.cancel._loops import call_if_open, loop_caller, runs_in_loop
from bargein.cancel.clock import SYSTEM_CLOCK, Clock, Timer
from bargein.cancel.delivery import DELIVERY
from bargein.cancel.reason import Cause, Reason, as_reason
from bargein.cancel.scope import Cancelled, TokenScope

_serials = count(1)
_VERDICT: Final = 0


class _Verdict:
    """What a cell holds. A new object for each try, so that identity tells who decided."""

    __slots__ = ("reason",)

    def __init__(self, reason: Reason | None) -> None:
        self.reason = reason


_FIRED: Final = _Verdict(None)


class TokenEnded(RuntimeError):
    """A child was asked of a token whose work has ended."""


def check_seconds(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


@final
class Token:
    """What a tool sees of its place in the tree: it can look, wait and make children.

    `cancelled`, `ended`, `reason` and `deadline` are plain attributes, cheap enough for an inner
    loop. They are read-only: only the holder of the `CancelSource` can cancel.
    """

    __slots__ = (
        "_above",
        "_below",
        "_cell",
        "_hooks",
        "_timer",
        "cancelled",
        "clock",
        "deadline",
        "ended",
        "name",
        "reason",
    )

    name: str
    cancelled: bool
    ended: bool
    reason: Reason | None
    deadline: float
    clock: Clock
    _cell: "dict[int, _Verdict]"
    _below: "dict[int, Link]"
    _above: "dict[int, Link]"
    _hooks: "dict[int, Registration]"
    _timer: Timer | None

    def __init__(self) -> None:
        raise TypeError("a Token is made by its CancelSource: CancelSource(name).token")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a token is read-only; to cancel it takes its CancelSource")

    def __repr__(self) -> str:
        state = f"cancelled, {self.reason}" if self.cancelled else "ended" if self.ended else "live"
        return f"<Token {self.name}: {state}>"

    def check(self) -> None:
        """Raise `Cancelled` if cancelled. The cheapest way for a loop to be stoppable."""
        if self.cancelled:
            raise Cancelled(self)

    def child(self, name: str, *, timeout_s: float | None = None) -> "CancelSource":
        return CancelSource(name, self, timeout_s=timeout_s)

    def on_cancel(self, callback: Callable[[], object]) -> "Registration":
        """Have `callback` called once, on a kernel thread, soon after the cancel.

        If the token is cancelled already that is now. If the token ends, it is forgotten.
        """
        DELIVERY.prepare()
        return self._hook(lambda: DELIVERY.submit(callback))

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
        self._hooks[registration._serial] = registration
        # Entered first, looked second: see the module's docstring.
        if self.cancelled or (self.ended and at_end):
            registration._take_and_fire()
        elif self.ended:
            registration.remove()
        return registration


_set = object.__setattr__


@final
class CancelSource:
    """Held by the owner of some work: makes its token, cancels it, or seals it as ended.

    As a context manager it seals at the end of the block.
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
            raise ValueError(f"a source needs a name to be told apart by, not {name!r}")
        if parent is not None and not isinstance(parent, Token):
            raise TypeError(f"the parent of {name} must be a Token, not {parent!r}")
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if clock is None:
            clock = parent.clock if parent is not None else SYSTEM_CLOCK
        token = object.__new__(Token)
        _set(token, "name", name)
        _set(token, "cancelled", False)
        _set(token, "ended", False)
        _set(token, "reason", None)
        _set(token, "deadline", inf)
        _set(token, "clock", clock)
        _set(token, "_cell", {})
        _set(token, "_below", {})
        _set(token, "_above", {})
        _set(token, "_hooks", {})
        _set(token, "_timer", None)
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
        """Cancel the token and all below it. True for the call that decided it.

        Any thread, any callback, any signal handler. When it returns, by whichever call the
        token was cancelled, everything below is flagged and what this call caused is delivered.
        """
        reason = as_reason(reason)
        if reason.cause is Cause.PARENT:
            raise ValueError("Cause.PARENT is given by the tree itself; name the first cause")
        return _cancel(self.token, reason)

    def seal(self) -> bool:
        """The work has ended. True unless it was cancelled or sealed before.

        Children that are still alive stay within reach of the ancestors.
        """
        token = self.token
        mine = _Verdict(None)
        if token._cell.setdefault(_VERDICT, mine) is not mine:
            return False
        _set(token, "ended", True)
        if token._timer is not None:
            token._timer.cancel()
        for registration in list(token._hooks.values()):
            if registration._at_end:
                registration._take_and_fire()
            else:
                registration.remove()
        _leave_if_done(token)
        return True

    def link(self, parent: Token) -> "Link":
        """Put the token under one more parent. A cancel of any of its parents reaches it.

        Work that may have to change hands is made without a parent and linked; it is moved by
        linking it to the new one and then unlinking it from the old.
        """
        token = self.token
        if parent is token or (token._below and _is_below(parent, token)):
            raise ValueError(f"{parent.name} cannot be above {token.name}: it is below it")
        link = Link(parent, token)
        if token.cancelled or token.ended:
            return link
        parent._below[link._serial] = link
        token._above[link._serial] = link
        if parent.deadline < token.deadline:
            _set(token, "deadline", parent.deadline)
        # Entered first, looked second: see the module's docstring.
        if parent.cancelled:
            assert parent.reason is not None
            _cancel_through(link, parent.reason.below(parent.name))
        elif parent.ended:
            link._detach()
            raise TokenEnded(
                f"{token.name} cannot start under {parent.name}: that has ended already"
            )
        elif token.cancelled or token.ended:
            link._detach()
        return link

    def _arm(self, timeout_s: float) -> None:
        token = self.token
        deadline = token.clock.now() + timeout_s
        if deadline < token.deadline:
            _set(token, "deadline", deadline)
        reason = Reason(Cause.DEADLINE, f"{timeout_s:g} s")
        _set(token, "_timer", token.clock.call_at(deadline, lambda: _cancel(token, reason)))
        if (token.cancelled or token.ended) and token._timer is not None:
            token._timer.cancel()


@final
class Link:
    """One token under one parent. The cell of the child decides between a cancel that comes
    through it and an unlink."""

    __slots__ = ("_child", "_parent", "_serial")

    def __init__(self, parent: Token, child: Token) -> None:
        self._parent = parent
        self._child = child
        self._serial = next(_serials)

    def unlink(self) -> bool:
        """Take the token out from under this parent.

        True for the call that did it: no cancel has come or will come through this link. False
        if a cancel or the token's end came first.
        """
        cell = self._child._cell
        mine = _Verdict(None)
        if _VERDICT in cell or cell.setdefault(self._serial, mine) is not mine:
            return False
        self._detach()
        return True

    def _detach(self) -> None:
        self._child._above.pop(self._serial, None)
        self._parent._below.pop(self._serial, None)
        if self._parent.ended:
            _leave_if_done(self._parent)


@final
class Registration:
    """A callback that waits for a cancel. Whoever takes it out of the token's dict fires it."""

    __slots__ = ("_at_end", "_fire", "_serial", "_token")

    def __init__(self, token: Token, fire: Callable[[], object], at_end: bool) -> None:
        self._token = token
        self._fire = fire
        self._at_end = at_end
        self._serial = next(_serials)

    def remove(self) -> bool:
        """Forget the callback. True if it had not begun and now never will. Never waits."""
        return self._token._hooks.pop(self._serial, None) is not None

    def _take_and_fire(self) -> None:
        if self._token._hooks.pop(self._serial, None) is None:
            return
        try:
            self._fire()
        except BaseException as error:  # boundary: one callback never stops the others
            accounts.add("bridges_failed")
            accounts.report(f"a bridge on {self._token.name}", error)


def bridge(token: Token, fire: Callable[[], object]) -> Registration:
    """For the runtime's own parts: `fire` is called in the canceller's thread, at that moment.

    That may be a signal handler: `fire` must not block, take a lock or raise. It closes a socket,
    sends a signal or wakes a loop; everything else belongs in `Token.on_cancel`.
    """
    return token._hook(fire)


def _cancel(token: Token, reason: Reason) -> bool:
    mine = _Verdict(reason)
    decided = token._cell.setdefault(_VERDICT, mine)
    if decided.reason is None:
        return False
    flagged = _flag(token, decided.reason)
    # Flagged as a whole, it needs nothing more from its ancestors.
    _leave(token)
    # Whoever came second delivers too: each registration is taken by one of them, and none is
    # left over because each thought it was the other's.
    for each in flagged:
        _deliver(each)
    return decided is mine


def _cancel_through(link: Link, reason: Reason) -> None:
    """Cancel a token because the parent at the other end of `link` is cancelled."""
    if _fires(link):
        _cancel(link._child, reason)


def _fires(link: Link) -> bool:
    """Whether a cancel may come through this link: it may unless an unlink was first."""
    return link._child._cell.setdefault(link._serial, _FIRED) is _FIRED


def _flag(top: Token, reason: Reason) -> list[Token]:
    """Flag `top` and all below it, whoever decided their cells; list them, ancestors first.

    What another thread is about to flag is flagged here too: when a cancel has returned, nothing
    below may be found unflagged.
    """
    flagged: list[Token] = []
    seen: set[int] = set()
    waiting: list[tuple[Token, Reason]] = [(top, reason)]
    for token, given in waiting:
        if id(token) in seen:
            continue
        seen.add(id(token))
        below = given
        decided = token._cell.setdefault(_VERDICT, _Verdict(given)).reason
        if decided is not None:
            _set(token, "reason", decided)
            _set(token, "cancelled", True)
            if token._timer is not None:
                token._timer.cancel()
            flagged.append(token)
            below = decided.below(token.name)
        waiting.extend((link._child, below) for link in _live_links(token))
    return flagged


def _live_links(token: Token) -> Iterator[Link]:
    return (link for link in list(token._below.values()) if _fires(link))


def _deliver(token: Token) -> None:
    for registration in list(token._hooks.values()):
        registration._take_and_fire()


def _leave(token: Token) -> None:
    for link in list(token._above.values()):
        link._detach()


def _leave_if_done(token: Token) -> None:
    """An ended token stays in the tree while children of its are alive."""
    if not token._below:
        _leave(token)


def _is_below(token: Token, top: Token) -> bool:
    """Whether `token` stands somewhere under `top`."""
    above = {id(token): token}
    waiting = [token]
    for each in waiting:
        for link in list(each._above.values()):
            if id(link._parent) not in above:
                above[id(link._parent)] = link._parent
                waiting.append(link._parent)
    return id(top) in above
