"""The current token: the token that the running code belongs to.

It follows the context: into tasks, into `run_thread` jobs and into threads started with
`start_thread`. It is never looked up by thread id, because ids are reused.

Tasks and pools keep for ever the context in which they were made. So make anything lazy that many
calls share (a pool, a background task) with `in_empty_context`: otherwise it stays bound to the
call that happened to come first.
"""

import threading
from collections.abc import Callable
from contextvars import Context, ContextVar
from contextvars import Token as Restore
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bargein.cancel._loops import copy_context_outside_loop
from bargein.cancel.reason import Cancelled

if TYPE_CHECKING:
    from bargein.cancel.token import Token

P = ParamSpec("P")
T = TypeVar("T")

# For the kernel's own parts; all other code calls `current_token()`.
current: "ContextVar[Token | None]" = ContextVar("bargein_token", default=None)


def current_token() -> "Token | None":
    """Return the token of the call that runs here, or None outside of a call."""
    return current.get()


def is_interrupted() -> bool:
    """Whether the call that runs here was cancelled; False outside of a call."""
    token = current.get()
    return token is not None and token.cancelled


class as_current:  # noqa: N801 - used like a function: `with as_current(token):`
    """Make `token` the current one for a block. It delivers no cancel; use a scope for that."""

    __slots__ = ("_restore", "_token")

    def __init__(self, token: "Token | None") -> None:
        self._token = token
        self._restore: Restore[Token | None] | None = None

    def __enter__(self) -> "Token | None":
        if self._restore is not None:
            raise RuntimeError("as_current() was entered twice; make a new one for each block")
        self._restore = current.set(self._token)
        return self._token

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._restore is not None
        current.reset(self._restore)


def start_thread(
    function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> threading.Thread:
    """Start a daemon thread that belongs to the current token.

    Nothing waits for the thread: it is for a tool's own helper threads, which check
    `is_interrupted()` or `current_token()`. A thread that ends by raising `Cancelled` is no error.
    """
    context = copy_context_outside_loop()

    def run() -> None:
        try:
            context.run(function, *args, **kwargs)
        except Cancelled:
            pass

    name = getattr(function, "__name__", "function")
    thread = threading.Thread(target=run, name=f"bargein-{name}", daemon=True)
    thread.start()
    return thread


def in_empty_context(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` without any token, to make something that many calls share."""
    return Context().run(function, *args, **kwargs)
