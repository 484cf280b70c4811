"""Checkers of the laws: they receive observations and say which law was broken, and how.

A checker is a class with the number of its law, `observe` for one observation, and `check`, which
raises `LawBroken`. It ignores observations that it does not understand, so one stream feeds all
checkers:

    laws = Laws([Isolation(), OneWay()])
    laws.observe(CancelAsked(source.token, Cause.USER_STOP))   # before the call
    source.cancel(Cause.USER_STOP)
    laws.observe_tree(root.token)                        # whenever you like
    laws.check()                                         # when no cancel is under way

The two laws here are about tokens and hold for any program.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from bargein.cancel import Cause, Reason, Token

LAWS = {
    1: "isolation",
    2: "one way",
    3: "nothing lost, nothing twice",
    4: "one runner",
    5: "a valid transcript",
    6: "bounded",
    7: "no survivors",
    8: "our own doing is not an error",
    9: "aimed",
    10: "told",
}

HISTORY_MAX = 200


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Somebody is about to cancel this token for this reason."""

    token: Token
    reason: Reason | Cause


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """The state of a token at one moment, and its parents."""

    token: Token
    parents: tuple[Token, ...]
    cancelled: bool
    ended: bool
    reason: Reason | None


def look_at(token: Token, *under: Token) -> TokenSeen:
    """Returns the state of a token now. `under` names parents that it may have left: a token that
    was created cancelled, or cancelled before anybody looked, is no longer in the tree."""
    # Read the verdict before its reason, as every reader must.
    cancelled, ended = token.cancelled, token.ended
    parents = [link._parent for link in list(token._above.values())]
    return TokenSeen(token, (*under, *parents), cancelled, ended, token.reason)


def tokens_below(top: Token) -> list[Token]:
    """Returns `top` and everything below it that has not left the tree."""
    found, seen = [top], {id(top)}
    for token in found:
        for link in list(token._below.values()):
            if id(link._child) not in seen:
                seen.add(id(link._child))
                found.append(link._child)
    return found


class LawBroken(AssertionError):
    """Names the law, the tokens and what was observed before."""

    def __init__(
        self, law: int, what: str, tokens: Iterable[Token] = (), history: Iterable[object] = ()
    ) -> None:
        lines = [f"law {law} ({LAWS[law]}): {what}"]
        lines += [f"  token: {token!r}" for token in tokens]
        lines += [f"  seen: {each}" for each in history]
        super().__init__("\n".join(lines))
        self.law = law


class Checker(Protocol):
    @property
    def law(self) -> int: ...

    def observe(self, what: object) -> None:
        """Notes or ignores one observation. Raises `LawBroken` if it breaks the law."""
        ...

    def check(self) -> None:
        """Raises `LawBroken` if the present state breaks the law."""
        ...


class Laws:
    """Several checkers that receive one stream."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self._checkers = list(checkers)

    def observe(self, *observations: object) -> None:
        for what in observations:
            for checker in self._checkers:
                checker.observe(what)

    def observe_tree(self, top: Token) -> None:
        self.observe(*(look_at(token) for token in tokens_below(top)))

    def check(self) -> None:
        for checker in self._checkers:
            checker.check()


class Isolation:
    """Law 1: a cancel reaches all descendants of its target, and nothing else.

    With `strict` every cancel must be announced by an `CancelAsked`, unless a deadline caused it.
    """

    law: ClassVar[int] = 1

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._parents: dict[Token, set[Token]] = {}
        self._asked: dict[Token, set[str]] = {}
        self._history: deque[object] = deque(maxlen=HISTORY_MAX)

    def observe(self, what: object) -> None:
        if isinstance(what, CancelAsked):
            self._history.append(what)
            self._asked.setdefault(what.token, set()).add(_first_words(what.reason))
        elif isinstance(what, TokenSeen):
            self._history.append(what)
            self._parents.setdefault(what.token, set()).update(what.parents)

    def check(self) -> None:
        for token in self._parents:
            if token.cancelled:
                self._check_cause(token)
            elif not token.ended:
                self._check_reached(token)

    def _check_reached(self, token: Token) -> None:
        for parent in look_at(token).parents:
            if parent.cancelled and not token.cancelled:
                self._broken("the parent is cancelled, the token is not", token, parent)

    def _check_cause(self, token: Token) -> None:
        reason = token.reason
        if reason is None:
            self._broken("cancelled without a reason", token)
        elif reason.parent is None:
            asked = _first_words(reason) in self._asked.get(token, ())
            if self._strict and not asked and reason.cause is not Cause.DEADLINE:
                self._broken("cancelled, though nobody asked for it", token)
        elif self._parents[token] and not any(
            above.reason == reason.parent and above.name == reason.detail
            for above in self._above(token)
        ):
            self._broken("cancelled for a reason that nothing above it was cancelled for", token)

    def _above(self, token: Token) -> Iterator[Token]:
        """Yields everything that the token was ever seen under."""
        found = [token]
        seen = {token}
        for each in found:
            for parent in self._parents.get(each, ()):
                if parent not in seen:
                    seen.add(parent)
                    found.append(parent)
                    yield parent

    def _broken(self, what: str, *tokens: Token) -> None:
        raise LawBroken(self.law, what, tokens, _about(self._history, tokens))


class OneWay:
    """Law 2: a cancelled token stays cancelled, with its first reason; an ended one stays ended."""

    law: ClassVar[int] = 2

    def __init__(self) -> None:
        self._last: dict[Token, TokenSeen] = {}
        self._history: deque[TokenSeen] = deque(maxlen=HISTORY_MAX)

    def observe(self, what: object) -> None:
        if not isinstance(what, TokenSeen):
            return
        self._history.append(what)
        before = self._last.get(what.token)
        if what.cancelled and what.ended:
            self._broken("both cancelled and ended", what.token)
        if what.cancelled and what.reason is None:
            self._broken("cancelled without a reason", what.token)
        if before is not None:
            if before.cancelled and not what.cancelled:
                self._broken("was cancelled, and is no longer", what.token)
            if before.ended and not what.ended:
                self._broken("had ended, and is live again", what.token)
            if before.cancelled and before.reason != what.reason:
                self._broken("the first reason was replaced", what.token)
        self._last[what.token] = what

    def check(self) -> None:
        for token in list(self._last):
            self.observe(look_at(token))

    def _broken(self, what: str, *tokens: Token) -> None:
        raise LawBroken(self.law, what, tokens, _about(self._history, tokens))


def _first_words(reason: Reason | Cause) -> str:
    return str(reason if isinstance(reason, Reason) else Reason(reason))


def _about(history: Iterable[object], tokens: tuple[Token, ...]) -> list[object]:
    return [each for each in history if getattr(each, "token", None) in tokens]
