"""The seam between trying and trying again.

An endpoint can be attempted; an attempt is one try: one connection, made by its first `read`,
never repeated. `bargein.models.retry` makes a `Model` of one or more endpoints. So what it takes
to be a model is small: say what happened, once; patience and fall-back come from elsewhere.
"""

from collections.abc import Sequence
from typing import Protocol

from bargein.cancel import Token
from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models.prices import Price


class Attempt(Protocol):
    """One try at one endpoint.

    A cancel of the token given to `attempt` closes the connection at that moment and comes out
    of `read` as `Cancelled` with that token. Any other failure comes out as `ModelError`. The
    caller's own cancellation passes through.
    """

    @property
    def usage(self) -> Usage:
        """What the try has cost so far; at any time, also after a failure, a cancel or aclose."""
        ...

    async def read(self) -> Sequence[Part]:
        """The next parts, at least one. `EndPart` is the last of the last."""
        ...

    async def aclose(self) -> None:
        """Leave nothing behind. Bounded; may be called at any time and twice."""
        ...


class Endpoint(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def context_tokens(self) -> int | None: ...

    @property
    def price(self) -> Price | None: ...

    def attempt(self, request: ModelRequest, token: Token) -> Attempt: ...

    async def aclose(self) -> None: ...
