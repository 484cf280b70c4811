"""The surroundings of a call, without a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import msgspec

from bargein.cancel import CancelSource, Cause, Reason, Token
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.tool import CallContext, CallResult, Question

Answer = Callable[[Question], str]


class WayOut:
    """A call that may go on in the background: its token is linked to the turn, then to the
    session. `over` is set when the call is over or has gone there."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.source = CancelSource("call")
        self._link = self.source.link(desk.turn.token)
        self.told: CallResult | None = None
        self.known = False
        self.over = anyio.Event()

    def enter(self, told: CallResult) -> bool:
        link = self.source.link(self._desk.session.token)
        if not self._link.unlink():
            link.unlink()
            return False
        self.told = told
        self.over.set()
        return True

    def outcome_is_known(self) -> None:
        self.known = True


@dataclass
class Desk:
    """A session and a turn with nobody behind them: tokens, live output, answers."""

    session_id: str = "s1"
    session: CancelSource = field(default_factory=lambda: CancelSource("session"))
    live: list[str] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    answer: Answer | None = None
    turn: CancelSource = field(init=False)

    def __post_init__(self) -> None:
        self.turn = CancelSource("turn", self.session.token)

    def context(
        self, token: Token | None = None, call_id: str = "c1", way_out: WayOut | None = None
    ) -> CallContext:
        return CallContext(
            call_id=call_id,
            session_id=self.session_id,
            token=token or self.turn.token,
            session_token=self.session.token,
            emit=self.live.append,
            ask=self._ask,
            background=way_out or WayOut(self),
        )

    def stop(self) -> None:
        assert self.turn.cancel(Reason(Cause.USER_STOP, "Ctrl-C"))

    async def _ask(self, question: Question, token: Token) -> str:
        self.asked.append(question)
        if self.answer is not None:
            return self.answer(question)
        await token.wait_async()
        token.check()
        raise AssertionError("nobody answered")


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall("c1", name, msgspec.json.encode(arguments).decode())


def text_of(result: CallResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, Text))


async def with_enough_time(
    attempt: Callable[[float], Awaitable[CallResult]],
    enough: Callable[[CallResult], bool],
    first_s: float,
) -> tuple[CallResult, float]:
    """A call that shall reach its time limit, but not before it has got so far: a machine that is
    slow is given more. Also gives the limit that it was."""
    limit_s = first_s
    while not enough(result := await attempt(limit_s)) and limit_s < 5:
        limit_s *= 5
    return result, limit_s


async def until(condition: Callable[[], object], within_s: float = 30) -> None:
    """Wait for something that has no event of its own, such as a thread or another process."""
    deadline = anyio.current_time() + within_s
    while not condition():
        with anyio.move_on_after(0.002):
            await anyio.sleep_forever()
        assert anyio.current_time() < deadline, "it did not come to pass"
