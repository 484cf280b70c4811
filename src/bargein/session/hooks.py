"""Places where the user's own code takes part in a session.

Each hook runs under a token (the turn's, or the session's where there is no turn), is ended by a
stop like anything else, and has a bound: one that takes longer, or fails, is noted and passed
over. None of them can hold a session up or bring it down.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, TypeVarTuple

from bargein.cancel import Outcome, TaskOwner, Token
from bargein.contracts.event import TurnSettled
from bargein.contracts.message import Attachment, Message
from bargein.contracts.model import Image, Text
from bargein.contracts.tool import CallResult, PlannedCall, Refused

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HOOK_GRACE_S = 0.5

_log = logging.getLogger("bargein.session")


class Hooks(Protocol):
    async def session_started(self, session: str) -> None: ...

    async def message(self, session: str, message: Message) -> None: ...

    async def turn_started(self, session: str, turn: str) -> None: ...

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        """Give a `Refused` to keep the call from running."""
        ...

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None: ...

    async def turn_settled(self, session: str, settled: TurnSettled) -> None: ...

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        """Describe an attachment for the model: an image in words, speech as text."""
        ...


class NoHooks:
    """What to inherit from when only some of the hooks are wanted."""

    async def session_started(self, session: str) -> None: ...

    async def message(self, session: str, message: Message) -> None: ...

    async def turn_started(self, session: str, turn: str) -> None: ...

    async def before_tool(self, session: str, planned: PlannedCall) -> Refused | None:
        return None

    async def after_tool(self, session: str, planned: PlannedCall, result: CallResult) -> None: ...

    async def turn_settled(self, session: str, settled: TurnSettled) -> None: ...

    async def enrich(self, session: str, attachment: Attachment) -> tuple[Text | Image, ...]:
        return (Text(f"[attachment {attachment.name}, {attachment.media_type}, not described]"),)


async def run_bounded(
    owner: TaskOwner,
    function: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    token: Token,
    timeout_s: float,
    name: str,
) -> Outcome[T]:
    """Run the user's code for `timeout_s` at most, and give it up if it does not stop then."""
    with token.child(name, timeout_s=timeout_s) as source:
        outcome = await owner.run(
            function, *args, token=source.token, grace_s=HOOK_GRACE_S, name=name
        )
    if outcome.status == "failed":
        _log.warning("the hook %s failed and is passed over", name, exc_info=outcome.error)
    elif source.token.cancelled and not token.cancelled:
        _log.warning("the hook %s took longer than %g s and is passed over", name, timeout_s)
    return outcome
