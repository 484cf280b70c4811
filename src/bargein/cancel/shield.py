"""Protects cleanup from cancels, with a deadline so that it cannot take for ever."""

from types import TracebackType
from typing import Self

import anyio

from bargein.cancel.clock import check_seconds
from bargein.cancel.context import current_token
from bargein.cancel.scope import TokenScope
from bargein.cancel.token import CancelSource


class shield:  # noqa: N801 - used like a function: `with shield(2.0):`
    """`with shield(timeout_s) as guard:` runs the block to its end despite cancels around it.

    Inside, the current token is a new one that only the deadline cancels, so cleanup may itself use
    threads and tokens. At the deadline the block is cut short, and `guard.expired` is True.
    """

    __slots__ = ("_inner", "_outer", "_source", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = check_seconds("timeout_s", timeout_s)
        self._source: CancelSource | None = None
        self._outer: anyio.CancelScope | None = None
        self._inner: TokenScope | None = None

    @property
    def expired(self) -> bool:
        return self._inner is not None and self._inner.caught

    def __enter__(self) -> Self:
        if self._source is not None:
            raise RuntimeError("a shield was entered twice; call shield(timeout_s) for each block")
        around = current_token()
        name = f"shield in {around.name}" if around is not None else "shield"
        clock = around.clock if around is not None else None
        self._source = CancelSource(name, timeout_s=self._timeout_s, clock=clock)
        self._outer = anyio.CancelScope(shield=True)
        self._outer.__enter__()
        self._inner = self._source.token.scope()
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._source is not None
        assert self._inner is not None
        assert self._outer is not None
        self._source.seal()
        try:
            absorbed = self._inner.__exit__(kind, error, trace)
        except BaseException as rest:
            self._outer.__exit__(type(rest), rest, rest.__traceback__)
            raise
        if absorbed:
            kind = error = trace = None
        return bool(self._outer.__exit__(kind, error, trace)) or absorbed
