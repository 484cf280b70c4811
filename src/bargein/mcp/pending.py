"""One request that was handed to a connection, and the events that its caller waits for.

The caller takes one event after another: requests of the server about this call, and in the end the
answer. A request that no caller waits for is fenced: whatever comes for it is noted and dropped.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

import anyio
import msgspec

from bargein.mcp.errors import McpError
from bargein.mcp.wire import Incoming, RpcError

ASKED_MAX = 16
"""Requests of a server's that may wait for one call of ours."""


class ProgressNote(msgspec.Struct, frozen=True):
    progress: float = 0.0
    total: float | None = None
    message: str = ""


class RpcAnswer(msgspec.Struct, frozen=True):
    """Exactly one is set: what the server answered, or why there is no answer."""

    result: msgspec.Raw | None = None
    error: RpcError | None = None
    lost: McpError | None = None


class Late(Enum):
    """How a fenced request was answered, if it was."""

    NOTHING = "nothing"
    RESULT = "result"
    ERROR = "error"


OnProgress = Callable[[ProgressNote], None]


class PendingRequest:
    """`session` and `label` say whose request it is, for others that a restart takes along."""

    def __init__(
        self,
        request_id: int,
        method: str,
        *,
        session: str = "",
        label: str = "",
        on_progress: OnProgress | None = None,
    ) -> None:
        self.id = request_id
        self.method = method
        self.session = session
        self.label = label
        self.on_progress = on_progress
        self.fenced = False
        self.late = Late.NOTHING
        self.late_came = anyio.Event()
        self._asked: deque[Incoming] = deque()
        self._answer: RpcAnswer | None = None
        self._changed = anyio.Event()

    @property
    def open(self) -> bool:
        return self._answer is None and not self.fenced

    @property
    def answer(self) -> RpcAnswer | None:
        return self._answer

    def put(self, answer: RpcAnswer) -> None:
        if self.open:
            self._answer = answer
            self._changed.set()
        elif self.fenced and self.late is Late.NOTHING:
            self.late = Late.RESULT if answer.result is not None else Late.ERROR
            self.late_came.set()

    def ask(self, request: Incoming) -> bool:
        """Have the waiting task answer a request of the server's. Returns False if too many
        wait."""
        if not self.open or len(self._asked) >= ASKED_MAX:
            return False
        self._asked.append(request)
        self._changed.set()
        return True

    def forget(self, request_id: object) -> None:
        """The server takes a request back."""
        self._asked = deque(each for each in self._asked if each.id != request_id)

    async def next(self) -> RpcAnswer | Incoming:
        """The next request of the server's, or the answer."""
        while True:
            if self._answer is not None:
                return self._answer
            if self._asked:
                return self._asked.popleft()
            self._changed = anyio.Event()
            await self._changed.wait()

    def fence(self) -> tuple[Incoming, ...]:
        """Nobody waits any more. Returns the server's requests that stay unanswered."""
        self.fenced = True
        # It leads to the call, with its arguments; the fenced are kept for a while.
        self.on_progress = None
        left, self._asked = tuple(self._asked), deque()
        return left
