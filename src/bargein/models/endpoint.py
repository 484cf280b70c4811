"""The interface between one attempt at a request and the retries around it.

An attempt is one try: one connection, opened by its first `read` and never reopened.
`bargein.models.retrying` builds a `Model` from one or more endpoints. So an endpoint only has to
report what happened, once; retries and fallback are not its concern.
"""

from collections.abc import Sequence
from typing import Protocol

from bargein.cancel import Token
from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models.costs import Price


class Attempt(Protocol):
    """One try at one endpoint.

    Cancelling the token passed to `attempt` closes the connection at that moment, and `read` raises
    `Cancelled` with that token. `read` raises `ModelError` for every other failure. A cancellation
    of the calling task passes through.
    """

    @property
    def usage(self) -> Usage:
        """The cost so far. Available at any time, also after a failure, a cancel or `aclose`."""
        ...

    async def read(self) -> Sequence[Part]:
        """Returns the next parts, at least one. The very last part is an `EndPart`."""
        ...

    async def aclose(self) -> None:
        """Releases everything. Bounded; may be called at any time and more than once."""
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
