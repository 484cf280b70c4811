"""`with token.scope() as scope:` delivers a token's cancel to a task.

It is an anyio cancel scope that is cancelled when the token is, from any thread. It absorbs only
what its own token caused; every other cancel, timeout or error passes through unchanged. Do not
`yield` inside: the cancel would land in the consumer of the generator.
"""

from contextvars import Token as Restore
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from bargein.cancel._loops import call_if_open, loop_caller
from bargein.cancel.context import current
from bargein.cancel.reason import Cancelled

if TYPE_CHECKING:
    from bargein.cancel.token import Token
    from bargein.cancel.tree import Registration


class TokenScope:
    """One block of one task under one token. After the block, `caught` is True if it was cut
    short."""

    __slots__ = ("_registration", "_restore", "_scope", "caught", "token")

    def __init__(self, token: "Token") -> None:
        self.token = token
        self.caught = False
        self._scope: anyio.CancelScope | None = None
        self._restore: Restore[Token | None] | None = None
        self._registration: Registration | None = None

    def __enter__(self) -> Self:
        if self._scope is not None:
            raise RuntimeError(
                f"a scope of {self.token.name} was entered twice; call token.scope() for each block"
            )
        caller = loop_caller()
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        self._restore = current.set(self.token)
        if self.token.cancelled:
            self._scope.cancel()
        else:
            # A call that is on its way when the block ends finds a scope that was left; cancelling
            # that does nothing.
            fire = partial(call_if_open, caller, self._scope.cancel)
            self._registration = self.token._hook(fire)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._scope is not None
        assert self._restore is not None
        if self._registration is not None:
            self._registration.remove()
        current.reset(self._restore)
        left = error
        try:
            if self._scope.__exit__(kind, error, trace):
                self.caught = self._scope.cancelled_caught
                return True
        except BaseExceptionGroup as rest:
            # The scope removed its own cancels from the group and raised the rest.
            left = rest
        self.caught = self._scope.cancelled_caught
        return self._absorb(left, error)

    def _absorb(self, left: BaseException | None, error: BaseException | None) -> bool:
        """Remove our own `Cancelled` from the error; raise or pass on the rest."""

        def is_ours(each: BaseException) -> bool:
            return isinstance(each, Cancelled) and each.token is self.token

        if left is not None and is_ours(left):
            self.caught = True
            left = None
        elif isinstance(left, BaseExceptionGroup):
            ours, others = left.split(is_ours)
            if ours is not None:
                self.caught = True
                left = others
        if left is None:
            return error is not None
        if left is error:
            return False
        context = left.__context__
        try:
            raise left
        finally:
            # This is the original error, not a second one raised while handling it.
            left.__context__ = context
