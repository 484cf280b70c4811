"""How a cancel goes through the tree: decide, flag, deliver, leave.

There is no lock. Whatever must happen once is decided by one atomic operation on a dict:
`setdefault` decides a cell or the fate of a link, `pop` takes a registration. Whatever must not be
missed is written first and checked afterwards: a child enters its parent's list and then reads the
parent's flag, while a cancel sets the flag and then reads the list. Both need atomic operations of
built-in dicts, which CPython guarantees for int keys.

Any thread may repeat any step; a repeated step changes nothing. So a second caller helps to finish,
and a step that a signal handler interrupted by raising is simply taken again.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, final

import msgspec

from bargein.cancel import accounts
from bargein.cancel._loops import give_way
from bargein.cancel.reason import Reason

if TYPE_CHECKING:
    from bargein.cancel.token import Token

_serials = count(1)
_DECISION: Final = 0

# The kernel writes to tokens with this. For everybody else they are read-only.
assign: Final = object.__setattr__


@final
class CellVerdict(msgspec.Struct, frozen=True, eq=False):
    """The content of a cell or a fate: a reason, or None for ended or unlinked. `at` is when the
    cancel was requested; everything that it reaches gets the same instant.

    Each try makes a new object, so identity shows which call decided.
    """

    reason: Reason | None
    at: float = 0.0


@final
class Link:
    """One token under one parent. Its fate is decided once: a cancel passed through it, or it was
    unlinked first."""

    __slots__ = ("_child", "_fate", "_parent", "_serial")

    def __init__(self, parent: "Token", child: "Token") -> None:
        self._parent = parent
        self._child = child
        self._serial = next(_serials)
        self._fate: dict[int, CellVerdict] = {}

    def __repr__(self) -> str:
        return f"<Link of {self._child!r} under {self._parent!r}>"

    def unlink(self) -> bool:
        """Remove the token from under this parent.

        Returns True for the call that did it: no cancel has passed or will pass through this link.
        Returns False if a cancel or the token's end came first.
        """
        mine = CellVerdict(None)
        if _DECISION not in self._child._cell:
            fate = self._fate.setdefault(_DECISION, mine)
            if fate is mine:
                detach(self)
                return True
            if fate.reason is not None:
                _wholly(_cancel, self._child, fate)
        _show(self._child)
        return False


@final
class Registration:
    """A callback that waits for a cancel. The thread that removes it from the token's dict fires
    it."""

    __slots__ = ("_at_end", "_fire", "_interrupted", "_serial", "_token")

    def __init__(self, token: "Token", fire: Callable[[], object], at_end: bool) -> None:
        self._token = token
        self._fire = fire
        self._at_end = at_end
        self._interrupted = False
        self._serial = next(_serials)

    def remove(self) -> bool:
        """Forget the callback. Returns True if it had not begun and now never will. Never waits."""
        return self._token._hooks.pop(self._serial, None) is not None

    def enter(self) -> None:
        """Register for the cancel or the end; if that has already come, act on it now."""
        token = self._token
        token._hooks[self._serial] = self
        # Write first, check second: see the module's docstring.
        if token.cancelled or (token.ended and self._at_end):
            self.take_and_fire()
        elif token.ended:
            self.remove()

    def take_and_fire(self) -> None:
        taken: bool | None = None
        try:
            taken = self._token._hooks.pop(self._serial, None) is not None
            if taken:
                self._fire()
        except BaseException as error:  # boundary: one callback must not stop the others
            if isinstance(error, Exception) or self._interrupted:
                accounts.add("bridges_failed")
                accounts.report(f"a bridge on {self._token.name}", error)
                return
            # Most likely a signal handler raised. Its error continues once everything is
            # delivered, this callback included: `_wholly` repeats the step.
            self._interrupted = True
            if taken is not False:
                self._token._hooks[self._serial] = self
            raise


def cancel(token: "Token", reason: Reason) -> bool:
    """Cancel a token and all below it. Returns True for the call that decided it."""
    return _wholly(_cancel, token, CellVerdict(reason, token.clock.now()))


def seal(token: "Token") -> bool:
    """End a token, unless it was cancelled. Returns True for the call that decided it."""
    if token.cancelled and not token._below:
        return False  # decided, and the whole subtree is flagged
    return _wholly(_seal, token, CellVerdict(None))


def attach(link: Link) -> bool:
    """Put the child under the parent. Returns False if that is impossible because the parent has
    ended."""
    parent, child = link._parent, link._child
    parent._below[link._serial] = link
    child._above[link._serial] = link
    # Write first, check second: see the module's docstring.
    if parent.cancelled:
        assert parent.reason is not None
        verdict = CellVerdict(parent.reason.below(parent.name), parent._cell[_DECISION].at)
        if _fires(link, verdict):
            _wholly(_cancel, child, verdict)
    elif parent.ended:
        detach(link)
        return False
    elif child.cancelled or child.ended:
        detach(link)
    return True


def detach(link: Link) -> None:
    link._parent._below.pop(link._serial, None)
    _leave_if_done(link._parent)
    # Last: a repeated step finds the link by this entry.
    link._child._above.pop(link._serial, None)


def decided_at(token: "Token") -> float:
    """Return when the cancel of a cancelled token was requested."""
    return token._cell[_DECISION].at


def self_and_above(token: "Token") -> "list[Token]":
    seen = {id(token)}
    found = [token]
    for each in found:
        for link in list(each._above.values()):
            if id(link._parent) not in seen:
                seen.add(id(link._parent))
                found.append(link._parent)
    return found


def _wholly(
    step: "Callable[[Token, CellVerdict], bool]", token: "Token", mine: CellVerdict
) -> bool:
    """Finish a step even if a signal handler raises in the middle; then let that error continue."""
    try:
        return step(token, mine)
    except Exception:
        raise
    except BaseException:
        _wholly(step, token, mine)
        raise


def _cancel(token: "Token", mine: CellVerdict) -> bool:
    decided = token._cell.setdefault(_DECISION, mine)
    if decided.reason is None:
        _show(token)
        return False
    # A second caller flags and delivers too. Exactly one caller takes each registration, and none
    # is left over because each thought that the other would take it.
    _show_reason(token, decided.reason)
    # Flag first, check second: see the module's docstring.
    staying = _flag(token, decided) if token._below else (token,)
    fired = False
    for each in staying:
        if each._hooks:
            for registration in list(each._hooks.values()):
                registration.take_and_fire()
                fired = True
    # From below, so that a second caller can still reach everything that has not left yet.
    for each in reversed(staying):
        if each._above:
            _wholly(_leave, each, decided)
    if fired:
        give_way()
    return decided is mine


def _seal(token: "Token", mine: CellVerdict) -> bool:
    if token._cell.setdefault(_DECISION, mine) is not mine:
        _show(token)
        return False
    assign(token, "ended", True)
    if token._timer is not None:
        token._timer.cancel()
    for registration in list(token._hooks.values()):
        if registration._at_end:
            registration.take_and_fire()
        else:
            registration.remove()
    _leave_if_done(token)
    return True


def _show(token: "Token") -> None:
    """Flag the token with a decision that another thread may still be carrying out. So a caller
    that came too late can see what came first."""
    decided = token._cell.get(_DECISION)
    if decided is not None:
        _flag(token, decided)


def _flag(top: "Token", verdict: CellVerdict) -> "Sequence[Token]":
    """Flag `top` and all below it, whichever call decided their cells.

    This also flags tokens that another thread is about to flag: when a cancel has returned, nothing
    below it may be unflagged. Returns, ancestors first, the tokens that must stay in the tree until
    their callbacks and those below them have fired. All others leave here, while they are still in
    the processor's cache: a token and its parts take a kilobyte, and in a large tree coming back
    for each of them later would cost more than everything else.
    """
    staying: list[Token] = []
    # The tokens, not their ids: a token that has left may be freed, and its id used again.
    seen: set[Token] = set()
    waiting: list[tuple[Token, CellVerdict | None]] = [(top, verdict)]
    while waiting:
        token, given = waiting.pop()
        if given is None:
            # All below it is flagged. Anything that has entered its dicts since has seen its flag.
            if token._hooks or token._below:
                staying.append(token)
            elif token._above:
                _wholly(_leave, token, verdict)
        elif token not in seen:
            seen.add(token)
            decided = token._cell.setdefault(_DECISION, given)
            if decided.reason is not None:
                _show_reason(token, decided.reason)
                # Handled again after everything below it.
                waiting.append((token, None))
            else:
                assign(token, "ended", True)
            links = list(token._below.values())
            if links and decided.reason is not None:
                given = CellVerdict(decided.reason.below(token.name), decided.at)
            if links and given.reason is not None:
                waiting += [(link._child, given) for link in links if _fires(link, given)]
    staying.reverse()
    return staying


def _show_reason(token: "Token", reason: Reason) -> None:
    assign(token, "reason", reason)
    assign(token, "cancelled", True)
    if token._timer is not None:
        token._timer.cancel()


def _fires(link: Link, verdict: CellVerdict) -> bool:
    """Whether a cancel may pass through this link: it may, unless it was unlinked first."""
    return link._fate.setdefault(_DECISION, verdict).reason is not None


def _leave(token: "Token", verdict: CellVerdict) -> bool:
    """Leave the tree: a token whose subtree is flagged needs nothing more from its parents."""
    for link in list(token._above.values()):
        detach(link)
    return True


def _leave_if_done(token: "Token") -> None:
    """Remove an ended token from the tree once it has no children, and with it every ended ancestor
    that it was the last child of."""
    leaving = [token]
    left: list[Link] = []
    for each in leaving:
        if each.ended and not each._below:
            for link in list(each._above.values()):
                link._parent._below.pop(link._serial, None)
                leaving.append(link._parent)
                left.append(link)
    # Last, and from above: a repeated step finds its way by these entries.
    for link in reversed(left):
        link._child._above.pop(link._serial, None)
